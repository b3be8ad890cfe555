"""Who says whether a call fits: the engine, by the blocks that are free, or the scheduler, by the projected peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.settings import Admission
from scheduler.sim.experiments.completion_times import BASELINES
from scheduler.sim.experiments.findings import Cell, Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import EVEN, Laboratory, Outcome, under

INTENSITIES = (1.0, 2.0, 3.0)
POLICIES = tuple(BASELINES)
"""Those of figure 8."""


def admissions(laboratory: Laboratory, intensities: Sequence[float] = INTENSITIES) -> Findings:
    """Preemptions and completion times of both, on the reference engine with perfect predictions."""
    pairs = {
        (policy, intensity): _pair(laboratory, policy, intensity) for policy in POLICIES for intensity in intensities
    }
    return Findings(
        name="admission",
        title="Admission by the engine, and by projected peak",
        source=f"{EVEN} ({laboratory.source}), perfect predictions",
        comparisons=tuple(one for policy in POLICIES for one in _comparisons(policy, pairs)),
        tables=(
            Table(
                title="Both admissions",
                headings=("policy", "load", "admission", "mean s", "P90 s", "preempted", "recomputed", "KV %"),
                rows=tuple(
                    (policy, f"{intensity:g}×", kind, *_measures(outcome))
                    for (policy, intensity), pair in pairs.items()
                    for kind, outcome in zip(("engine", "projected"), pair, strict=True)
                ),
            ),
        ),
        remarks=(
            "The paper's engine admits by free blocks; it has no such figure. Recomputed: tokens that were prefilled "
            "again after preemptions. A call that fits now, but not at its peak, keeps all others waiting: what "
            "sparing the preemptions gains is partly lost by that, under VTC more than is gained.",
        ),
    )


Pairs = Mapping[tuple[str, float], tuple[Outcome, Outcome]]
"""By policy and intensity: admission by the engine, and by projected peak."""


def _comparisons(policy: str, pairs: Pairs) -> tuple[Comparison, ...]:
    """Of one policy, over all intensities."""
    its_own = [pair for (name, _), pair in pairs.items() if name == policy]
    by_engine, projected = (sum(pair[side].result.preemptions for pair in its_own) for side in (0, 1))
    longest = max(pair[1].completion.mean_s / pair[0].completion.mean_s for pair in its_own)
    return (
        Comparison(measure=f"{policy}: preemptions, admission by the engine", unit="", paper=None, ours=by_engine),
        Comparison(measure=f"{policy}: preemptions, projected peak", unit="", paper=None, ours=projected),
        Comparison(measure=f"{policy}: mean over the engine's, at most", unit="×", paper=None, ours=longest),
    )


def _pair(laboratory: Laboratory, policy: str, intensity: float) -> tuple[Outcome, Outcome]:
    load = laboratory.load(EVEN, intensity)
    projected = under(policy, admission=Admission.PROJECTED_PEAK)
    return laboratory.run_policy(load, policy), laboratory.run(load, projected)


def _measures(outcome: Outcome) -> tuple[Cell, ...]:
    completion, result = outcome.completion, outcome.result
    counts = (result.preemptions, result.recomputed_tokens)
    return completion.mean_s, completion.p90_s, *counts, 100 * result.kv_used
