"""Who says whether a call fits: the engine, by the blocks that are free, or the scheduler, by the projected peak."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.settings import Admission
from scheduler.sim.experiments.findings import Cell, Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import EVEN, Laboratory, Outcome, under

INTENSITIES = (1.0, 2.0, 3.0)
POLICIES = ("justitia", "fcfs")


def admissions(laboratory: Laboratory, intensities: Sequence[float] = INTENSITIES) -> Findings:
    """Preemptions and completion times of both, on the reference engine with perfect predictions."""
    pairs = {
        (policy, intensity): _pair(laboratory, policy, intensity) for policy in POLICIES for intensity in intensities
    }
    preempted = [sum(pair[side].result.preemptions for pair in pairs.values()) for side in (0, 1)]
    longest = max(projected.completion.mean_s / engine.completion.mean_s for engine, projected in pairs.values())
    return Findings(
        name="admission",
        title="Admission by the engine, and by projected peak",
        source=f"{EVEN} ({laboratory.source}), perfect predictions",
        comparisons=(
            Comparison(measure="preemptions, admission by the engine", unit="", paper=None, ours=preempted[0]),
            Comparison(measure="preemptions, admission by projected peak", unit="", paper=None, ours=preempted[1]),
            Comparison(measure="mean, projected peak over engine, at most", unit="×", paper=None, ours=longest),
        ),
        tables=(
            Table(
                title="Both admissions",
                headings=("policy", "intensity", "admission", "mean s", "P90 s", "preempted", "recomputed", "KV use %"),
                rows=tuple(
                    (policy, f"{intensity:g}×", kind, *_measures(outcome))
                    for (policy, intensity), pair in pairs.items()
                    for kind, outcome in zip(("engine", "projected peak"), pair, strict=True)
                ),
            ),
        ),
        remarks=("The paper's engine admits by free blocks; it has no such figure.",),
    )


def _pair(laboratory: Laboratory, policy: str, intensity: float) -> tuple[Outcome, Outcome]:
    load = laboratory.load(EVEN, intensity)
    projected = under(policy, admission=Admission.PROJECTED_PEAK)
    return laboratory.run_policy(load, policy), laboratory.run(load, projected)


def _measures(outcome: Outcome) -> tuple[Cell, ...]:
    completion, result = outcome.completion, outcome.result
    counts = (result.preemptions, result.recomputed_tokens)
    return completion.mean_s, completion.p90_s, *counts, 100 * result.kv_used
