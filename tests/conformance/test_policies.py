"""What every policy owes to the core, and the one property that makes each policy what it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.actions import Grant, PublishAudit, PublishCallEnd, PublishCompletion
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallCancelled,
    CallLost,
    CallReady,
    CallRevealed,
    CapacityOffered,
    ProgressReported,
    TimePassed,
)
from scheduler.policies import POLICIES, create_policy
from scheduler.policies.contract import MAX_PRIORITY, Policy, WaitingCall
from scheduler.policies.justitia import Justitia
from scheduler.types import CallKey
from tests.scheduling import Bench, application, call, clean_state

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def waiting(app: int, ready: int, tag: float = 1.0) -> WaitingCall:
    return WaitingCall(CallKey(f"a{app}", f"c{ready}"), ready, app, tag)


def emptied(policy: Policy) -> list[CallKey]:
    order = []
    while (key := policy.head()) is not None:
        order.append(key)
        policy.remove(key)
    return order


# ---- the shared contract


@every_policy
def test_it_is_registered_under_its_name_with_its_source(name: str) -> None:
    policy = create_policy(name)
    assert policy.name == name
    assert POLICIES[name] is type(policy)
    assert policy.summary
    assert policy.paper
    assert create_policy(name) is not policy


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known: fcfs, justitia"):
        create_policy("lifo")


@every_policy
def test_head_is_none_exactly_when_nothing_waits(name: str) -> None:
    policy = create_policy(name)
    assert policy.head() is None
    calls = [waiting(app, ready, tag) for app, ready, tag in [(1, 1, 5.0), (1, 2, 5.0), (2, 3, 1.0)]]
    for one in calls:
        policy.add(one)
    assert set(emptied(policy)) == {one.key for one in calls}
    assert policy.head() is None


@every_policy
@given(calls=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3).map(float)), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_asking_changes_nothing(name: str, calls: list[tuple[int, float]]) -> None:
    asked, silent = create_policy(name), create_policy(name)
    for ready, (app, tag) in enumerate(calls):
        for policy in (asked, silent):
            policy.add(waiting(app, ready, tag))
        for _ in range(3):
            asked.head()
            asked.priority(waiting(app, ready, tag))
    assert emptied(asked) == emptied(silent)


@every_policy
def test_removing_or_retagging_a_stranger_is_ignored(name: str) -> None:
    policy = create_policy(name)
    policy.remove(CallKey("nobody", "c"))
    policy.retag("nobody", 3.0)
    policy.add(waiting(1, 1))
    policy.remove(CallKey("a1", "another"))
    policy.remove(CallKey("a9", "c1"))
    policy.retag("nobody", 0.0)
    assert emptied(policy) == [CallKey("a1", "c1")]
    policy.remove(CallKey("a1", "c1"))
    assert policy.head() is None


@every_policy
@given(order=st.permutations(range(8)))
@settings(deadline=None, max_examples=50)
def test_ties_leave_in_order_of_readiness(name: str, order: list[int]) -> None:
    """Eight children of one application, all with one tag."""
    policy = create_policy(name)
    for ready in order:
        policy.add(waiting(1, ready))
    assert emptied(policy) == [CallKey("a1", f"c{ready}") for ready in range(8)]


@every_policy
def test_twenty_eight_applications_in_one_tick_leave_in_order_of_arrival(name: str) -> None:
    policy = create_policy(name)
    for number in random.Random(3).sample(range(28), 28):
        policy.add(waiting(number, number, 7.0))
    assert [key.application_id for key in emptied(policy)] == [f"a{number}" for number in range(28)]


@every_policy
@given(tags=st.lists(st.floats(-1e20, 1e20), min_size=1, max_size=20))
@settings(deadline=None, max_examples=100)
def test_priority_is_the_order_as_a_bounded_integer(name: str, tags: list[float]) -> None:
    policy = create_policy(name)
    calls = [waiting(number, number, tag) for number, tag in enumerate(tags)]
    for one in calls:
        policy.add(one)
    priority = {one.key: policy.priority(one) for one in calls}
    assert all(type(value) is int and 0 <= value <= MAX_PRIORITY for value in priority.values())
    in_order = [priority[key] for key in emptied(policy)]
    assert in_order == sorted(in_order)


@every_policy
def test_priority_tells_apart_what_the_order_tells_apart(name: str) -> None:
    policy = create_policy(name)
    first, second = waiting(1, 1, 10.0), waiting(2, 2, 20.0)
    assert policy.priority(first) < policy.priority(second)


# ---- on the whole core: random crowds


def crowd(seed: int, applications: int = 12) -> list[tuple[str, list[tuple[int, int]], float]]:
    rng = random.Random(seed)
    return [
        (
            f"a{number}",
            [(rng.randint(1, 40), rng.randint(1, 20)) for _ in range(rng.randint(1, 4))],
            rng.choice([0.5, 1.0, 2.0]),
        )
        for number in range(applications)
    ]


def run_crowd(policy: str, seed: int, watch: Callable[[Bench, Grant], None] = lambda bench, grant: None) -> Bench:
    """Arrivals, offers, progress and ends in random order; `watch` sees each grant with the core after it."""
    rng = random.Random(seed)
    bench = Bench(policy)
    bench.join(max_sequences=4)
    bench.join("s", blocks=16, max_sequences=3)
    arrivals = crowd(seed)
    lengths: dict[tuple[str, str], tuple[int, int]] = {}
    running: list[Grant] = []
    seen = 0
    while arrivals or bench.core.applications:
        choice = rng.random()
        if arrivals and choice < 0.2:
            name, calls, weight = arrivals.pop(0)
            specs = [call(str(i), p, d) for i, (p, d) in enumerate(calls)]
            lengths |= {(name, str(i)): pair for i, pair in enumerate(calls)}
            bench.arrive_ready(name, *specs, weight=weight)
        elif choice < 0.6:
            bench.handle(CapacityOffered(rng.choice("rs"), rng.randint(1, 3)), after_s=rng.random())
        elif running:
            bench.serve(rng.randint(0, 400), rng.choice("rs"))
            ended = running.pop(rng.randrange(len(running)))
            p, d = lengths[(ended.application_id, ended.call_id)]
            if rng.random() < 0.1:
                bench.handle(CallLost(ended.lease_id, "gone"))
            else:
                bench.finish(ended, p, (d,))
        for grant in bench.all(Grant)[seen:]:
            running.append(grant)
            watch(bench, grant)
            seen += 1
    clean_state(bench.core)
    return bench


@every_policy
@pytest.mark.parametrize("seed", range(5))
def test_two_runs_are_identical(name: str, seed: int) -> None:
    assert run_crowd(name, seed).actions == run_crowd(name, seed).actions


@every_policy
@pytest.mark.parametrize("seed", range(5))
def test_everything_ends_once(name: str, seed: int) -> None:
    bench = run_crowd(name, seed)
    for kind in (PublishCompletion, PublishAudit):
        counts = Counter(action.record.application_id for action in bench.all(kind))
        assert counts == {f"a{number}": 1 for number in range(12)}


@every_policy
def test_a_call_that_was_lost_goes_first_among_its_equals(name: str) -> None:
    """Started, evicted, and back at its old place; its tag stays and the evictions are counted."""
    bench = Bench(name)
    bench.join()
    for app in ("a", "b", "c"):
        bench.arrive_ready(app, call(p=10, d=10))
    tag = bench.app("a").finish_tag
    for _ in range(2):
        (grant,) = bench.offer()
        assert grant.application_id == "a"
        bench.start(grant)
        bench.handle(CallLost(grant.lease_id, "evicted"))
        assert bench.app("a").finish_tag == tag
    assert [bench.offer()[0].application_id for _ in range(3)] == ["a", "b", "c"]
    assert bench.state_of("a", "c").attempts == 3


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
    order: list[int] = []
    while bench.core.applications:
        running += bench.offer(grants=64)
        assert len(bench.core.leases) == len(running) <= 4
        assert bench.core.ready_calls == 50 - len(bench.all(Grant))
        done = running.pop(0)
        number = int(done.application_id[1:])
        order.append(number)
        bench.finish(done, 5, (costs[number],))
    by_tag = sorted(range(50), key=lambda number: costs[number])
    assert order == (by_tag if name == "justitia" else list(range(50)))


@every_policy
def test_what_was_cancelled_leaves_the_queue_and_the_reference(name: str) -> None:
    """Five hundred give up behind one long application; the next one is next, and nothing of them is kept."""
    bench = Bench(name)
    bench.join(max_sequences=1)
    bench.arrive_ready("long", call(p=10, d=50))
    (grant,) = bench.offer()
    bench.start(grant)
    for number in range(500):
        bench.core.handle(0.0, _arrival(f"a{number}"))
        bench.core.handle(0.0, CallReady(f"a{number}", "c", 10, 10))
    assert (bench.core.ready_calls, bench.core.reference.active_weight) == (500, 501.0)
    for number in range(500):
        bench.core.handle(0.2, ApplicationCancelled(f"a{number}", "queue timeout"))
    assert (bench.core.ready_calls, bench.core.reference.active_weight) == (0, 1.0)
    assert _entries(bench.core.policy) <= 200
    assert len(bench.core.reference._tags._entries) <= 70
    bench.arrive_ready("normal", call(p=10, d=10))
    bench.finish(grant, 10, (50,))
    assert [g.application_id for g in bench.offer()] == ["normal"]


def _arrival(name: str) -> ApplicationArrived:
    return ApplicationArrived(application(name, call(p=10, d=10)))


def _entries(policy: Policy) -> int:
    """Heap entries that a policy keeps, live or not."""
    if isinstance(policy, Justitia):
        return len(policy._applications._entries) + sum(len(calls._entries) for calls in policy._calls.values())
    return len(policy._waiting._entries)  # type: ignore[attr-defined]


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
    assert bench.core.virtual_time == before + 5.0
    bench.serve(0.0)
    assert bench.core.virtual_time == before + 5.0
    bench.handle(TimePassed(), after_s=3660.0)
    assert set(bench.core.applications) == {"a", "b"}
    assert len(bench.core.reference) == 2
    assert bench.core.virtual_time == before + 5.0
    bench.finish(grant)
    assert bench.offer()[0].application_id == "b"


# ---- fcfs


@pytest.mark.parametrize("seed", range(20))
def test_fcfs_starts_in_order_of_arrival(seed: int) -> None:
    """A call that was lost may start again, later than those behind it; first starts keep the order of readiness."""
    bench = run_crowd("fcfs", seed)
    first_starts = list(dict.fromkeys((grant.application_id, grant.call_id) for grant in bench.all(Grant)))
    arrived = [(name, str(i)) for name, calls, _ in crowd(seed) for i in range(len(calls))]
    assert first_starts == arrived


# ---- justitia


@pytest.mark.parametrize("seed", range(20))
def test_justitia_never_grants_past_a_smaller_tag_that_waits(seed: int) -> None:
    grants = 0

    def no_smaller_tag_waits(bench: Bench, grant: Grant) -> None:
        nonlocal grants
        grants += 1
        granted = bench.app(grant.application_id)
        waits = [a for a in bench.core.applications.values() if any(c.state == "ready" for c in a.calls.values())]
        place = (granted.finish_tag, granted.sequence)
        assert [a.application_id for a in waits if (a.finish_tag, a.sequence) < place] == []

    run_crowd("justitia", seed, no_smaller_tag_waits)
    assert grants >= 12


def test_justitia_equal_tags_start_in_order_of_arrival() -> None:
    bench = Bench()
    for number in range(20):
        bench.arrive_ready(f"a{number}", call("x", p=10, d=10), call("y", p=10, d=10))
    bench.join()
    grants = bench.offer(grants=64)
    in_order = [(f"a{number}", c) for number in range(20) for c in "xy"]
    assert [(g.application_id, g.call_id) for g in grants] == in_order[: len(grants)]
    assert len(grants) > 20


def test_justitia_pampers_the_application_that_fair_sharing_finishes_first() -> None:
    bench = Bench()
    bench.arrive_ready("large", *[call(str(i), p=20, d=20) for i in range(10)])
    bench.arrive_ready("small", *[call(str(i), p=20, d=20) for i in range(3)])
    bench.join()
    assert [g.application_id for g in bench.offer(grants=5)] == ["small"] * 3 + ["large"] * 2


def test_justitia_weight_divides_the_cost() -> None:
    bench = Bench()
    bench.arrive_ready("plain", call(p=20, d=20))
    bench.arrive_ready("heavy", call(p=20, d=40), weight=10.0)
    bench.join()
    assert [g.application_id for g in bench.offer(grants=2)] == ["heavy", "plain"]


def test_justitia_a_call_asks_not_only_for_itself() -> None:
    """The tag is the application's: a small call of a large application comes after a large call of a small one."""
    bench = Bench()
    bench.arrive_ready("large", call("tiny", p=1, d=1), *[call(str(i), p=50, d=50) for i in range(4)])
    bench.arrive_ready("small", call(p=50, d=50))
    bench.join()
    assert bench.offer()[0].application_id == "small"


def test_justitia_the_next_slot_goes_to_the_mouse() -> None:
    """Every slot is held by an elephant; the next free one is the mouse's."""
    bench = Bench()
    bench.join(max_sequences=4, blocks=4000, max_model_len=60000)
    bench.arrive_ready("elephant", *[call(str(i), p=100, d=2000) for i in range(40)])
    grants = bench.offer(grants=64)
    assert [g.application_id for g in grants] == ["elephant"] * 4
    bench.arrive_ready("mouse", call(p=10, d=10))
    assert bench.offer(grants=64) == []
    bench.finish(grants[0], 100, (2000,))
    (grant,) = bench.latest(Grant) or bench.offer(grants=64)
    assert grant.application_id == "mouse"


def test_justitia_nobody_comes_back_from_idleness_with_credit_or_debt() -> None:
    """Idle for an hour, then 200 applications at once; the others keep their places before them."""
    bench = Bench()
    bench.join(max_sequences=2)
    bench.arrive("x0", call(p=10, d=10), tenant="x")
    bench.run_one("x0", call(p=10, d=10))
    for number in range(30):
        bench.arrive(f"y{number}", call(p=10, d=10), tenant="y")
        bench.arrive(f"z{number}", call(p=10, d=10), tenant="z")
        bench.now_s += 120.0
        for name in "yz":
            bench.run_one(f"{name}{number}", call(p=10, d=10))
            bench.serve(155.0)
    bench.arrive_ready("y", call(p=10, d=10), tenant="y")
    bench.arrive_ready("z", call(p=10, d=10), tenant="z")
    now = bench.core.virtual_time
    for number in range(200):
        bench.core.handle(bench.now_s, _arrival(f"burst{number}"))
        bench.core.handle(bench.now_s, CallReady(f"burst{number}", "c", 10, 10))
    burst = [bench.app(f"burst{number}") for number in range(200)]
    assert {a.start_tag for a in burst} == {now}
    assert len({a.sequence for a in burst}) == 200
    assert [g.application_id for g in bench.offer(grants=2)] == ["y", "z"]
    bench.arrive_ready("later", call(p=10, d=9), tenant="w")
    for grant in bench.all(Grant)[-2:]:
        bench.finish(grant)
    assert bench.offer(grants=1)[0].application_id == "later"


def test_justitia_corrections_while_dequeuing_invert_nobody() -> None:
    """Ten of one size, 10 ms apart, while service is reported and one elephant overruns."""
    for seed in range(100):
        rng = random.Random(seed)
        bench = Bench()
        bench.join(max_sequences=1)
        bench.arrive_ready("elephant", call(p=10, d=5, most=400))
        (running,) = bench.offer()
        bench.start(running)
        for number in range(10):
            bench.now_s += 0.01
            bench.arrive_ready(f"a{number}", call(p=10, d=10))
            made = rng.randint(0, 300)
            bench.handle(ProgressReported("r", rng.randint(0, 60), 1, 100, ((running.lease_id, (made,)),)))
        tags = {name: app.finish_tag for name, app in bench.core.applications.items()}
        bench.finish(running, 10, (300,))
        order = []
        for _ in range(10):
            (grant,) = bench.offer()
            assert bench.app(grant.application_id).finish_tag == tags[grant.application_id]
            order.append(grant.application_id)
            bench.finish(grant)
        assert order == [f"a{number}" for number in range(10)]


def elephant_among_mice(mice: int) -> tuple[float, float]:
    """Seconds until an elephant of 40 calls ends, and its lag, with one mouse a second beside it.

    Four slots; every call holds its slot for one second.
    """
    bench = Bench()
    bench.join(max_sequences=4)
    bench.arrive_ready("elephant", *[call(str(i), p=10, d=20) for i in range(40)])
    running: list[Grant] = []
    second = 0
    while "elephant" in bench.core.applications:
        if second < mice:
            bench.arrive_ready(f"m{second}", call(p=10, d=20))
        running = bench.offer(grants=64)
        bench.handle(ProgressReported("r", len(running) * 410.0, 20, 0), after_s=1.0)
        for grant in running:
            bench.finish(grant, 10, (20,))
        bench.handle(TimePassed())
        second += 1
    for action in bench.all(PublishAudit):
        if action.record.application_id == "elephant":
            return action.record.completion_s, action.record.lag_s or 0.0
    (record,) = [a.record for a in bench.all(PublishCompletion) if a.record.application_id == "elephant"]
    return record.completion_s, 0.0


def test_justitia_an_elephant_does_not_wait_for_all_the_mice() -> None:
    """With the service clock its time is flat in the number of mice, once there are enough to fill its life."""
    alone, _ = elephant_among_mice(0)
    times = {mice: elephant_among_mice(mice) for mice in (20, 100, 500)}
    assert alone == 10.0
    assert times[100][0] == times[500][0] <= 1.5 * alone
    assert all(lag <= 2.0 for _, lag in times.values())


def test_justitia_an_open_application_keeps_one_tag_for_all_that_it_asks() -> None:
    bench = Bench()
    bench.join(max_sequences=1)
    bench.arrive("open", open=True)
    bench.arrive_ready("other", call(p=10, d=10))
    for number in range(3):
        bench.handle(CallRevealed("open", call(str(number), p=10, d=5)))
    assert bench.app("open").finish_tag == 3 * 65.0
    assert bench.app("other").finish_tag == 155.0
    bench.handle(CallCancelled("open", "2", "not needed"))
    assert bench.app("open").finish_tag == 2 * 65.0
    bench.handle(ApplicationClosed("open"))
    for number in range(2):
        bench.ready("open", call(str(number), p=10, d=5))
    order = []
    for _ in range(3):
        (grant,) = bench.offer()
        order.append(grant.application_id)
        bench.finish(grant, 10, (5,))
    assert order == ["open", "open", "other"]
    assert [a.outcome for a in bench.all(PublishCallEnd)].count("cancelled") == 1
