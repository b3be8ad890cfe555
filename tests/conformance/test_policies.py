"""What every policy owes to the core. Whatever is registered is tested; what makes each what it is: `tests/theory`."""

from __future__ import annotations

import inspect
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.actions import Grant, PublishAudit, PublishCompletion
from scheduler.events import ApplicationCancelled, CallLost, SettingsChanged, TimePassed
from scheduler.policies import POLICIES, create_policy
from scheduler.policies.contract import MAX_PRIORITY, ApplicationFacts, CallFacts, Need, Policy
from scheduler.settings import CoreSettings, Flows
from scheduler.tenants import TenantLevel, choose_policy
from scheduler.types import CallKey
from tests.crowd import run_crowd
from tests.scheduling import Bench, call, clean_state

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))
orderly = pytest.mark.parametrize("name", sorted(name for name in POLICIES if not POLICIES[name].left_to_chance))
in_both_flows = pytest.mark.parametrize("flows", Flows)


def asked(number: int, tag: float = 1.0) -> ApplicationFacts:
    return ApplicationFacts(
        application_id=f"a{number}",
        sequence=number,
        flow=f"a{number}",
        finish_tag=tag,
        predicted_cost=3.0,
        remaining_cost=3.0,
    )


def waiting(app: int, ready: int, tag: float = 1.0) -> CallFacts:
    return CallFacts(key=CallKey(f"a{app}", f"c{ready}"), application=asked(app, tag), ready_sequence=ready)


def queued(policy: Policy, *calls: CallFacts) -> Policy:
    """The policy with these calls in its queue, after their applications have arrived."""
    policy.pool_changed(1000, 10)
    for application in {one.application.application_id: one.application for one in calls}.values():
        policy.application_arrived(application)
    for one in calls:
        policy.add(one)
    return policy


def emptied(policy: Policy) -> list[CallKey]:
    order = []
    while (key := policy.head()) is not None:
        order.append(key)
        policy.remove(key)
    return order


def granted(policy: Policy, *calls: CallFacts) -> list[CallKey]:
    """The order in which these calls are granted, one after another, each before the next ends."""
    facts = {one.key: one for one in calls}
    order = []
    while (key := policy.head()) is not None:
        order.append(key)
        policy.granted(facts[key], "r")
        policy.remove(key)
    return order


# ---- what it says of itself


@every_policy
def test_it_is_registered_under_its_name_with_its_source(name: str) -> None:
    policy = create_policy(name)
    assert policy.name == name
    assert POLICIES[name] is type(policy)
    assert policy.summary
    assert policy.paper
    assert all(isinstance(need, Need) for need in policy.needs)
    assert create_policy(name) is not policy


@every_policy
def test_its_file_says_the_rule_the_law_and_the_complexity(name: str) -> None:
    module = sys.modules[POLICIES[name].__module__]
    assert module.__name__ == f"scheduler.policies.{name}"
    text = inspect.getdoc(module) or ""
    assert "efining property" in text
    assert "O(" in text


@every_policy
def test_it_looks_at_no_other_policy(name: str) -> None:
    source = inspect.getsource(sys.modules[POLICIES[name].__module__])
    others = [f"scheduler.policies.{other} " for other in POLICIES if other != name]
    assert [other for other in others if f"from {other}" in source] == []


@every_policy
def test_it_says_whether_it_follows_the_progress_of_calls(name: str) -> None:
    policy = POLICIES[name]
    assert policy.follows_service or policy.progressed is Policy.progressed


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"known: .*fcfs.*justitia"):
        create_policy("lifo")


@every_policy
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"policy '{name}' has no option 'colour'; it has: "):
        create_policy(name, {"colour": 1})


@every_policy
def test_options_take_numbers_and_names_of_cost_functions(name: str) -> None:
    for option, parameter in inspect.signature(POLICIES[name]).parameters.items():
        with pytest.raises(ValueError, match=option if option != "cost" else "no cost function 'x'; known: kv_time"):
            create_policy(name, {option: "x"})
        if option == "cost":
            create_policy(name, {"cost": "profile"})
        else:
            assert isinstance(parameter.default, int | float)
            create_policy(name, {option: parameter.default})


# ---- the queue


@every_policy
def test_head_is_none_exactly_when_nothing_waits(name: str) -> None:
    policy = create_policy(name)
    assert policy.head() is None
    calls = [waiting(app, ready, tag) for app, ready, tag in [(1, 1, 5.0), (1, 2, 5.0), (2, 3, 1.0)]]
    queued(policy, *calls)
    assert set(emptied(policy)) == {one.key for one in calls}
    assert policy.head() is None


@every_policy
@given(calls=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3).map(float)), min_size=1, max_size=20))
@settings(deadline=None, max_examples=30)
def test_asking_changes_nothing(name: str, calls: list[tuple[int, float]]) -> None:
    facts = [waiting(app, ready, tag) for ready, (app, tag) in enumerate(calls)]
    asking, silent = create_policy(name), create_policy(name)
    for policy in (asking, silent):
        queued(policy, *facts)
    order = []
    while (key := asking.head()) is not None:
        for one in facts:
            asking.priority(one)
        asking.preferred_replica(key)
        assert asking.head() == key == silent.head()
        order.append(key)
        for policy in (asking, silent):
            policy.granted(next(one for one in facts if one.key == key), "r")
            policy.remove(key)
    assert len(order) == len(facts)


@every_policy
def test_strangers_are_ignored(name: str) -> None:
    policy = create_policy(name)
    policy.remove(CallKey("nobody", "c"))
    policy.application_changed(asked(7, 3.0))
    policy.application_left(asked(7))
    queued(policy, waiting(1, 1))
    policy.remove(CallKey("a1", "another"))
    policy.remove(CallKey("a9", "c1"))
    policy.application_changed(asked(7, 0.0))
    assert emptied(policy) == [CallKey("a1", "c1")]
    policy.remove(CallKey("a1", "c1"))
    assert policy.head() is None


@every_policy
def test_a_call_that_runs_already_is_heard_of(name: str) -> None:
    """A policy that is chosen while the system runs never saw the call wait."""
    policy = queued(create_policy(name), waiting(1, 2))
    running = waiting(1, 1)
    policy.granted(running, "r")
    policy.progressed(running, (3,))
    assert policy.head() == CallKey("a1", "c2")
    policy.ended(running, (5,), True)
    assert emptied(policy) == [CallKey("a1", "c2")]


@every_policy
@given(order=st.permutations(range(8)))
@settings(deadline=None, max_examples=30)
def test_ties_leave_in_order_of_readiness(name: str, order: list[int]) -> None:
    """Eight children of one application, all with one tag."""
    calls = [waiting(1, ready) for ready in order]
    policy = queued(create_policy(name), *calls)
    assert granted(policy, *calls) == [CallKey("a1", f"c{ready}") for ready in range(8)]


@orderly
def test_twenty_eight_applications_in_one_tick_leave_in_order_of_arrival(name: str) -> None:
    calls = [waiting(number, number, 7.0) for number in random.Random(3).sample(range(28), 28)]
    policy = queued(create_policy(name), *calls)
    assert [key.application_id for key in granted(policy, *calls)] == [f"a{number}" for number in range(28)]


@every_policy
@given(tags=st.lists(st.floats(-1e20, 1e20), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_priority_is_the_order_as_a_bounded_integer_or_nothing(name: str, tags: list[float]) -> None:
    calls = [waiting(number, number, tag) for number, tag in enumerate(tags)]
    policy = queued(create_policy(name), *calls)
    priority = {one.key: policy.priority(one) for one in calls}
    numbers = [value for value in priority.values() if value is not None]
    assert all(type(value) is int and 0 <= value <= MAX_PRIORITY for value in numbers)
    assert len(numbers) in (0, len(calls))
    in_order = [priority[key] for key in emptied(policy)]
    assert not numbers or in_order == sorted(in_order, key=lambda value: value or 0)


# ---- on the whole core: random crowds


@every_policy
@in_both_flows
@pytest.mark.parametrize("seed", range(2))
def test_two_runs_are_identical(name: str, flows: Flows, seed: int) -> None:
    assert run_crowd(name, seed, flows=flows).actions == run_crowd(name, seed, flows=flows).actions


@every_policy
@pytest.mark.parametrize("tenant_level", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_everything_ends_once(name: str, tenant_level: bool, seed: int) -> None:
    bench = run_crowd(name, seed, tenant_level=tenant_level)
    for kind in (PublishCompletion, PublishAudit):
        counts = Counter(action.record.application_id for action in bench.all(kind))
        assert counts == {f"a{number}": 1 for number in range(12)}


@every_policy
@pytest.mark.parametrize("before", ["fcfs", "justitia"])
def test_it_takes_over_while_calls_wait_and_run(name: str, before: str) -> None:
    """All that waited and ran before a change of policy ends after it."""
    bench = Bench(before)
    bench.join(max_sequences=3)
    for number in range(6):
        bench.arrive_ready(f"a{number}", call("x"), call("y"), call("z", after=("x", "y")), tenant=f"t{number % 2}")
    running = bench.offer(grants=64)
    bench.start(*running)
    bench.handle(SettingsChanged(CoreSettings(flows=Flows.TENANTS), name))
    while bench.core.applications:
        running += bench.offer(grants=64)
        bench.finish(running.pop(0))
        running += bench.latest(Grant)
    clean_state(bench.core)
    assert len(bench.all(PublishCompletion)) == 6


@every_policy
def test_a_call_that_was_lost_goes_first_in_its_application(name: str) -> None:
    """Started, evicted, and back at its old place; its tag stays and the evictions are counted."""
    bench = Bench(name)
    bench.join()
    bench.arrive_ready("a", *[call(str(number), p=10, d=10) for number in range(3)])
    tag = bench.app("a").finish_tag
    for _ in range(2):
        (grant,) = bench.offer()
        assert grant.call_id == "0"
        bench.start(grant)
        bench.handle(CallLost(grant.lease_id, "evicted"))
        assert bench.app("a").finish_tag == tag
    assert [bench.offer()[0].call_id for _ in range(3)] == ["0", "1", "2"]
    assert bench.state_of("a", "0").attempts == 3


@every_policy
def test_never_more_in_flight_than_there_is_room_for(name: str) -> None:
    """Fifty at once, room for four, and an engine that is always well."""
    bench = Bench(name)
    bench.join(max_sequences=4)
    costs = [((number * 7) % 50) + 1 for number in range(50)]
    for number, d in enumerate(costs):
        bench.arrive_ready(f"a{number}", call(p=5, d=d, most=1000))
    assert bench.core.ready_calls == 50
    running: list[Grant] = []
    while bench.core.applications:
        running += bench.offer(grants=64)
        assert len(bench.core.leases) == len(running) <= 4
        assert bench.core.ready_calls == 50 - len(bench.all(Grant))
        done = running.pop(0)
        bench.finish(done, 5, (costs[int(done.application_id[1:])],))
    assert len(bench.all(Grant)) == 50


def footprint(thing: object, seen: set[int] | None = None) -> int:
    """Entries of all containers that a policy holds, directly or not."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | int | float | type) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        return len(thing) + sum(footprint(item, seen) for pair in thing.items() for item in pair)
    if isinstance(thing, list | tuple | set | frozenset):
        return len(thing) + sum(footprint(item, seen) for item in thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    parts = [getattr(thing, name, None) for name in slots] + list(getattr(thing, "__dict__", {}).values())
    return sum(footprint(part, seen) for part in parts)


@every_policy
@in_both_flows
def test_what_was_cancelled_leaves_the_queue_and_the_reference(name: str, flows: Flows) -> None:
    """Five hundred give up behind one long application; the next one is next, and nothing of them is kept."""
    bench = Bench(name, check_each=False, flows=flows)
    bench.join(max_sequences=1)
    bench.arrive_ready("long", call(p=10, d=50))
    (grant,) = bench.offer()
    bench.start(grant)
    before = footprint(bench.core.policy)
    for number in range(500):
        bench.arrive_ready(f"a{number}", call(p=10, d=10), tenant=f"t{number}")
    assert (bench.core.ready_calls, bench.core.reference.active_weight) == (500, 501.0)
    for number in range(500):
        bench.handle(ApplicationCancelled(f"a{number}", "queue timeout"))
    assert (bench.core.ready_calls, bench.core.reference.active_weight) == (0, 1.0)
    assert footprint(bench.core.policy) <= before + MOST_LEFT
    bench.arrive_ready("normal", call(p=10, d=10))
    bench.finish(grant, 10, (50,))
    assert [g.application_id for g in bench.offer()] == ["normal"]


MOST_LEFT = 700
"""Stale entries of a few heaps, each of which may keep 64 beside the live ones."""


@every_policy
@in_both_flows
def test_nothing_is_kept_of_those_who_came_and_went(name: str, flows: Flows) -> None:
    """Two thousand applications of as many tenants, one at a time, beside one that never ends."""
    bench = Bench(name, check_each=False, flows=flows)
    bench.join(max_sequences=4)
    bench.arrive("stays", open=True, tenant="stays")
    sizes = []
    for number in range(2000):
        bench.arrive_ready(f"a{number}", call(p=10, d=10), tenant=f"t{number}")
        (grant,) = bench.offer()
        bench.serve(155.0)
        bench.finish(grant)
        sizes.append(footprint(bench.core.policy) if number % 1000 == 999 else 0)
    assert sizes[1999] <= sizes[999] + MOST_LEFT


@every_policy
def test_time_that_steps_back_or_jumps_breaks_nothing(name: str) -> None:
    """60 s back, the same moment again, an hour ahead."""
    bench = Bench(name, reservation_timeout_s=10)
    bench.join()
    bench.now_s = 100.0
    bench.arrive_ready("a", call(p=10, d=10))
    bench.arrive_ready("b", call(p=10, d=10))
    (grant,) = bench.offer()
    bench.start(grant)
    before = bench.core.virtual_time
    bench.handle(TimePassed(), after_s=-60.0)
    bench.serve(10.0)
    assert bench.core.now_s == 100.0
    bench.serve(0.0)
    passed = bench.core.virtual_time - before
    assert passed in (0.0, 5.0)  # under another cost function than the engines count in, nothing was seen to be made
    bench.handle(TimePassed(), after_s=3660.0)
    assert set(bench.core.applications) == {"a", "b"}
    assert len(bench.core.reference) == 2
    assert bench.core.virtual_time == before + passed
    bench.finish(grant)
    assert bench.offer()[0].application_id != grant.application_id


# ---- choosing one


def test_the_tenant_level_stands_above_all_policies_but_those_that_share_among_tenants() -> None:
    for name, policy in POLICIES.items():
        assert isinstance(choose_policy(name, CoreSettings()), TenantLevel)
        chosen = choose_policy(name, CoreSettings(flows=Flows.TENANTS))
        assert chosen.name == name
        assert (type(chosen) is policy) == policy.shares_among_flows
        assert type(choose_policy(name, CoreSettings(tenant_level=False))) is policy


@every_policy
@pytest.mark.parametrize("flows", Flows)
def test_calls_say_as_whom_they_share(name: str, flows: Flows) -> None:
    bench = Bench(name, flows=flows, tenant_weights=(("gold", 4.0),))
    bench.arrive_ready("a", call(), tenant="gold", weight=2.0)
    facts = bench.state_of("a", "c").facts
    assert facts is not None
    expected = {Flows.TENANTS: ("gold", 4.0), Flows.APPLICATIONS: ("a", 2.0)}
    assert (facts.flow, facts.flow_weight) == expected[flows]
    assert facts.application.tenant_weight == 4.0


def test_options_reach_the_policy() -> None:
    for name, policy in POLICIES.items():
        for option, parameter in inspect.signature(policy).parameters.items():
            value = "linear" if option == "cost" else parameter.default
            chosen = choose_policy(name, replace(CoreSettings(), policy_options=((option, value),)))
            assert chosen.name == name
