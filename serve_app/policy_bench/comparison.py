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
from serve_app.policy_bench.pace import pace_of, paces_of
from serve_app.policy_bench.replay import Outcome
from serve_app.policy_bench.results import PolicyRun

NEARLY = 1.02
"""A ratio to the yardstick up to which an application counts as no later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The run as the simulator has it, on the engine as it was calibrated before the runs.

    Machines are not always equally fast. `forecast` has the pace that the engine's iterations had during the live run,
    which its iteration log tells; it knows nothing else of that run. `blind` has the pace of the calibration.
    """

    forecast: SimulationResult
    blind: SimulationResult


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
    def forecast_error(self) -> float | None:
        """How far the forecast's mean is from the real one: 0.1 is a tenth too long."""
        return self._error(self.twin.forecast)

    @property
    def blind_error(self) -> float | None:
        """The same of the forecast that does not know the run's pace."""
        return self._error(self.twin.blind)

    def _error(self, result: SimulationResult) -> float | None:
        real = self.run.measures.completion
        return None if real is None or real.mean_s <= 0 else mean_s(result) / real.mean_s - 1


def mean_s(result: SimulationResult) -> float:
    """The mean completion time of a run with at least one application."""
    completion = completion_of(result.applications)
    assert completion is not None
    return completion.mean_s


def policy_run(policy: str, live: LiveRun, fitted: Fit, pool_tokens: int) -> PolicyRun:
    """What is kept of a live run."""
    return PolicyRun(
        policy=policy,
        outcomes=tuple(live.outcomes),
        iterations=live.iterations,
        preemptions=live.preemptions,
        kv_used=_mean_share(live.log, live.kv_used_tokens, pool_tokens),
        pace=pace_of(live.log, fitted, 1.0),
        paces=paces_of(live.log, live.marks, fitted).windows,
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
    """A live run in the simulator's words. Calls and output tokens are those of the applications that finished.

    What the engine prefilled and recomputed is not measured, nor how long it was busy.
    """
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
        preemptions=run.preemptions,
        kv_used=run.kv_used,
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
