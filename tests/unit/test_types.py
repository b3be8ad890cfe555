from dataclasses import FrozenInstanceError, replace

import pytest

from scheduler.types import MAX_COST, MAX_TOKENS, ApplicationRecord
from tests.scheduling import application, call, limits


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", -1),
        ("prompt_tokens", MAX_TOKENS + 1),
        ("prompt_tokens", float("nan")),
        ("max_output_tokens", 0),
        ("max_output_tokens", 9223372036854775808),
        ("predicted_output_tokens", 0),
        ("predicted_output_tokens", 161),
        ("sequences", 0),
        ("sequences", 10**9),
    ],
)
def test_a_call_outside_its_limits_names_the_field(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} must lie in"):
        replace(call(), **{field: value})


def test_a_call_names_a_dependency_once() -> None:
    with pytest.raises(ValueError, match="names a dependency twice"):
        call("c", after=["a", "b", "a"])


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e309, float("nan"), 1e-7, 1e7])
def test_a_weight_outside_its_limits_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must lie in"):
        application("a", weight=weight)


@pytest.mark.parametrize("cost", [0.0, -3.0, float("nan"), float("inf"), 1e300])
def test_a_cost_that_is_no_cost_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="predicted_cost must lie in"):
        application("a", predicted_cost=cost)
    assert application("a", predicted_cost=MAX_COST).predicted_cost == MAX_COST


@pytest.mark.parametrize("field", ["blocks", "block_tokens", "max_model_len", "max_sequences"])
def test_an_engine_has_room(field: str) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        limits(**{field: 0})


def test_the_pool_is_blocks_times_their_size() -> None:
    assert limits(blocks=459, block_tokens=16).pool_tokens == 7344


def test_facts_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        call().prompt_tokens = 3  # type: ignore[misc]


def test_a_record_measures_itself() -> None:
    record = ApplicationRecord(
        application_id="a",
        application_type="t",
        tenant="d",
        weight=1.0,
        outcome="finished",
        arrival_s=10.0,
        finish_s=50.0,
        predicted_cost=1.0,
        true_cost=1.0,
        finish_tag=1.0,
        calls=1,
    )
    assert (record.completion_s, record.lag_s, record.bound_violated) == (40.0, None, False)
    assert replace(record, gps_finish_s=60.0, bound_s=50.0).lag_s == -10.0
    assert not replace(record, gps_finish_s=60.0, bound_s=50.0).bound_violated
    assert replace(record, gps_finish_s=20.0, bound_s=49.0).bound_violated
