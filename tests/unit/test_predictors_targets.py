"""Costs into a model and out of it: limited, replaced."""

import math

import pytest
from numpy.testing import assert_allclose

from predictors.targets import CEILING, FLOOR, clean_costs, cost_of, within_limits


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
