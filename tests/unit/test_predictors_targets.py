"""Costs into a model and out of it: limited, replaced, counted."""

import math

import pytest
from numpy.testing import assert_allclose

from predictors.targets import CEILING, FLOOR, ReplacementCounter, clean_costs, cost_of, geometric_mean, within_limits


def test_what_is_no_cost_is_left_out_and_counted() -> None:
    found = clean_costs([100.0, math.nan, math.inf, -math.inf, -3.0, 0.0, 1e300, 0.5])
    assert found.kept.tolist() == [True, False, False, False, False, False, True, True]
    assert_allclose(found.logs, [math.log(100), math.log(CEILING), math.log(FLOOR)])
    assert (found.not_finite, found.not_positive, found.clipped) == (3, 2, 2)


@pytest.mark.parametrize(
    ("log_cost", "cost", "replaced"),
    [
        (math.log(50), 50.0, False),
        (math.nan, 7.0, True),
        (math.inf, CEILING, True),
        (-math.inf, FLOOR, True),
        (1e300, CEILING, True),
        (-3.0, FLOOR, True),
    ],
)
def test_a_cost_is_always_within_limits(log_cost: float, cost: float, replaced: bool) -> None:
    found, was_replaced = cost_of(log_cost, fallback=7.0)
    assert found == pytest.approx(cost)
    assert was_replaced is replaced


def test_a_fallback_is_limited_too() -> None:
    assert cost_of(math.nan, fallback=math.nan) == (FLOOR, True)
    assert within_limits(1e300) == CEILING


def test_replacements_are_counted_by_type() -> None:
    counter = ReplacementCounter()
    for kind, replaced in (("a", True), ("a", False), ("b", True), ("a", True)):
        counter.note(kind, replaced)
    assert (counter.predictions, counter.replaced, counter.by_type) == (4, 3, {"a": 2, "b": 1})


def test_geometric_mean() -> None:
    assert geometric_mean([10, 1000]) == pytest.approx(100)
    assert geometric_mean([]) == FLOOR
