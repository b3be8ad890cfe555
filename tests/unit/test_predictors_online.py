"""Learning while it runs: what is remembered, when it is time, which model stays."""

import math
import random
from collections.abc import Sequence

import pytest

from predictors.models import Asked, PerTypeCostModel
from predictors.online import Contest, DriftDetector, Observation, RecentApplications, RetrainRule, Versions
from tests.predicting import made_up


def seen(kind: str, cost: float) -> Observation:
    return Observation(Asked(kind, "p"), cost)


def test_the_newest_of_each_type_are_remembered() -> None:
    recent = RecentApplications(max_rows=3)
    for cost in range(1, 6):
        recent.add(seen("a", cost))
    recent.add(seen("b", 9))
    assert len(recent) == 4
    assert [one.cost for one in recent.split()[0]] == [3, 4, 5, 9]


def test_the_type_that_was_silent_longest_is_forgotten() -> None:
    recent = RecentApplications(max_types=2)
    for kind in ("a", "b", "a", "c"):
        recent.add(seen(kind, 1))
    assert {one.asked.application_type for one in recent.split()[0]} == {"a", "c"}


@pytest.mark.parametrize("cost", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_cost_is_refused_and_counted(cost: float) -> None:
    recent = RecentApplications()
    assert not recent.add(seen("a", cost))
    assert (len(recent), recent.refused) == (0, 1)


def test_the_newest_fifth_of_each_type_is_held_out() -> None:
    recent = RecentApplications()
    for cost in range(1, 11):
        recent.add(seen("a", cost))
        if cost < 5:
            recent.add(seen("few", cost))
    train, held_out = recent.split()
    assert [one.cost for one in held_out] == [9, 10]
    assert len(train) == 12


@pytest.mark.parametrize(
    ("new", "known", "drifted", "due"),
    [
        (0, 0, True, False),
        (49, 0, False, False),
        (50, 0, False, True),
        (50, 1000, False, False),
        (200, 1000, False, True),
        (1, 1000, True, True),
    ],
)
def test_when_it_is_time_to_train_again(new: int, known: int, drifted: bool, due: bool) -> None:
    assert RetrainRule().due(new, known, drifted) is due


def alarms(shift_at: int, shift: float, count: int = 400, seed: int = 0, deviation: float = 0.3) -> list[int]:
    draw, detector = random.Random(seed), DriftDetector()
    return [
        place
        for place in range(count)
        if detector.update(100.0, 100 * math.exp(draw.gauss(0, deviation) + (shift if place >= shift_at else 0)))
    ]


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_a_shift_of_the_errors_is_noticed_soon(shift: float) -> None:
    found = alarms(200, shift)
    assert found
    assert 200 <= found[0] < 230


@pytest.mark.parametrize("deviation", [0.3, 0.7, 1.2])
def test_errors_that_stay_as_they_are_raise_no_alarm(deviation: float) -> None:
    found = [alarms(10_000, 0.0, count=3_000, seed=seed, deviation=deviation) for seed in range(10)]
    assert found == [[]] * 10


@pytest.mark.parametrize("cost", [math.nan, 0.0, math.inf, -1.0])
def test_drift_is_watched_through_costs_that_are_none(cost: float) -> None:
    detector = DriftDetector()
    detector.update(cost, 10.0)
    detector.update(10.0, cost)
    assert math.isfinite(detector._mean)


@pytest.mark.parametrize("parameters", [{"slack": -1}, {"threshold": 0}, {"min_count": 0}])
def test_a_detector_that_cannot_be_is_refused(parameters: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        DriftDetector(**parameters)


class Says:
    def __init__(self, cost: float) -> None:
        self.cost = cost

    def predict(self, X: Sequence[tuple[str, str]]) -> list[float]:  # noqa: N803
        return [self.cost] * len(X)


HELD_OUT = [seen("a", 100.0)] * 10


@pytest.mark.parametrize(
    ("champion", "challenger", "accepted"),
    [
        (150.0, 120.0, True),
        (120.0, 150.0, False),
        (120.0, 120.0, False),
        (math.nan, 150.0, True),
        (150, math.nan, False),
    ],
)
def test_only_a_better_model_takes_over(champion: float, challenger: float, accepted: bool) -> None:
    assert Contest().judge(Says(champion), Says(challenger), HELD_OUT).accepted is accepted


def test_a_little_better_is_not_enough_for_a_margin() -> None:
    assert not Contest(margin=0.2).judge(Says(120.0), Says(118.0), HELD_OUT).accepted


def test_too_few_applications_decide_nothing() -> None:
    verdict = Contest().judge(Says(1.0), Says(100.0), HELD_OUT[:9])
    assert not verdict.accepted
    assert "only 9" in verdict.reason


def test_one_application_far_off_does_not_decide() -> None:
    held_out = [*[seen("a", 100.0)] * 30, seen("a", 1e-6)]
    assert Contest().judge(Says(50.0), Says(100.0), held_out).accepted, "though 50 lies nearer to what lies far off"


def test_a_model_that_has_seen_a_change_beats_one_that_has_not() -> None:
    asked, costs = made_up(60, seed=1)
    changed = [cost * 5 for cost in costs]
    recent = RecentApplications()
    for one, cost in zip(asked, changed, strict=True):
        recent.add(Observation(one, cost))
    train, held_out = recent.split()
    old = PerTypeCostModel().fit(asked, costs)
    new = PerTypeCostModel().fit([one.asked for one in train], [one.cost for one in train])
    assert Contest().judge(old, new, held_out).accepted
    assert not Contest().judge(new, old, held_out).accepted


def test_versions_count_up_and_roll_back() -> None:
    versions = Versions("one", max_kept=2)
    assert [versions.promote(name) for name in ("two", "three", "four")] == [2, 3, 4]
    assert (versions.rollback(), versions.current) == (3, "three")
    assert versions.promote("five") == 5
    assert (versions.rollback(), versions.rollback(), versions.current) == (3, 2, "two")
    with pytest.raises(LookupError):
        versions.rollback()
