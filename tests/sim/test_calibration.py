"""The speed of an engine is found again from its iterations, exactly without noise and nearly with it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sim.calibration import CalibrationError, Iteration, fit, read_iterations
from scheduler.sim.engine import REFERENCE, BatchEngine, EngineProfile


def iterations(profile: EngineProfile, seed: int = 1) -> Iterator[Iteration]:
    """An engine that serves 80 calls of all sizes."""
    rng = random.Random(seed)
    engine = BatchEngine(profile)
    for number in range(80):
        engine.add(number, rng.randint(5, 400), rng.randint(5, 80))
    while not engine.idle:
        outcome = engine.step()
        yield Iteration(outcome.duration_s, outcome.sequences, outcome.prefilled_tokens)


@given(st.floats(1e-4, 0.1), st.floats(0, 1e-3), st.floats(0, 1e-3))
@settings(max_examples=30, deadline=None)
def test_what_made_the_log_is_found_again(base_s: float, per_sequence_s: float, per_prefill_token_s: float) -> None:
    profile = EngineProfile(base_s=base_s, per_sequence_s=per_sequence_s, per_prefill_token_s=per_prefill_token_s)
    fitted = fit(list(iterations(profile)))
    assert fitted.base_s == pytest.approx(base_s, rel=1e-6)
    assert fitted.per_sequence_s == pytest.approx(per_sequence_s, abs=1e-9)
    assert fitted.per_prefill_token_s == pytest.approx(per_prefill_token_s, abs=1e-9)
    assert fitted.mean_absolute_error_s < 1e-8


def test_noise_blurs_but_does_not_mislead() -> None:
    rng = random.Random(2)
    noisy = [
        Iteration(one.duration_s * rng.uniform(0.9, 1.1), one.sequences, one.prefilled_tokens)
        for seed in range(5)
        for one in iterations(REFERENCE, seed)
    ]
    fitted = fit(noisy)
    assert fitted.base_s == pytest.approx(REFERENCE.base_s, rel=0.1)
    assert fitted.per_sequence_s == pytest.approx(REFERENCE.per_sequence_s, rel=0.25)
    assert fitted.per_prefill_token_s == pytest.approx(REFERENCE.per_prefill_token_s, rel=0.05)
    assert 0.9 < fitted.r_squared < 1
    assert 0 < fitted.mean_absolute_error_s < 0.1 * fitted.mean_duration_s


def test_errors_by_hand() -> None:
    """Four corners of a square, twice: a plane that misses each by 1 ms."""
    corners = [(1, 0, 0.011), (3, 0, 0.029), (1, 10, 0.019), (3, 10, 0.041)]
    fitted = fit([Iteration(seconds, n, p) for n, p, seconds in corners] * 10)
    assert fitted.mean_duration_s == pytest.approx(0.025)
    assert fitted.per_sequence_s == pytest.approx(0.010)
    assert fitted.per_prefill_token_s == pytest.approx(0.001)
    assert fitted.base_s == pytest.approx(0.0, abs=1e-9)
    assert fitted.mean_absolute_error_s == pytest.approx(0.001)
    assert fitted.r_squared == pytest.approx(1 - 4 * 0.001**2 / (0.014**2 + 0.004**2 + 0.006**2 + 0.016**2))


def test_no_coefficient_is_negative() -> None:
    """Larger batches that are faster: the batch is then said to cost nothing."""
    rng = random.Random(3)
    pairs = [(rng.randint(1, 50), rng.randint(0, 100)) for _ in range(100)]
    fitted = fit([Iteration(0.1 - 0.001 * n + 1e-4 * p, n, p) for n, p in pairs])
    assert fitted.per_sequence_s == 0.0
    assert fitted.base_s > 0
    assert fitted.per_prefill_token_s > 0


def test_only_the_speed_of_a_profile_is_replaced() -> None:
    profile = EngineProfile(usable_blocks=99, base_s=1.0)
    fitted = fit(list(iterations(REFERENCE)))
    changed = fitted.applied_to(profile)
    assert changed.usable_blocks == 99
    assert changed.base_s == fitted.base_s


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ([(1, 5), (2, 0)] * 14, "28 iterations are too few, at least 30"),
        ([(7, n) for n in range(40)], "every batch has 7 sequences"),
        ([(n, 0) for n in range(40)], "no iteration prefills anything"),
        ([(n, 64) for n in range(40)], "every iteration prefills 64 tokens"),
        ([(n, 3 * n) for n in range(1, 41)], "prefill always goes with the size of the batch"),
    ],
)
def test_a_log_that_cannot_tell_is_refused(log: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(CalibrationError, match=why):
        fit([Iteration(0.02 + 0.001 * n, n, p) for n, p in log])


LINE = {"duration_s": 0.5, "sequences": 2, "prefilled_tokens": 30, "kv_used_tokens": 64}


def test_lines_are_read_and_a_cut_one_ends_them() -> None:
    whole = json.dumps(LINE) + "\n"
    assert read_iterations([whole, "\n", whole, '{"duration_s": 0.']) == [Iteration(0.5, 2, 30)] * 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"duration_s": 1}\n', "line 1: 'sequences' is missing"),
        ("[]\n", "line 1: not an object"),
        ("{\n", "line 1: Expecting property name"),
        (json.dumps({**LINE, "sequences": -1}), "sequences must be a number of at least 0, got -1"),
        (json.dumps({**LINE, "duration_s": True}), "duration_s must be a number of at least 0, got True"),
        (json.dumps({**LINE, "duration_s": float("nan")}), "duration_s must be a number"),
    ],
)
def test_a_wrong_line_is_named(line: str, why: str) -> None:
    with pytest.raises(CalibrationError, match=why):
        read_iterations([line])
