"""From what was measured live to the runs that `justitia simulate` compares, shows and reports, and beside the twin's.

Law: every mean, ratio and forecast is over the same applications, those that finished with the trace's lengths under
every policy, live and in the simulator; so all figures of two rows can be compared. What went wrong with the others is
listed, and how many are left out is said. Rates and the makespan are of the same applications; what the engine counted
(iterations, preemptions, memory in use, pace) is of the whole run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """The run as the simulator has it, on the engine as it was calibrated.

    Machines are not always equally fast. `forecast` has the pace that the engine's iterations had during the live run,
    which its iteration log tells; it knows nothing else of that run. `blind` has the pace of the calibration.
    """

    forecast: SimulationResult
    blind: SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy: the live run with its measures, and the twin's.

    Beside the yardstick's run, each in times of its completion there: `share_nearly_within` (0 to 1) of the
    applications took at most NEARLY times as long, and `p99_ratio` is the ratio's 99th percentile (1.2: a fifth
    longer); None without a yardstick or an application. `errors` are of this run by application, `left_out` counts the
    applications that are not compared, under whichever policy they failed. `pace` is that of the run (`PolicyRun`).
    """

    run: Run
    twin: Twin
    share_nearly_within: float | None
    p99_ratio: float | None
    errors: Mapping[str, str]
    left_out: int
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
        real, told_s = self.run.measures.completion, mean_s(result)
        return None if real is None or told_s is None or real.mean_s <= 0 else told_s / real.mean_s - 1


def mean_s(result: SimulationResult) -> float | None:
    """The mean completion time of a run; None of no application."""
    completion = completion_of(result.applications)
    return None if completion is None else completion.mean_s


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
    """The runs, at least one, each beside its twin and the yardstick's run; all of the same applications."""
    by_id = {one.application_id: one for one in traces}
    whole = [one for run in runs for one in (twins[run.policy].forecast, twins[run.policy].blind)]
    finished = [*map(_finished, runs), *(completions(one.applications).keys() for one in whole)]
    everywhere = frozenset(by_id).intersection(*finished)
    compared = [by_id[name] for name in by_id if name in everywhere]
    results = {one.policy: result_of(one, compared) for one in runs}
    other = results.get(yardstick or "")
    left_out = len(by_id) - len(everywhere)
    return [
        _compared(one, results[one.policy], other, _of_these(twins[one.policy], everywhere), left_out) for one in runs
    ]


def _finished(run: PolicyRun) -> set[str]:
    return {one.application_id for one in run.outcomes if one.finish_s is not None and one.error is None}


def _of_these(twin: Twin, names: Collection[str]) -> Twin:
    return Twin(forecast=_part(twin.forecast, names), blind=_part(twin.blind, names))


def _part(result: SimulationResult, names: Collection[str]) -> SimulationResult:
    """The result of some of its applications; its makespan is the end of the last of them."""
    applications = [one for one in result.applications if one.application_id in names]
    return replace(
        result, applications=applications, makespan_s=max((one.finish_s for one in applications), default=0.0)
    )


def _compared(
    one: PolicyRun, result: SimulationResult, yardstick: SimulationResult | None, twin: Twin, left_out: int
) -> Compared:
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
        left_out=left_out,
        pace=one.pace,
    )


def result_of(run: PolicyRun, traces: Sequence[TraceApplication]) -> SimulationResult:
    """A live run of those of `traces` that finished in it, in the simulator's words.

    Calls and output tokens are theirs. What the engine prefilled and recomputed is not measured, nor how long it was
    busy.
    """
    by_id = {one.application_id: one for one in traces}
    names = _finished(run).intersection(by_id)
    finished = [one for one in run.outcomes if one.application_id in names]
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
