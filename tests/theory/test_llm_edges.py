"""The fair policies for LLM serving at the edges: lost calls, strangers, returns, and what counters keep in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.policies import POLICIES, create_policy
from scheduler.policies.d2lpm import D2lpm
from scheduler.policies.dlpm import Dlpm
from scheduler.policies.equinox import Equinox
from scheduler.policies.fairserve import FairServe
from scheduler.policies.vtc import Vtc
from scheduler.policies.vtc_oracle import VtcOracle
from scheduler.policies.vtc_predict import VtcPredict
from scheduler.types import CallKey
from tests.theory.llm_loads import application, call, run

Counted = Vtc | VtcPredict | VtcOracle | FairServe | Equinox
Located = Dlpm | D2lpm

COUNTED: list[Callable[[], Counted]] = [Vtc, VtcPredict, VtcOracle, FairServe, Equinox]
LOCATED: list[Callable[[], Located]] = [Dlpm, D2lpm]
counted = pytest.mark.parametrize("make", COUNTED)
every = pytest.mark.parametrize("make", [*COUNTED, *LOCATED])


@every
def test_it_is_registered_and_shares_among_flows(make: Callable[[], Counted | Located]) -> None:
    policy = make()
    assert type(create_policy(policy.name)) is POLICIES[policy.name] is make
    assert policy.shares_among_flows
    assert policy.head() is None


@every
def test_strangers_are_ignored(make: Callable[[], Counted | Located]) -> None:
    policy = make()
    here, gone = application("here"), application("gone", 2, flow="g")
    policy.application_arrived(here)
    policy.add(call(here))
    policy.remove(CallKey("gone", "c"))
    policy.application_changed(gone)
    policy.application_left(gone)
    policy.progressed(call(gone), (3,))
    policy.ended(call(gone), (3,), True)
    policy.ended(call(here, 7), (3,), True)
    policy.granted(call(gone), "r")
    policy.ended(call(gone), (3,), True)
    assert policy.preferred_replica(CallKey("gone", "c")) is None
    assert policy.head() == ("here", "c1")


@every
def test_calls_that_were_never_added_are_charged(make: Callable[[], Counted | Located]) -> None:
    """A policy that is chosen while the system runs is told of running calls first."""
    policy = make()
    busy, idle = application("busy", 1, flow="busy"), application("idle", 2, flow="idle")
    for of in (busy, idle):
        policy.application_arrived(of)
    running = call(busy, 1, sequences=2)
    policy.granted(running, "r")
    policy.progressed(running, ())
    policy.progressed(running, (5000, 5000))
    policy.add(call(busy, 2))
    policy.add(call(idle, 3))
    assert policy.head() == ("idle", "c3")
    policy.ended(running, (5000, 5000), True)
    assert policy.head() == ("idle", "c3")


@every
def test_equal_calls_and_equal_applications_leave_in_order(make: Callable[[], Counted | Located]) -> None:
    policy = make()
    calls = [call(application(f"a{n}", n, flow=f"f{n}"), n) for n in range(12)]
    for one in (calls[n * 5 % 12] for n in range(12)):
        policy.application_arrived(one.application)
        policy.add(one)
    of = application("many", 99, flow="g")
    policy.application_arrived(of)
    for ready in (103, 101, 102):
        policy.add(call(of, ready))
    order = []
    while (key := policy.head()) is not None:
        assert policy.head() == key
        order.append(key)
        policy.remove(key)
    assert order == [one.key for one in calls] + [CallKey("many", f"c{n}") for n in (101, 102, 103)]


@every
def test_a_lost_call_keeps_its_place_in_its_flow_and_its_charge(make: Callable[[], Counted | Located]) -> None:
    policy = make()
    of, other = application("a", 1, flow="f"), application("b", 2, flow="g")
    for app in (of, other):
        policy.application_arrived(app)
    lost = call(of, 1)
    run(policy, lost, made=5000, finished=False)
    policy.add(call(of, 2))
    policy.add(lost)
    policy.add(call(other, 3))
    assert policy.head() == ("b", "c3"), "what was made is paid for"
    policy.remove(CallKey("b", "c3"))
    assert policy.head() == lost.key
    policy.remove(lost.key)
    assert policy.head() == ("a", "c2")


@counted
def test_a_lost_call_pays_its_prompt_again(make: Callable[[], Counted]) -> None:
    policy = make()
    of = application("a", predicted_cost=1.0)
    policy.application_arrived(of)
    for made, finished in ((3, False), (0, False), (7, True)):
        run(policy, call(of, 1), made=made, finished=finished)
    twice = make()
    twice.application_arrived(of)
    for made in (3, 0, 7):
        run(twice, call(of, 1), made=made)
    assert policy._counters.counter("f") == twice._counters.counter("f") > 0


@counted
def test_a_flow_takes_its_debt_along_and_nothing_else(make: Callable[[], Counted]) -> None:
    policy = make()
    served, other = (
        application(name, n, flow=flow, predicted_cost=30.0) for n, name, flow in ((1, "a", "f"), (2, "b", "g"))
    )
    for of in (served, other):
        policy.application_arrived(of)
    run(policy, call(served, 1), made=500)
    run(policy, call(other, 2), made=5)
    debt, floor = policy._counters.counter("f"), policy._counters.floor
    assert debt > floor > 0
    policy.application_left(served)
    back = application("a2", 3, flow="f")
    policy.application_arrived(back)
    assert policy._counters.counter("f") == debt, "leaving does not shed it"
    fresh = application("c", 4, flow="h")
    policy.application_arrived(fresh)
    assert policy._counters.counter("h") == floor, "a newcomer begins where the least served one is"
    policy.application_left(back)
    run(policy, call(other, 5), made=50_000)
    run(policy, call(fresh, 6), made=50_000)
    assert policy._counters.floor > debt
    assert len(policy._counters._debts) == 0, "below the floor a debt is void"
    policy.application_arrived(application("a3", 7, flow="f"))
    assert policy._counters.counter("f") == policy._counters.floor


@counted
def test_calls_rank_by_their_flows_counters_also_while_they_run(make: Callable[[], Counted]) -> None:
    policy = make()
    behind, ahead = application("behind", 1, flow="f"), application("ahead", 2, flow="g")
    for of in (behind, ahead):
        policy.application_arrived(of)
    running = call(behind, 1)
    policy.granted(running, "r")
    policy.progressed(running, (400,))
    policy.add(call(ahead, 2))
    ranks = [policy.rank(one) for one in (call(ahead, 2), running, call(application("gone", 3, flow="h"), 3))]
    assert ranks == [0.0, policy._counters.counter("f"), 0.0]
    assert policy.priority(call(ahead, 2)) == 0 < (policy.priority(running) or 0)


@counted
def test_between_two_calls_an_application_is_active(make: Callable[[], Counted]) -> None:
    """No lift while the application is in the system, though none of its calls waits."""
    policy = make()
    agent, batch = application("agent", 1, flow="f"), application("batch", 2, flow="g")
    for of in (agent, batch):
        policy.application_arrived(of)
    run(policy, call(agent, 1))
    before = policy._counters.counter("f")
    for ready in range(2, 20):
        run(policy, call(batch, ready), made=50)
    second = application("agent2", 3, flow="f")
    policy.application_arrived(second)
    policy.application_left(second)
    assert policy._counters.counter("f") == before
    policy.add(call(agent, 30))
    policy.add(call(batch, 29))
    assert policy.head() == ("agent", "c30")


@counted
def test_counters_keep_nothing_of_flows_that_came_and_went(make: Callable[[], Counted]) -> None:
    policy = make()
    stays = application("stays", 0, flow="stays")
    policy.application_arrived(stays)
    most = 0
    for number in range(1, 4000):
        of = application(f"a{number}", number, flow=f"f{number}")
        policy.application_arrived(of)
        run(policy, call(of, number), made=number % 50)
        policy.application_left(of)
        run(policy, call(stays, 10_000 + number), made=30)
        most = max(most, len(policy._counters._debts))
    assert most < 30, "debts are forgotten as the floor passes them"
    policy.application_left(stays)
    counters = policy._counters
    kept = (counters._flows, counters._flow_of, counters._queues._calls, policy._charged)
    assert [len(table) for table in kept] == [0, 0, 0, 0]
    assert (len(counters._active), len(counters._waiting), len(counters._debts), counters.floor) == (0, 0, 0, 0.0)
