"""Justitia on the whole core: who starts when, and what corrections do to the order."""

from __future__ import annotations

import random

import pytest

from scheduler.actions import Grant, PublishAudit, PublishCallEnd, PublishCompletion
from scheduler.events import (
    ApplicationArrived,
    ApplicationClosed,
    CallCancelled,
    CallReady,
    CallRevealed,
    ProgressReported,
    TimePassed,
)
from tests.crowd import run_crowd
from tests.scheduling import Bench, application, call


def _arrival(name: str) -> ApplicationArrived:
    return ApplicationArrived(application(name, call(p=10, d=10)))


@pytest.mark.parametrize("seed", range(20))
def test_never_grants_past_a_smaller_tag_that_waits(seed: int) -> None:
    grants = 0

    def no_smaller_tag_waits(bench: Bench, grant: Grant) -> None:
        nonlocal grants
        grants += 1
        granted = bench.app(grant.application_id)
        waits = [a for a in bench.core.applications.values() if any(c.state == "ready" for c in a.calls.values())]
        place = (granted.finish_tag, granted.sequence)
        assert [a.application_id for a in waits if (a.finish_tag, a.sequence) < place] == []

    run_crowd("justitia", seed, no_smaller_tag_waits, tenant_level=False)
    assert grants >= 12


def test_equal_tags_start_in_order_of_arrival() -> None:
    bench = Bench()
    for number in range(20):
        bench.arrive_ready(f"a{number}", call("x", p=10, d=10), call("y", p=10, d=10))
    bench.join()
    grants = bench.offer(grants=64)
    in_order = [(f"a{number}", c) for number in range(20) for c in "xy"]
    assert [(g.application_id, g.call_id) for g in grants] == in_order[: len(grants)]
    assert len(grants) > 20


def test_pampers_the_application_that_fair_sharing_finishes_first() -> None:
    bench = Bench()
    bench.arrive_ready("large", *[call(str(i), p=20, d=20) for i in range(10)])
    bench.arrive_ready("small", *[call(str(i), p=20, d=20) for i in range(3)])
    bench.join()
    assert [g.application_id for g in bench.offer(grants=5)] == ["small"] * 3 + ["large"] * 2


def test_weight_divides_the_cost() -> None:
    bench = Bench()
    bench.arrive_ready("plain", call(p=20, d=20))
    bench.arrive_ready("heavy", call(p=20, d=40), weight=10.0)
    bench.join()
    assert [g.application_id for g in bench.offer(grants=2)] == ["heavy", "plain"]


def test_a_call_asks_not_only_for_itself() -> None:
    """The tag is the application's: a small call of a large application comes after a large call of a small one."""
    bench = Bench()
    bench.arrive_ready("large", call("tiny", p=1, d=1), *[call(str(i), p=50, d=50) for i in range(4)])
    bench.arrive_ready("small", call(p=50, d=50))
    bench.join()
    assert bench.offer()[0].application_id == "small"


def test_the_next_slot_goes_to_the_mouse() -> None:
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


def test_nobody_comes_back_from_idleness_with_credit_or_debt() -> None:
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


def test_corrections_while_dequeuing_invert_nobody() -> None:
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


def test_an_elephant_does_not_wait_for_all_the_mice() -> None:
    """With the service clock its time is flat in the number of mice, once there are enough to fill its life."""
    alone, _ = elephant_among_mice(0)
    times = {mice: elephant_among_mice(mice) for mice in (20, 100, 500)}
    assert alone == 10.0
    assert times[100][0] == times[500][0] <= 1.5 * alone
    assert all(lag <= 2.0 for _, lag in times.values())


def test_an_open_application_keeps_one_tag_for_all_that_it_asks() -> None:
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
