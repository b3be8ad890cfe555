"""From what was measured live to the runs that `justitia simulate` compares, shows and reports, and beside the twin's.

An application that did not finish, or not with the trace's lengths, is no part of a comparison: it is listed instead.
A forecast is of the same applications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.sim.calibration import Fit, Iteration
from scheduler.sim.metrics import completion_of, completions, measure, percentile
from scheduler.sim.simulation import ApplicationResult, SimulationResult
from scheduler.sim.workload import TraceApplication
from serve_app.cli.simulation_runs import Run
from serve_app.policy_bench.live import LiveRun
from serve_app.policy_bench.replay import Outcome
from serve_app.policy_bench.results import PolicyRun

NEARLY = 1.02
"""A ratio to the yardstick up to which an application counts as no later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The run as the simulator has it: with the calibration's speed, and with the speed that the live run had.

    The second tells what the model gets wrong from what the machine did meanwhile.
    """

    before: SimulationResult
    at_pace: SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy: the live run with its measures, and the twin's. `pace` is that of the run (`PolicyRun`)."""

    run: Run
    twin: Twin
    share_nearly_within: float | None
    p99_ratio: float | None
    errors: Mapping[str, str]
    pace: float

    @property
    def forecast_mean_s(self) -> float:
        """The twin's mean completion time, known before the run."""
        return mean_s(self.twin.before)

    @property
    def forecast_error(self) -> float | None:
        """How far the forecast is from the real mean: 0.1 is a tenth too long."""
        return self._error(self.forecast_mean_s)

    @property
    def error_at_pace(self) -> float | None:
        """The same of the twin that ran at the run's own pace."""
        return self._error(mean_s(self.twin.at_pace))

    def _error(self, forecast_s: float) -> float | None:
        real = self.run.measures.completion
        return None if real is None or real.mean_s <= 0 else forecast_s / real.mean_s - 1


def mean_s(result: SimulationResult) -> float:
    """The mean completion time of a run with at least one application."""
    completion = completion_of(result.applications)
    assert completion is not None
    return completion.mean_s


def policy_run(policy: str, live: LiveRun, fitted: Fit, pool_tokens: int) -> PolicyRun:
    """What is kept of a live run. A fast engine's log has but a part of its iterations: sums over it are scaled."""
    expected_s = sum(fitted.duration_s(one) for one in live.log)
    logged_s = sum(one.duration_s for one in live.log)
    scale = max(live.iterations / len(live.log), 1.0) if live.log else 1.0
    return PolicyRun(
        policy=policy,
        outcomes=tuple(live.outcomes),
        iterations=live.iterations,
        preemptions=live.preemptions,
        busy_s=scale * logged_s,
        kv_used=_mean_share(live.log, live.kv_used_tokens, pool_tokens),
        prefilled_tokens=round(scale * sum(one.prefilled_tokens for one in live.log)),
        pace=logged_s / expected_s if expected_s else 1.0,
    )


def _mean_share(log: Sequence[Iteration], used_tokens: Sequence[int], pool_tokens: int) -> float:
    """Over the time in which iterations ran."""
    whole_s = sum(one.duration_s for one in log)
    held = sum(one.duration_s * tokens for one, tokens in zip(log, used_tokens, strict=False))
    return held / (whole_s * pool_tokens) if whole_s else 0.0


def compare(
    runs: Sequence[PolicyRun],
    traces: Sequence[TraceApplication],
    twins: Mapping[str, Twin],
    yardstick: str | None,
) -> list[Compared]:
    """The runs, each beside its twin and the yardstick's run."""
    results = {one.policy: result_of(one, traces) for one in runs}
    other = results.get(yardstick or "")
    return [_compared(one, results[one.policy], other, twins[one.policy]) for one in runs]


def _compared(one: PolicyRun, result: SimulationResult, yardstick: SimulationResult | None, twin: Twin) -> Compared:
    mean = completion_of(yardstick.applications) if yardstick is not None else None
    under = {} if yardstick is None else completions(yardstick.applications)
    ratios = sorted(
        own.completion_s / under[own.application_id]
        for own in result.applications
        if under.get(own.application_id, 0.0) > 0
    )
    return Compared(
        run=Run(
            result,
            measure(result, yardstick),
            None if yardstick is None else yardstick.policy,
            None if mean is None else mean.mean_s,
        ),
        twin=twin,
        share_nearly_within=sum(ratio <= NEARLY for ratio in ratios) / len(ratios) if ratios else None,
        p99_ratio=percentile(ratios, 0.99) if ratios else None,
        errors=one.errors,
        pace=one.pace,
    )


def result_of(run: PolicyRun, traces: Sequence[TraceApplication]) -> SimulationResult:
    """A live run in the simulator's words. Tokens are those of the applications that finished."""
    by_id = {one.application_id: one for one in traces}
    finished = [one for one in run.outcomes if one.finish_s is not None and one.error is None]
    calls = [call for one in finished for call in by_id[one.application_id].calls]
    return SimulationResult(
        policy=run.policy,
        applications=[_application(one, by_id[one.application_id]) for one in finished],
        makespan_s=max((one.finish_s or 0.0 for one in finished), default=0.0),
        iterations=run.iterations,
        calls=len(calls),
        output_tokens=sum(call.output_tokens * call.sequences for call in calls),
        prefilled_tokens=run.prefilled_tokens,
        recomputed_tokens=max(run.prefilled_tokens - sum(call.prompt_tokens for call in calls), 0),
        preemptions=run.preemptions,
        kv_used=run.kv_used,
        busy_s=run.busy_s,
        bound_violations=sum(one.bound_s is not None and (one.finish_s or 0.0) > one.bound_s for one in finished),
    )


def _application(outcome: Outcome, trace: TraceApplication) -> ApplicationResult:
    assert outcome.finish_s is not None
    return ApplicationResult(
        application_id=trace.application_id,
        application_type=trace.application_type,
        tenant=trace.tenant,
        weight=trace.weight,
        arrival_s=outcome.arrival_s,
        finish_s=outcome.finish_s,
        cost=trace.cost,
        predicted_cost=outcome.predicted_cost or 0.0,
        calls=len(trace.calls),
        gps_finish_s=outcome.gps_finish_s,
        bound_s=outcome.bound_s,
    )
