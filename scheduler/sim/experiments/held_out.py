"""Does the trained order hold on other applications of the kind? Workloads drawn from what nobody learnt from.

For each seed as many applications as EVEN has, at its arrival times: types drawn evenly, and of each type those of
TRAIN beyond the first SAMPLES_OF_A_TYPE in a random order (again from the start where they do not suffice). Each is run
under fair sharing and under Justitia with the trained predictor, where there is one, and with the truth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from scheduler.sim.experiments.findings import Findings, Table, saving_percent
from scheduler.sim.experiments.laboratory import (
    EVEN,
    SAMPLES_OF_A_TYPE,
    TAUGHT,
    TRAIN,
    YARDSTICK,
    Laboratory,
    Load,
    Outcome,
    first_of_each_type,
    under,
)
from scheduler.sim.metrics import completions, lag_of, percentile
from scheduler.sim.workload import TraceApplication, at_intensity

INTENSITY = 3.0
SEEDS = (1, 2, 3, 4, 5)
TRAINED = "default"
"""The predictor's name in the laboratory; TAUGHT stands in for it where nobody trained it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One workload under one predictor: the mean's saving against the yardstick, ratios to it, and late finishes."""

    seed: int
    predictor: str
    saving_percent: float
    p99_ratio: float
    worst_ratio: float
    late: int
    """Applications later than their finish under GPS plus the bound."""


def held_out(laboratory: Laboratory, seeds: Sequence[int] = SEEDS, intensity: float = INTENSITY) -> Findings:
    """A row for each seed and predictor."""
    return Findings(
        name="held_out",
        title=f"Other workloads of the kind at {intensity:g}×",
        source=f"{TRAIN} beyond {SAMPLES_OF_A_TYPE} of each type ({laboratory.source})",
        comparisons=(),
        tables=(
            Table(
                title="Justitia beside VTC, application by application",
                headings=("seed", "predictor", "mean saved %", "P99 ratio", "worst ratio", "beyond bound"),
                rows=tuple(
                    (one.seed, one.predictor, one.saving_percent, one.p99_ratio, one.worst_ratio, one.late)
                    for one in measured(laboratory, seeds, intensity)
                ),
            ),
        ),
        remarks=("Ratio: an application's completion time over its own under VTC, on the same workload.",),
    )


def measured(laboratory: Laboratory, seeds: Iterable[int], intensity: float = INTENSITY) -> Iterator[Held]:
    """What became of each workload under the trained predictor and the truth."""
    trained = TRAINED if TRAINED in laboratory.predictors else TAUGHT
    for seed in seeds:
        applications = tuple(at_intensity(drawn(laboratory, seed), intensity))
        load = Load(f"held out {seed} {intensity:g}×", applications)
        yardstick = laboratory.run_policy(load, YARDSTICK)
        for predictor in (trained, "oracle"):
            yield _held(seed, predictor, laboratory.run(load, under("justitia"), predictor), yardstick)


def drawn(laboratory: Laboratory, seed: int) -> Iterator[TraceApplication]:
    """A workload of this seed at intensity 1, in order of arrival."""
    draw = random.Random(seed)
    unseen = {
        name: cycle(draw.sample(found, len(found))) for name, found in sorted(_unseen_by_type(laboratory).items())
    }
    for number, one in enumerate(laboratory.workloads.applications(EVEN)):
        application = next(unseen[draw.choice(list(unseen))])
        yield replace(application, application_id=f"{seed}-{number}", arrival_s=one.arrival_s)


def _unseen_by_type(laboratory: Laboratory) -> dict[str, list[TraceApplication]]:
    """Those that nobody learnt from; of a workload too short to have any, all."""
    everything = laboratory.workloads.applications(TRAIN)
    learnt = {one.application_id for one in first_of_each_type(everything, SAMPLES_OF_A_TYPE)}
    by_type: dict[str, list[TraceApplication]] = {}
    for one in [one for one in everything if one.application_id not in learnt] or everything:
        by_type.setdefault(one.application_type, []).append(one)
    return by_type


def _held(seed: int, predictor: str, outcome: Outcome, yardstick: Outcome) -> Held:
    own, theirs = completions(outcome.result.applications), completions(yardstick.result.applications)
    ratios = sorted(own[name] / theirs[name] for name in own)
    lag = lag_of(outcome.result.applications)
    return Held(
        seed=seed,
        predictor=predictor,
        saving_percent=saving_percent(outcome.completion.mean_s, yardstick.completion.mean_s),
        p99_ratio=percentile(ratios, 0.99),
        worst_ratio=ratios[-1],
        late=0 if lag is None else lag.violations,
    )
