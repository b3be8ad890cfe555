"""Small traffic, engines and runs for the tests of `justitia bench policies`."""

from __future__ import annotations

from dataclasses import replace

from scheduler.sim.calibration import Fit, Iteration
from scheduler.sim.engine import EngineProfile
from scheduler.sim.prediction import Oracle
from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.policy_bench.deployment import live_core
from serve_app.policy_bench.forecast import TwinSettings, as_the_twin_has_it
from serve_app.policy_bench.replay import Outcome
from serve_app.policy_bench.results import PolicyRun
from serve_app.policy_bench.traffic import (
    LengthRule,
)

RULE = LengthRule(model="tiny", max_model_len=4096, end_token_id=257)
FIT = Fit(
    base_s=0.01,
    per_sequence_s=0.001,
    per_prefill_token_s=0.0001,
    iterations=100,
    r_squared=1.0,
    mean_absolute_error_s=0.0,
    mean_duration_s=0.02,
)


def call(name: str, prompt_tokens: int = 40, output_tokens: int = 8, after: tuple[str, ...] = ()) -> TraceCall:
    return TraceCall(name=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens, after=after)


def application(name: str = "a", arrival_s: float = 0.0, *calls: TraceCall, prompt: str = "") -> TraceApplication:
    return TraceApplication(
        application_id=name, application_type="report", arrival_s=arrival_s, prompt=prompt, calls=calls or (call("x"),)
    )


def burst() -> list[TraceApplication]:
    """Sixteen applications at once, more than the engine of `SIZES` can hold."""
    calls = [(call("m", 150 + 10 * n, 20 + 3 * n), call("r", 90, 12, after=("m",))) for n in range(16)]
    return [application(f"b{number}", 0.0, *pair) for number, pair in enumerate(calls)]


SIZES = EngineProfile(block_tokens=32, usable_blocks=40, max_sequences=64, chunked_prefill=True, max_model_len=1024)
LIVE = live_core({"applications": [{"args": {}, "deployments": [{"user_config": {}}]}]}, "fcfs")


LOG = [
    Iteration(FIT.duration_s(Iteration(0.0, sequences, tokens)), sequences, tokens)
    for sequences in range(1, 12)
    for tokens in (0, 100, 700, 2000)
]


def twin_settings(policy: str = "justitia", profile: EngineProfile | None = None) -> TwinSettings:
    engine = profile or FIT.applied_to(SIZES)
    return TwinSettings(policy=policy, profile=engine, core=LIVE, create_predictor=Oracle)


def burst_with(round_trip_s: float) -> list[TraceApplication]:
    return [as_the_twin_has_it(one, RULE, round_trip_s) for one in burst()]


def run(policy: str, *finishes_s: float, error: str | None = None) -> PolicyRun:
    outcomes = [
        Outcome(application_id=f"a{number}", arrival_s=0.0, sent_s=0.0, finish_s=finish_s, gps_finish_s=2.0)
        for number, finish_s in enumerate(finishes_s)
    ]
    outcomes[-1] = replace(outcomes[-1], error=error)
    return PolicyRun(
        policy=policy,
        outcomes=tuple(outcomes),
        iterations=10,
        preemptions=3,
        kv_used=0.5,
        pace=1.1,
        paces=(1.2, 1.0),
    )


def traces(count: int) -> list[TraceApplication]:
    return [application(f"a{number}") for number in range(count)]
