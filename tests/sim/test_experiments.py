"""Experiments on small workloads: what they compare, that they share runs, and that they give the same twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.settings import ClockMode
from scheduler.sim.experiments import EXPERIMENTS
from scheduler.sim.experiments.admissions import POLICIES, admissions
from scheduler.sim.experiments.clocks import clocks
from scheduler.sim.experiments.completion_times import BASELINES, figure_8, figure_10, figure_12
from scheduler.sim.experiments.elephant import elephant_and_mice, figure_11
from scheduler.sim.experiments.findings import Cell, Findings, Table, saving_percent
from scheduler.sim.experiments.laboratory import (
    EVEN,
    SAMPLES_OF_A_TYPE,
    TAUGHT,
    Laboratory,
    first_of_each_type,
    predicted_cost,
    under,
)
from scheduler.sim.experiments.predictions import error_percent, table_2
from scheduler.sim.experiments.two_applications import figure_1, figure_3
from scheduler.sim.experiments.worked_queue import PAPER_MARKS_S, PAPER_STARTS, figure_7, queue, run_queue
from scheduler.sim.prediction import Nothing, Oracle, Prediction
from scheduler.sim.workload import TraceApplication, TraceCall

TYPES = ("DM", "MRS", "KBQAV", "CC", "ALFWI")


class Few:
    """Twenty applications of five types, the first two of which are large."""

    source = "written for this test"

    def applications(self, name: str) -> Sequence[TraceApplication]:
        draw = random.Random(name)
        return [_application(f"{name}-{number}", number, draw) for number in range(20)]


def _application(application_id: str, number: int, draw: random.Random) -> TraceApplication:
    kind = TYPES[number % len(TYPES)]
    count, tokens = (6, 150) if kind in ("DM", "MRS") else (2, 30)
    calls = [
        TraceCall(
            name=f"c{call}",
            prompt_tokens=draw.randint(tokens // 2, tokens),
            output_tokens=draw.randint(tokens // 2, tokens),
        )
        for call in range(count)
    ]
    calls.append(replace(calls[0], name="last", after=tuple(call.name for call in calls)))
    return TraceApplication(
        application_id=application_id, application_type=kind, arrival_s=0.5 * number, calls=tuple(calls)
    )


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    """Shared by the tests, as one command's experiments share it."""
    return Laboratory(Few())


@pytest.fixture(scope="module")
def sketch(laboratory: Laboratory) -> Findings:
    return figure_1(laboratory)


def ours(found: Findings, measure: str) -> Cell:
    (comparison,) = (one for one in found.comparisons if one.measure == measure)
    return comparison.ours


def column(table: Table, heading: str) -> list[Cell]:
    place = table.headings.index(heading)
    return [row[place] for row in table.rows]


# ---- the worked queue


def test_the_worked_queue_is_the_papers() -> None:
    result, starts = run_queue()
    assert {one.application_id: one.gps_finish_s for one in result.applications} == {
        "App-1": pytest.approx(5.0, abs=1e-9),
        "App-2": pytest.approx(13.5, abs=1e-9),
        "App-3": pytest.approx(12.5, abs=1e-9),
    }
    assert tuple(name for _, name, _ in starts) == PAPER_STARTS
    assert tuple(sorted({second for second, _, _ in starts})) == PAPER_MARKS_S
    assert result.preemptions == 0
    assert result.bound_violations == 0


def test_the_worked_queues_costs_are_those_of_its_fluid_shares() -> None:
    """App-1 has the pool until 4 and half of it until 5; and so on, at 5 iterations a second of 10,000 tokens."""
    pool_s = {one.application_id: one.cost / (5 * 10_000) for one in queue()}
    assert pool_s == {"App-1": 4 + 1 / 2, "App-2": 1 / 2 + 7.5 / 2 + 1, "App-3": 7.5 / 2}


def test_figure_7_says_what_the_paper_says(laboratory: Laboratory) -> None:
    for comparison in figure_7(laboratory).comparisons:
        assert comparison.ours == comparison.paper, comparison.measure


# ---- two applications


def test_one_after_the_other_helps_the_first_and_does_not_hurt_the_second(sketch: Findings) -> None:
    assert [comparison.ours for comparison in sketch.comparisons] == ["yes", "yes"]
    side_by_side, one_after_another = column(sketch.tables[0], "mean s")
    assert isinstance(side_by_side, float)
    assert isinstance(one_after_another, float)
    assert one_after_another < 0.9 * side_by_side


def test_fair_sharing_holds_each_near_half_of_the_blocks(sketch: Findings) -> None:
    blocks = column(sketch.tables[0], "blocks each, both running")[0]
    assert isinstance(blocks, float)
    assert 180 < blocks <= 459 / 2
    first, second = sketch.charts[0].lines
    held = [one + other for (_, one), (_, other) in zip(first.points, second.points, strict=True)]
    assert max(held) <= 459
    assert max(held) > 420


def test_figure_3_takes_the_two_costliest_merges(laboratory: Laboratory) -> None:
    merges = [one for one in Few().applications(EVEN) if one.application_type == "DM"]
    names = [one.application_id for one in sorted(merges, key=lambda one: one.cost)[-2:]]
    assert f"{names[0]} and {names[1]} of" in figure_3(laboratory).source


# ---- completion times


def test_figure_8_has_every_baseline_at_every_intensity(laboratory: Laboratory) -> None:
    found = figure_8(laboratory, (4.0,))
    means = found.tables[0]
    assert column(means, "policy") == list(BASELINES.values())
    load = laboratory.load(EVEN, 4.0)
    assert column(means, "4×") == [laboratory.run_policy(load, policy).completion.mean_s for policy in BASELINES]
    by_name = dict(zip(column(means, "policy"), column(means, "4×"), strict=True))
    assert ours(found, "mean at 4×, Justitia") == by_name["Justitia"]
    saved = dict(zip(column(found.tables[2], "intensity"), column(found.tables[2], "against VTC"), strict=True))
    assert saved["4×"] == saving_percent(by_name["Justitia"], by_name["VTC"])  # type: ignore[arg-type]


def test_figure_10_compares_each_application_with_itself(laboratory: Laboratory) -> None:
    found = figure_10(laboratory, 4.0)
    load = laboratory.load(EVEN, 4.0)
    justitia, vtc = (laboratory.run_policy(load, policy).result.applications for policy in ("justitia", "vtc"))
    by_hand = [one.completion_s / other.completion_s for one, other in zip(justitia, vtc, strict=True)]
    assert ours(found, "worst application, Justitia") == max(by_hand)
    share = 100 * sum(value <= 1 for value in by_hand) / len(by_hand)
    assert ours(found, "applications no later than under VTC, Justitia") == pytest.approx(share)
    assert {line.name for line in found.charts[0].lines} == set(BASELINES.values()) - {"VTC"}


def test_figure_12_compares_two_cost_models(laboratory: Laboratory) -> None:
    (row,) = figure_12(laboratory, (4.0,)).tables[0].rows
    _, memory_s, compute_s, longer = row
    assert longer == pytest.approx(100 * (compute_s / memory_s - 1))  # type: ignore[operator]


# ---- the rest


def test_an_elephant_of_its_own_tenant_ends_at_the_same_time_beside_any_number_of_mice(
    laboratory: Laboratory,
) -> None:
    found = figure_11(laboratory, counts=(20, 60), rates=(1.0, 1.5))
    elephant, mice = found.tables[:2]
    assert column(elephant, "mice") == [20, 60]
    few, many = column(elephant, "2 tenants")
    assert few == pytest.approx(many, rel=0.05)
    assert all(isinstance(cell, float) and cell > 0 for row in mice.rows for cell in row[1:])
    assert column(found.tables[2], "clock rate") == [1.0, 1.5]


def test_the_elephant_is_the_costliest_and_mice_are_small() -> None:
    elephant, mice = elephant_and_mice(Few().applications("train"))
    assert elephant.application_type == "MRS"
    assert elephant.cost == max(one.cost for one in Few().applications("train") if one.application_type == "MRS")
    assert {one.application_type for one in mice} == {"KBQAV", "CC", "ALFWI"}


def test_every_clock_gets_its_own_run(laboratory: Laboratory) -> None:
    found = clocks(laboratory, ((EVEN, 4.0),))
    load = laboratory.load(EVEN, 4.0)
    vtc_s = laboratory.run_policy(load, "vtc").completion.mean_s
    nominal_s = laboratory.run(load, under("justitia", clock=ClockMode.CAPACITY)).completion.mean_s
    assert found.tables[0].rows[0][1] == saving_percent(nominal_s, vtc_s)


def test_admission_compares_both_on_the_same_applications(laboratory: Laboratory) -> None:
    found = admissions(laboratory, (10.0,))
    assert column(found.tables[0], "admission") == ["engine", "projected"] * len(POLICIES)
    preempted = column(found.tables[0], "preempted")
    measures = ("preemptions, admission by the engine", "preemptions, projected peak")
    assert [ours(found, f"{policy}: {one}") for policy in POLICIES for one in measures] == preempted


def test_predictors_are_compared_by_error_and_by_what_it_costs(laboratory: Laboratory) -> None:
    table = table_2(laboratory, 4.0).tables[0]
    errors = dict(zip(column(table, "predictor"), column(table, "error %"), strict=True))
    assert list(errors) == ["oracle", "type_mean", "none", TAUGHT, "the paper's MLP", "the paper's DistilBERT"]
    assert errors["oracle"] == 0
    assert errors[TAUGHT] < errors["type_mean"]  # type: ignore[operator]
    assert column(table, "mean over oracle's")[0] == 1


def test_a_further_predictor_gets_a_row() -> None:
    laboratory = Laboratory(Few(), {"oracle": Oracle, "mine": Nothing})
    found = table_2(laboratory, 4.0)
    assert column(found.tables[0], "predictor")[:3] == ["oracle", "mine", TAUGHT]
    assert isinstance(ours(found, "mine, the paper's MLP: error"), float)


# ---- the laboratory


def test_a_run_is_done_once() -> None:
    begun: list[tuple[str, int]] = []
    ended: list[str] = []

    def notice(what: str, count: int) -> object:
        begun.append((what, count))
        return lambda: ended.append(what)

    laboratory = Laboratory(Few(), notice=notice)  # type: ignore[arg-type]
    figure_12(laboratory, (4.0,))
    assert begun == [("eval-even 4× justitia", 20), ("eval-even 4× justitia_c", 20)]
    assert len(ended) == 40
    figure_12(laboratory, (4.0,))
    laboratory.run(laboratory.load(EVEN, 4.0), under("justitia", clock=ClockMode.SERVICE))
    assert len(begun) == 2
    laboratory.run(laboratory.load(EVEN, 4.0), under("justitia"), "none")
    laboratory.run(laboratory.load(EVEN, 2.0), under("justitia"))
    assert len(begun) == 4


def test_the_same_findings_twice() -> None:
    one, other = (figure_10(Laboratory(Few()), 4.0) for _ in range(2))
    assert repr(one) == repr(other)


def test_every_experiment_is_known_by_its_name() -> None:
    assert all(name == experiment.name for name, experiment in EXPERIMENTS.items())
    assert set(EXPERIMENTS) >= {"fig1", "fig3", "fig7", "fig8", "fig10", "fig11", "fig12", "table2"}


def test_first_of_each_type_are_the_first() -> None:
    chosen = list(first_of_each_type(Few().applications(EVEN), 2))
    assert [one.application_id for one in chosen] == [f"{EVEN}-{number}" for number in range(10)]
    assert SAMPLES_OF_A_TYPE == 100


def test_a_predictions_cost_is_what_it_says_or_the_sum_over_its_calls(laboratory: Laboratory) -> None:
    application = Few().applications(EVEN)[0]
    assert predicted_cost(application, Oracle().predict(application)) == application.cost
    assert predicted_cost(application, Prediction({}, 7.0)) == 7.0
    load = laboratory.load(EVEN, 4.0)
    assert error_percent(laboratory.run(load, under("justitia"))) == 0


def test_a_table_has_a_cell_for_each_heading() -> None:
    with pytest.raises(ValueError, match="short: 1 cells under 2 headings"):
        Table(title="short", headings=("a", "b"), rows=((1,),))
