import pytest

from scheduler.settings import ClockMode, CoreSettings


def test_the_default_clock_is_the_service_delivered() -> None:
    assert CoreSettings().clock is ClockMode.SERVICE
    assert CoreSettings().clock_rate == 1.0


@pytest.mark.parametrize("field", ["clock_rate", "nominal_iterations_per_s", "reservation_timeout_s", "open_idle_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_and_times_are_positive_and_finite(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be positive and finite"):
        CoreSettings(**{field: value})


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_the_watermark_is_a_part(value: float) -> None:
    with pytest.raises(ValueError, match="watermark must lie in"):
        CoreSettings(watermark=value)


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_waiting_for_an_engine_ends(value: float) -> None:
    with pytest.raises(ValueError, match="engine_wait_s must be finite"):
        CoreSettings(engine_wait_s=value)
    assert CoreSettings(engine_wait_s=0).engine_wait_s == 0


@pytest.mark.parametrize("field", ["max_applications", "max_calls", "max_attempts"])
def test_limits_allow_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1"):
        CoreSettings(**{field: 0})
