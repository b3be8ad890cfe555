"""Table II: what a predictor's error costs.

The error of an application is |predicted − true| / true of its KV token-time, predicted at arrival; the error of a
predictor is the mean over applications. Every predictor that the laboratory knows gets a row.
"""

from __future__ import annotations

from scheduler.sim.experiments.findings import Cell, Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import EVEN, PREDICTORS, SAMPLES_OF_A_TYPE, TAUGHT, Laboratory, Outcome, under

INTENSITY = 2.0
PAPER = {"MLP": (53.0, 151.1), "DistilBERT": (452.0, 366.7)}
"""Error in percent and mean completion in seconds."""

BESIDE = "MLP"


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
                    *((f"the paper's {name}", *figures, None, None) for name, figures in PAPER.items()),
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
    error, mean_s = PAPER[BESIDE]
    ours_s = outcome.completion.mean_s
    return (
        Comparison(measure=f"{name}, the paper's {BESIDE}: error", unit="%", paper=error, ours=error_percent(outcome)),
        Comparison(measure=f"{name}, the paper's {BESIDE}: mean", unit="s", paper=mean_s, ours=ours_s),
    )


def error_percent(outcome: Outcome) -> float:
    """The mean relative error of the predicted costs, in percent."""
    applications = outcome.result.applications
    errors = [abs(outcome.predicted_costs[one.application_id] - one.cost) / one.cost for one in applications]
    return 100 * sum(errors) / len(errors)


def _row(outcome: Outcome, perfect_s: float) -> tuple[Cell, ...]:
    completion = outcome.completion
    return error_percent(outcome), completion.mean_s, completion.p90_s, completion.mean_s / perfect_s
