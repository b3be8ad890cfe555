"""The delay bound of Justitia, checked on the whole core with sums that the core does not do.

Where every call of everybody is ready at its application's arrival:

    f − f_GPS ≤ 2·D_max

with f the real finish, f_GPS the finish in the fluid system that is fed with the service that was delivered, and D_max
the longest call that ran during the application's life. Why: let t be the last grant of a call with a larger tag before
the application's own last grant. What was granted since arrived after t, with tags no larger, so fair sharing has to
serve it by f_GPS too; beside it the pool serves what ran at t, for at most D_max; and the last call itself lasts at
most D_max (Parekh and Gallager 1993 with a pool for a link; Justitia, arXiv:2510.17015, section 4).

For an application in stages:

    f ≤ max(f_GPS, arrival + critical path) + (stages + 1)·D_max

Conditions, each of which the argument uses:
- late binding: free memory anywhere goes to the smallest tag;
- small calls: a head that does not fit leaves free less than its own size, so that a backlogged pool serves at a
  rate that is nearly even (`test_large_calls_break_it`);
- true costs: the reference serves what the engines will;
- ready calls: where others have stages, t may lie anywhere, since nobody could run the smaller tag's later calls when
  the pool was free. Then the second form is no theorem either, not even for an application of one call
  (`test_stages_of_others_can_make_anyone_late`); crowds without a plot against it keep it, as the numbers show.
"""

from __future__ import annotations

from statistics import mean

import pytest

from scheduler.applications import Application
from scheduler.fairness import Fairness
from scheduler.gps import ReferenceFinish
from scheduler.types import CallSpec
from tests.property.closed_loop import ClosedLoop
from tests.scheduling import application, call
from tests.theory.crowds import (
    LONGEST_S,
    POOL_TOKENS,
    Outcome,
    Workload,
    crowd,
    outcomes,
    serve,
    share_that_waited,
)

CROWDS = {(1, False): (240, 100), (3, False): (30, 300), (1, True): (60, 200), (3, True): (6, 1000)}
"""(replicas, in stages): how many crowds, of how many applications."""
ROUNDING_S = 1e-6


def test_there_are_enough_of_them() -> None:
    assert sum(crowds * count for crowds, count in CROWDS.values()) >= 50_000


@pytest.mark.no_cover
@pytest.mark.parametrize(("replicas", "staged"), CROWDS)
def test_nobody_in_a_crowd_finishes_later_than_the_bound(replicas: int, staged: bool) -> None:
    waiting: list[float] = []
    closest = -float(LONGEST_S)
    crowds, count = CROWDS[replicas, staged]
    for seed in range(crowds):
        loop = serve(crowd(seed, count=count, replicas=replicas, staged=staged), replicas=replicas)
        for outcome in outcomes(loop):
            late = outcome.late_in_stages if staged else outcome.late
            assert late <= ROUNDING_S, (seed, outcome)
            closest = max(closest, late / outcome.longest_call)
        assert (loop.bench.core.audit.violations, loop.bench.core.audit.audited) == (0, count)
        assert loop.overcommitted == 0
        waiting.append(share_that_waited(loop))
    assert mean(waiting) > 0.5
    assert staged or closest > -1.5  # within one longest call and a half of the bound


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("staged", [False, True])
def test_the_audit_says_what_exact_sums_say(replicas: int, staged: bool) -> None:
    """f_GPS in fractions; bound and lag of the audit follow from it, path, stages and longest call.

    Replicas report one after another at the end of a second, so that with several of them the core dates what the
    reference finished inside that second up to a second later.
    """
    for seed in range(12):
        loop = serve(crowd(seed, count=24, replicas=replicas, staged=staged), replicas=replicas)
        for exact, floating in zip(outcomes(loop, exact=True), outcomes(loop), strict=True):
            record = exact.record
            assert floating.gps_finish == pytest.approx(exact.gps_finish, abs=ROUNDING_S)
            assert (exact.late_in_stages if staged else exact.late) <= ROUNDING_S
            assert record.gps_finish_s is not None
            assert -ROUNDING_S <= record.gps_finish_s - exact.gps_finish <= (replicas > 1) + ROUNDING_S
            assert (record.arrival_s, record.finish_s) == (exact.arrival, exact.finish)
            fair = max(record.gps_finish_s, exact.arrival + exact.path)
            assert record.bound_s == pytest.approx(fair + (exact.stages + 1) * exact.longest_call)
            assert record.true_cost == record.predicted_cost


def test_one_tenant_under_the_tenant_level_keeps_the_bound() -> None:
    for seed in range(5):
        loop = serve(crowd(seed), tenant_level=True)
        flat = serve(crowd(seed))
        assert max(outcome.late for outcome in outcomes(loop)) <= ROUNDING_S
        assert loop.starts == flat.starts


# ---- the wrong clock


def complete_and_leave(self: Fairness, application: Application, longest_running_s: float) -> None:
    """What looks right: who has really ended is no longer active."""
    right_complete(self, application, longest_running_s)
    if application.sequence in self.reference:
        self.reference.remove(application.sequence)
        self._note([ReferenceFinish(application.sequence, application.last_end_s)])


right_complete = Fairness.complete


def test_a_reference_that_drops_applications_at_their_real_end_breaks_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V then runs ahead of fair sharing, and small ones that come late stand behind large ones that should be done."""
    seeds = range(12)
    kept = [serve(crowd(seed)) for seed in seeds]
    monkeypatch.setattr(Fairness, "complete", complete_and_leave)
    broken = [serve(crowd(seed)) for seed in seeds]
    assert late_ones(kept) == []
    assert len(late_ones(broken)) >= 5
    assert max(outcome.late for outcome in late_ones(broken)) > 2 * ROUNDING_S + 1


def late_ones(loops: list[ClosedLoop]) -> list[Outcome]:
    return [outcome for loop in loops for outcome in outcomes(loop) if outcome.late > ROUNDING_S]


# ---- where the conditions do not hold


def elephant(name: str, seconds: int, *after: str, tokens: int = 4) -> list[CallSpec]:
    """Calls that keep the whole pool busy for about so long."""
    cost = 2 * sum(40 + step for step in range(1, tokens + 1))
    count = seconds * POOL_TOKENS // cost
    return [call(f"{name}{number}", 40, tokens, n=2, after=after) for number in range(count)]


def chain(length: int, tokens: int) -> list[CallSpec]:
    return [call(str(n), 5, tokens, after=[str(n - 1)] if n else []) for n in range(length)]


def test_a_chain_cannot_keep_the_plain_form() -> None:
    """Ten calls one after another last ten times as long as one; half the pool would have served them in 4 s."""
    workload: Workload = [
        (0, application("chain", *chain(10, LONGEST_S))),
        (0, application("elephant", *elephant("e", 150))),
    ]
    outcome = outcomes(serve(workload))[0]
    assert outcome.finish == outcome.path == 10 * LONGEST_S
    assert outcome.gps_finish < 4
    assert outcome.late > 6 * LONGEST_S
    assert outcome.late_in_stages <= 0


def test_stages_of_others_can_make_anyone_late() -> None:
    """A narrow beginning of 80 s, then wide; meanwhile another has the pool, and fair sharing has served the wide part.

    The single call that comes then has the larger tag, and waits for what the reference says is done.
    """
    narrow = chain(20, 4)
    workload: Workload = [
        (0, application("other", *elephant("o", 100))),
        (0, application("hourglass", *narrow, *elephant("h", 25, "19"))),
        (80, application("single", call("c", 5, 4))),
    ]
    loop = serve(workload)
    single = outcomes(loop)[2]
    assert (single.stages, single.path, single.longest_call) == (1, 4, 4)
    assert single.gps_finish < 85
    assert single.late_in_stages > 3 * single.longest_call
    assert single.record.bound_violated
    assert loop.bench.core.audit.violations >= 1


def test_large_calls_break_it() -> None:
    """A head as large as the pool waits until that is empty, and nothing else is let in beside it.

    Long narrow and short wide calls by turns leave most of the pool unused, while the reference counts what was
    served just before at full rate, most of it, for the application that is to make do with this.
    """
    by_turns = [call(str(n), 1, LONGEST_S) if n % 2 == 0 else call(str(n), POOL_TOKENS - 24, 1) for n in range(12)]
    workload: Workload = [
        (0, application("small calls", *elephant("e", 100, tokens=LONGEST_S), weight=0.1)),
        (1, application("large calls", *by_turns)),
    ]
    outcome = outcomes(serve(workload))[1]
    assert outcome.longest_call == LONGEST_S
    assert outcome.late > 3 * LONGEST_S


def test_a_mouse_announced_as_an_elephant_is_late_and_the_audit_says_so() -> None:
    """Costs that are not true: its tag lets everybody pass, and its true cost comes to light at its end."""
    workload: Workload = [
        (0, application("overstated", call("c", 40, 200))),
        *[(0, application(f"mouse{n}", *elephant("m", 1))) for n in range(60)],
    ]
    loop = serve(workload, {("overstated", "c"): 2})
    outcome = outcomes(loop)[0]
    assert outcome.late > 4 * outcome.longest_call
    assert outcome.record.bound_violated
    assert outcome.record.gps_finish_s == pytest.approx(outcome.gps_finish, abs=ROUNDING_S)
