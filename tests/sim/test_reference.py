"""The reference numbers: the shared workloads on the reference engine, with perfect predictions.

They come from another implementation of the same model. Those of VTC are wider: its order is chaotic in small choices.
The whole table takes a minute; without `-m slow` only three policies at full load are run.
"""

from __future__ import annotations

import pytest

from scheduler.sim.experiments.admissions import admissions
from scheduler.sim.experiments.clocks import clocks
from scheduler.sim.experiments.elephant import figure_11
from scheduler.sim.experiments.laboratory import EVEN, SKEWED, TRAIN, YARDSTICK, Laboratory
from serve_app.cli.experiment_workloads import SharedWorkloads, shared_folder

FOLDER = shared_folder()
pytestmark = [
    pytest.mark.skipif(
        not all((FOLDER / f"{name}.jsonl").is_file() for name in (EVEN, SKEWED, TRAIN)),
        reason=f"the shared workloads are not in {FOLDER}",
    ),
    pytest.mark.timeout(600),
]

MEANS_S = {
    1.0: {"vtc": 233.3, "fcfs": 540.9, "sjf": 113.7, "app_fcfs": 329.6, "srtf": 66.7, "justitia": 73.7},
    2.0: {"vtc": 381.0, "fcfs": 927.6, "sjf": 188.8, "app_fcfs": 590.2, "srtf": 123.1, "justitia": 126.5},
    3.0: {"vtc": 433.3, "fcfs": 1031.8, "sjf": 230.6, "app_fcfs": 678.8, "srtf": 151.8, "justitia": 153.4},
}
RATIOS = {1.0: (1.00, 1.00), 2.0: (1.23, 0.99), 3.0: (1.03, 1.00)}
"""Justitia's worst ratio to VTC and the share of applications no later than under VTC."""

NEAR, NEAR_VTC = 0.03, 0.08
QUICK = {("justitia", 3.0), ("fcfs", 3.0), ("sjf", 3.0)}


def cases() -> list[object]:
    return [
        pytest.param(policy, intensity, marks=() if (policy, intensity) in QUICK else pytest.mark.slow)
        for intensity, means_s in MEANS_S.items()
        for policy in means_s
    ]


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    return Laboratory(SharedWorkloads(FOLDER, None))


@pytest.mark.parametrize(("policy", "intensity"), cases())
def test_mean_completion_is_the_references(laboratory: Laboratory, policy: str, intensity: float) -> None:
    mean_s = laboratory.run_policy(laboratory.load(EVEN, intensity), policy).completion.mean_s
    assert mean_s == pytest.approx(MEANS_S[intensity][policy], rel=NEAR_VTC if policy == YARDSTICK else NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("intensity", RATIOS)
def test_nobody_is_much_later_than_under_vtc(laboratory: Laboratory, intensity: float) -> None:
    load = laboratory.load(EVEN, intensity)
    ratios = laboratory.run_policy(load, "justitia").against(laboratory.run_policy(load, YARDSTICK))
    worst, share = RATIOS[intensity]
    assert ratios.worst == pytest.approx(worst, abs=0.15)
    assert ratios.share_within_1 == pytest.approx(share, abs=0.02)


@pytest.mark.slow
def test_the_service_clock_saves_where_nominal_seconds_do_not(laboratory: Laboratory) -> None:
    saved = {name: cells for name, *cells in clocks(laboratory).tables[0].rows}
    nominal, iteration, service = saved["eval-skewed 3×"]
    assert nominal < 0  # type: ignore[operator]
    assert iteration == pytest.approx(51.9, abs=3)
    assert service == pytest.approx(52.0, abs=3)
    assert saved["eval-even 3×"][2] == pytest.approx(64.6, abs=3)
    assert saved["eval-skewed 2×"][2] == pytest.approx(14.1, abs=3)


@pytest.mark.slow
def test_an_elephant_waits_as_the_reference_says(laboratory: Laboratory) -> None:
    findings = figure_11(laboratory)
    table = findings.tables[0]
    elephant = {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    flat = [elephant[count]["rate 1"] for count in (100, 300, 500)]
    assert flat == [pytest.approx(second, rel=NEAR) for second in (149, 361, 563)]
    assert elephant[500]["rate 1.2"] == pytest.approx(428, rel=NEAR)
    assert elephant[500]["rate 1.5"] == pytest.approx(175, rel=NEAR)
    apart = [elephant[count]["2 tenants"] for count in (100, 300, 500)]
    assert apart == [pytest.approx(127, rel=0.05)] * 3
    ours = {one.measure: one.ours for one in findings.comparisons}
    assert ours["elephant under Justitia, two tenants, prefill counted, of its time alone"] <= 2.2  # type: ignore[operator]


@pytest.mark.slow
def test_projected_peaks_halve_preemptions_and_do_not_lengthen_the_mean(laboratory: Laboratory) -> None:
    ours = {one.measure: one.ours for one in admissions(laboratory).comparisons}
    for policy, longest in (("justitia", 1.0), ("fcfs", 1.0)):
        by_engine = ours[f"{policy}: preemptions, admission by the engine"]
        assert ours[f"{policy}: preemptions, projected peak"] <= by_engine / 2  # type: ignore[operator]
        assert ours[f"{policy}: mean over the engine's, at most"] <= longest  # type: ignore[operator]
