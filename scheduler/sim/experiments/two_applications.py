"""Figures 1 and 3: two large applications side by side, or one after the other.

Both arrive at once and each could fill the memory alone. Under fair sharing (vtc) each holds about half of it, and both
end late; under Justitia the first takes all it can use, and the second ends no later than it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scheduler.sim.experiments.findings import Cell, Chart, Comparison, Findings, Line, Table, saving_percent
from scheduler.sim.experiments.laboratory import EVEN, YARDSTICK, Laboratory, under
from scheduler.sim.simulation import Simulation, SimulationResult
from scheduler.sim.workload import TraceApplication, TraceCall

SAMPLE_S = 1.0
SIDE_BY_SIDE, ONE_AFTER_ANOTHER = YARDSTICK, "justitia"
MERGES = "DM"
SMALL_CALLS, SMALL_PROMPT_TOKENS, SMALL_OUTPUT_TOKENS = 16, 450, 500


@dataclass(frozen=True, slots=True)
class Watched:
    """A run, and for each application (second, KV blocks held)."""

    result: SimulationResult
    held: dict[str, list[tuple[float, float]]]

    @property
    def mean_s(self) -> float:
        applications = self.result.applications
        return sum(one.completion_s for one in applications) / len(applications)

    @property
    def completions_s(self) -> list[float]:
        return sorted(one.completion_s for one in self.result.applications)

    def mean_blocks_while_both_run(self) -> float:
        """Blocks that an application holds in the mean over time until the first of them has ended."""
        first_end_s = min(one.finish_s for one in self.result.applications)
        means = [
            _mean_over_time([point for point in points if point[0] <= first_end_s]) for points in self.held.values()
        ]
        return sum(means) / len(means)


def figure_1(laboratory: Laboratory) -> Findings:
    """Two equal applications of calls that are all ready at once."""
    side_by_side, one_after_another = _both(_two_equal())
    return Findings(
        name="fig1",
        title="Two applications: side by side, and one after the other",
        source=f"two equal applications of {SMALL_CALLS} calls, written for this",
        comparisons=(
            Comparison(
                measure="the first ends earlier than side by side",
                unit="",
                paper="yes",
                ours=_yes(one_after_another.completions_s[0] < side_by_side.completions_s[0]),
            ),
            Comparison(
                measure="the second ends no later than side by side",
                unit="",
                paper="yes",
                ours=_yes(one_after_another.completions_s[1] <= side_by_side.completions_s[1]),
            ),
        ),
        tables=(_table(side_by_side, one_after_another),),
        charts=_charts(side_by_side, one_after_another),
        remarks=("The paper's figure is a sketch without numbers.",),
    )


def figure_3(laboratory: Laboratory) -> Findings:
    """The two costliest document-merging applications of a workload."""
    pair = _two_costliest(laboratory.workloads.applications(EVEN))
    side_by_side, one_after_another = _both(pair)
    return Findings(
        name="fig3",
        title="Two document-merging applications on 459 KV blocks",
        source=f"{' and '.join(one.application_id for one in pair)} of {EVEN} ({laboratory.source})",
        comparisons=(
            Comparison(measure="mean completion, fair sharing", unit="s", paper=210, ours=side_by_side.mean_s),
            Comparison(
                measure="mean completion, one after the other", unit="s", paper=166, ours=one_after_another.mean_s
            ),
            Comparison(
                measure="saved",
                unit="%",
                paper=saving_percent(166, 210),
                ours=saving_percent(one_after_another.mean_s, side_by_side.mean_s),
            ),
            Comparison(
                measure="blocks an application holds, fair sharing",
                unit="blocks",
                paper="about 230",
                ours=side_by_side.mean_blocks_while_both_run(),
            ),
            Comparison(
                measure="iterations, fair sharing",
                unit="",
                paper="more than 4,000",
                ours=side_by_side.result.iterations,
            ),
        ),
        tables=(_table(side_by_side, one_after_another),),
        charts=_charts(side_by_side, one_after_another),
        remarks=(
            "The documents, and so the calls and their lengths, are other ones than the paper's, which are not "
            "public: compare the share saved and the blocks, not the seconds. Merging comes in stages that wait for "
            "each other, so that neither order fills the memory all the time, and the second may end later than "
            "side by side, by the stages that it has still to go through when the first has ended.",
        ),
    )


def _two_equal() -> list[TraceApplication]:
    calls = tuple(
        TraceCall(name=f"call{number}", prompt_tokens=SMALL_PROMPT_TOKENS, output_tokens=SMALL_OUTPUT_TOKENS)
        for number in range(SMALL_CALLS)
    )
    return [TraceApplication(application_id=f"application {name}", arrival_s=0.0, calls=calls) for name in (1, 2)]


def _two_costliest(applications: Sequence[TraceApplication]) -> list[TraceApplication]:
    """Of document merging, the cheaper first; of all types where too few merge documents."""
    merging = [one for one in applications if one.application_type == MERGES]
    chosen = sorted(merging if len(merging) > 1 else applications, key=lambda one: one.cost)[-2:]
    return [replace(one, arrival_s=0.0) for one in chosen]


def _both(pair: Sequence[TraceApplication]) -> tuple[Watched, Watched]:
    return _watched(pair, SIDE_BY_SIDE), _watched(pair, ONE_AFTER_ANOTHER)


def _watched(pair: Sequence[TraceApplication], policy: str) -> Watched:
    held: dict[str, list[tuple[float, float]]] = {one.application_id: [] for one in pair}
    next_s = 0.0

    def watch(simulation: Simulation) -> None:
        nonlocal next_s
        if simulation.now_s < next_s:
            return
        next_s = simulation.now_s + SAMPLE_S
        blocks = _blocks_held(simulation)
        for name, points in held.items():
            points.append((simulation.now_s, blocks.get(name, 0)))

    return Watched(Simulation(pair, under(policy), watch=watch).run(), held)


def _blocks_held(simulation: Simulation) -> dict[str, int]:
    profile = simulation.settings.engines[0]
    held: dict[str, int] = {}
    for call, made_tokens in simulation.running_calls():
        name = call.key.application_id
        blocks = call.sequences * profile.blocks_of(call.prompt_tokens + made_tokens)
        held[name] = held.get(name, 0) + blocks
    return held


def _mean_over_time(points: Sequence[tuple[float, float]]) -> float:
    """The mean of a line through (second, value) points; of a single one its value."""
    if len(points) < 2:
        return sum(value for _, value in points)
    area = sum((end - begin) * (one + other) / 2 for (begin, one), (end, other) in pairwise(points))
    return area / (points[-1][0] - points[0][0])


def _table(side_by_side: Watched, one_after_another: Watched) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (label, run.mean_s, *run.completions_s, run.mean_blocks_while_both_run(), run.result.iterations)
        for label, run in (
            (f"side by side ({SIDE_BY_SIDE})", side_by_side),
            (f"one after the other ({ONE_AFTER_ANOTHER})", one_after_another),
        )
    )
    headings = ("order", "mean s", "first s", "second s", "blocks each, both running", "iterations")
    return Table(title="Completion", headings=headings, rows=rows)


def _charts(side_by_side: Watched, one_after_another: Watched) -> tuple[Chart, ...]:
    return tuple(
        Chart(
            title=f"KV blocks held, {label}",
            x_title="second",
            y_title="blocks",
            lines=tuple(Line(name, tuple(points)) for name, points in run.held.items()),
        )
        for label, run in (("side by side", side_by_side), ("one after the other", one_after_another))
    )


def _yes(true: bool) -> str:
    return "yes" if true else "no"
