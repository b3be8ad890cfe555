"""Table II: what a predictor's error costs.

The error of an application is |predicted − true| / true of its KV token-time, predicted at arrival; the error of a
predictor is the mean over applications. Every predictor that the laboratory knows gets a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.sim.experiments.findings import Cell, Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import EVEN, PREDICTORS, SAMPLES_OF_A_TYPE, TAUGHT, Laboratory, Outcome, under

INTENSITY = 2.0


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper's table II says of a predictor; `training_s` as roughly as it is told there."""

    error_percent: float
    overhead_ms: float
    training_s: str
    mean_s: float


PAPER: Mapping[str, Published] = {
    "MLP": Published(53.0, 2.16, "about 60", 151.1),
    "DistilBERT": Published(452.0, 55.7, "about 7,200", 366.7),
}


def counterpart(name: str) -> str:
    """The paper's predictor that ours of this name is to be compared with."""
    return "DistilBERT" if name == "transformer" else "MLP"


def table_2(laboratory: Laboratory, intensity: float = INTENSITY) -> Findings:
    """Mean completion under Justitia with each predictor."""
    load = laboratory.load(EVEN, intensity)
    outcomes = {name: laboratory.run(load, under("justitia"), name) for name in laboratory.predictors}
    trained = [name for name in outcomes if name not in PREDICTORS]
    perfect_s = outcomes["oracle"].completion.mean_s
    return Findings(
        name="table2",
        title=f"Predictors at {intensity:g}×",
        source=f"{EVEN} ({laboratory.source})",
        comparisons=tuple(one for name in trained for one in _comparisons(name, outcomes[name])),
        tables=(
            Table(
                title="Predictors",
                headings=("predictor", "error %", "mean s", "P90 s", "mean over oracle's"),
                rows=(
                    *((name, *_row(outcome, perfect_s)) for name, outcome in outcomes.items()),
                    *(
                        (f"the paper's {name}", one.error_percent, one.mean_s, None, None)
                        for name, one in PAPER.items()
                    ),
                ),
            ),
        ),
        remarks=(
            f"{TAUGHT} is the mean of each type, learnt from {SAMPLES_OF_A_TYPE} applications of it and from all that "
            "end; type_mean begins with nothing; none says the same of every call. Prompts and lengths of the "
            "paper's applications are not public: compare what an error costs, not the seconds.",
        ),
    )


def _comparisons(name: str, outcome: Outcome) -> tuple[Comparison, ...]:
    """A predictor that was taught, beside the paper's."""
    paper = counterpart(name)
    published, ours_s = PAPER[paper], outcome.completion.mean_s
    measure = f"{name}, the paper's {paper}"
    error = Comparison(
        measure=f"{measure}: error", unit="%", paper=published.error_percent, ours=error_percent(outcome)
    )
    return error, Comparison(measure=f"{measure}: mean", unit="s", paper=published.mean_s, ours=ours_s)


def error_percent(outcome: Outcome) -> float:
    """The mean relative error of the predicted costs, in percent."""
    applications = outcome.result.applications
    errors = [abs(outcome.predicted_costs[one.application_id] - one.cost) / one.cost for one in applications]
    return 100 * sum(errors) / len(errors)


def _row(outcome: Outcome, perfect_s: float) -> tuple[Cell, ...]:
    completion = outcome.completion
    return error_percent(outcome), completion.mean_s, completion.p90_s, completion.mean_s / perfect_s
