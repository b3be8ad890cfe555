"""Faults that people met in schedulers like this one: where it takes the whole core to show that it is free of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from scheduler.actions import Action, Grant, PublishAudit
from scheduler.events import CallLost, Event, ProgressReported
from scheduler.tenants import TenantLevel
from tests.property.closed_loop import ClosedLoop
from tests.scheduling import Bench, application, call, clean_state
from tests.theory.crowds import BLOCK_TOKENS, BLOCKS, LONGEST_S, Outcome, Workload, crowd, outcomes, serve

ROUNDING_S = 1e-6


# ---- equals


def twins(count: int = 28) -> Bench:
    """So many applications of eight equal calls in one tick, served to the end by four slots."""
    bench = Bench()
    bench.join(max_sequences=4)
    for number in range(count):
        bench.arrive_ready(f"a{number}", *[call(f"sample{sample}", p=10, d=10) for sample in range(8)])
    assert len({bench.app(f"a{number}").finish_tag for number in range(count)}) == 1
    running: list[Grant] = []
    while bench.core.applications:
        running += bench.offer(grants=64)
        bench.finish(running.pop(0))
        running += bench.latest(Grant)
    return bench


def test_equal_applications_of_equal_calls_start_in_order_of_arrival_in_every_run() -> None:
    bench = twins()
    started = [(grant.application_id, grant.call_id) for grant in bench.all(Grant)]
    assert started == [(f"a{number}", f"sample{sample}") for number in range(28) for sample in range(8)]
    assert twins().actions == bench.actions


def test_an_evicted_call_goes_before_equals_that_never_started() -> None:
    """400 tokens in, it is evicted: its tag stays, and it is first again; the others keep the order of arrival."""
    bench = Bench(max_attempts=3)
    bench.join(max_sequences=1)
    for name in ("first", "second", "third"):
        bench.arrive_ready(name, call(p=10, d=500))
    tag = bench.app("first").finish_tag
    for attempt in (1, 2):
        (grant,) = bench.offer()
        assert (grant.application_id, bench.state_of("first", "c").attempts) == ("first", attempt)
        bench.start(grant)
        bench.handle(ProgressReported("r", 0.0, 400, 410, ((grant.lease_id, (400,)),)))
        bench.handle(CallLost(grant.lease_id, "evicted"))
        bench.arrive_ready(f"later{attempt}", call(p=10, d=500))
        assert bench.app("first").finish_tag == tag
    order = []
    while bench.core.applications:
        (grant,) = bench.offer()
        order.append(grant.application_id)
        bench.finish(grant, 10, (500,))
    assert order == ["first", "second", "third", "later1", "later2"]
    assert bench.all(PublishAudit)[0].record.bound_s is None  # it was disturbed


def test_of_equal_tags_the_evicted_one_is_first_although_it_arrived_later() -> None:
    bench = Bench()
    bench.join(max_sequences=1)
    bench.arrive("early", call(p=10, d=500))
    bench.arrive_ready("late", call(p=10, d=500))
    (grant,) = bench.offer()
    assert grant.application_id == "late"
    bench.start(grant)
    bench.ready("early", call(p=10, d=500))
    bench.handle(CallLost(grant.lease_id, "evicted"))
    assert bench.app("early").finish_tag == bench.app("late").finish_tag
    order = []
    for _ in range(2):
        (grant,) = bench.offer()
        order.append(grant.application_id)
        bench.finish(grant, 10, (500,))
    assert order == ["late", "early"]


def test_an_application_whose_evicted_call_runs_again_has_no_precedence_left() -> None:
    bench = Bench()
    bench.join(max_sequences=1)
    bench.arrive("early", call(p=10, d=500), call("other", p=10, d=500))
    bench.arrive_ready("late", call(p=10, d=500), call("other", p=10, d=500))
    (grant,) = bench.offer()
    assert grant.application_id == "late"
    bench.start(grant)
    bench.ready("early", call(p=10, d=500))
    bench.handle(CallLost(grant.lease_id, "evicted"))
    order = []
    for _ in range(3):
        (grant,) = bench.offer()
        order.append((grant.application_id, grant.call_id))
        bench.finish(grant, 10, (500,))
    assert order == [("late", "c"), ("early", "c"), ("late", "other")]


# ---- a full house


def test_a_mouse_waits_for_one_call_of_the_elephant_that_holds_everything() -> None:
    workload: Workload = [
        (0, application("elephant", *[call(str(n), 40, LONGEST_S) for n in range(60)])),
        (5, application("mouse", call("c", 200, 2))),
    ]
    loop = serve(workload)
    began, ended = loop.ran["mouse", "c"]
    assert 5 < began <= 5 + LONGEST_S
    assert [start for start, name, _ in loop.starts if name == "elephant" and 5 <= start < began] == []
    assert loop.bench.core.audit.violations == 0
    assert ended == began + 2


# ---- an elephant and many mice


def elephant_and_mice(mice: int) -> Workload:
    """200 calls, then a mouse a second, which asks for about half of the pool."""
    elephant = application("elephant", *[call(f"map{n}", 20, 6) for n in range(200)], tenant="theirs")
    small = [application(f"m{n}", *[call(str(i), 20, 3) for i in range(6)], tenant="ours") for n in range(mice)]
    return [(0, elephant), *((1 + second, mouse) for second, mouse in enumerate(small))]


@pytest.mark.parametrize("mice", [100, 300, 500])
def test_nobody_starves_an_elephant_in_the_flat_order(mice: int) -> None:
    """However many mice are to come: it ends by its time under fair sharing and two longest calls, and so do they."""
    elephant, *others = outcomes(serve(elephant_and_mice(mice)))
    assert elephant.late <= ROUNDING_S
    assert elephant.record.lag_s is not None
    assert elephant.record.lag_s <= 2 * 6
    assert max(mouse.late for mouse in others) <= ROUNDING_S


def test_an_elephants_time_is_flat_in_the_number_of_another_tenants_mice() -> None:
    def seconds(mice: int) -> int:
        return outcomes(serve(elephant_and_mice(mice), tenant_level=True))[0].finish

    alone, hundred, many, most = (seconds(mice) for mice in (0, 100, 300, 500))
    assert hundred == many == most
    assert alone < hundred <= 2.2 * alone


# ---- demand that comes and goes


def uneven_streams(change_s: int = 60, end_s: int = 120) -> Workload:
    """Tenant a asks for less than its half without a gap, then for twice its half; b for its half all along."""
    return [
        (
            second,
            application(f"{tenant}{second}", *[call(str(n), 20, 3) for n in range(calls)], tenant=tenant),
        )
        for second in range(end_s)
        for tenant, calls in (("a", 3 if second < change_s else 10), ("b", 5))
    ]


def slowest_of_b(found: list[Outcome], begin_s: int, end_s: int) -> int:
    return max(o.finish - o.arrival for o in found if o.record.tenant == "b" and begin_s <= o.arrival < end_s)


def test_asking_for_less_than_ones_share_saves_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it did, the other tenant would pay for as long as the first had been modest."""
    found = outcomes(serve(uneven_streams(), tenant_level=True))
    before, after = slowest_of_b(found, 0, 60), slowest_of_b(found, 60, 120)
    assert after <= before + 3  # one longest call
    lags = [o.finish - o.arrival for o in found if o.record.tenant == "a" and o.arrival >= 100]
    assert min(lags) > 2 * 3  # who asks for more than its share waits for it
    monkeypatch.setattr(TenantLevel, "_start_anew_if_served", lambda self, tenant: None)
    saved_up = outcomes(serve(uneven_streams(), tenant_level=True))
    assert slowest_of_b(saved_up, 60, 120) > before + 2 * 3


# ---- clocks


@dataclass
class BadClock:
    """A wall clock that someone sets while the scheduler runs."""

    jump: Callable[[float], float]
    told: list[float] = field(default_factory=list)

    def read(self, now_s: float) -> float:
        self.told.append(self.jump(now_s))
        return self.told[-1]


class Misled(Bench):
    """A bench whose core is told the time by a bad clock."""

    def __init__(self, clock: BadClock) -> None:
        super().__init__(check_each=False, tenant_level=False)
        self.clock = clock
        self.seen = [0.0]

    def handle(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        self.last = self.core.handle(self.clock.read(self.now_s), event)
        self.actions += self.last
        self.seen.append(self.core.virtual_time)
        return self.last


def back_a_minute(now_s: float) -> float:
    return now_s - 60.0 if now_s >= 10 else now_s


def stands_still(now_s: float) -> float:
    return min(now_s, 10.0)


def ahead_an_hour(now_s: float) -> float:
    return now_s + 3600.0 if now_s >= 10 else now_s


@pytest.mark.parametrize("jump", [back_a_minute, stands_still, ahead_an_hour])
def test_whoever_sets_the_clock_changes_no_order(jump: Callable[[float], float]) -> None:
    """V follows service: whatever the clock says, the same calls start in the same order, and nobody is lost."""
    workload = crowd(3)
    bench = Misled(BadClock(jump))
    bench.join(blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
    loop = ClosedLoop(bench, workload, check_each=False)
    loop.run()
    clean_state(bench.core)
    assert loop.starts == serve(workload).starts
    assert len(set(bench.clock.told)) > 1
    assert bench.seen == sorted(bench.seen)
    records = [action.record for action in bench.all(PublishAudit)]
    assert len(records) == len(workload)
    for record in records:
        assert record.gps_finish_s is not None
        assert record.arrival_s <= min(record.finish_s, record.gps_finish_s)
