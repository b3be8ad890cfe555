"""Figure 11: one map-reduce elephant, then a mouse each second.

In one tenant the elephant waits until the reference has served it, which takes the longer the more mice share with it;
a faster clock (`clock_rate`) lets it in earlier, and mice pay. As a tenant of its own it has half of the memory however
many mice another tenant sends, and half of the engine's time where costs count prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.settings import ClockMode
from scheduler.sim.experiments.findings import Chart, Comparison, Findings, Line, Table, saving_percent
from scheduler.sim.experiments.laboratory import SKEWED, TRAIN, YARDSTICK, Laboratory, Load, Outcome, under
from scheduler.sim.workload import TraceApplication

MOUSE_COUNTS = (100, 300, 500)
CLOCK_RATES = (1.0, 1.2, 1.5)
SKEWED_INTENSITY = 3.0
ELEPHANT, ELEPHANT_TYPE, MOUSE_TYPES = "elephant", "MRS", frozenset({"KBQAV", "CC", "ALFWI"})
APART_S = 1.0
PAPERS_CLOCK = "in seconds"
MICE, OWN = "mice", "elephants"
"""Tenants."""

APART, APART_PROFILE = "2 tenants", "2, time"
"""Columns."""

PAPER_SRTF_S = (400, 800)
PAPER_JUSTITIA_S = (200, 300)

REMARKS = (
    "rate: Justitia, all in one tenant, at this clock rate; in seconds: with the paper's clock of nominal "
    "seconds; 2 tenants: the elephant in one, mice in the other; 2, time: the same with the option cost=profile.",
    "In one tenant, with mice that fill the engine, the elephant waits for its share of what engines really "
    "deliver; the paper's clock runs in seconds, ahead of that, and lets it in early, as a clock rate above 1 "
    "does. The price stands in the other two tables: mice wait, and on traffic of mostly small applications the "
    "saving is lost. Tenants with shares of their own protect it and leave the order inside each tenant alone; "
    "mice then wait for the elephant's half.",
    "Two tenants with equal shares of the memory do not have equal shares of the engine's time when one of them "
    "is mostly prefill, as mice are: KV token-time does not see it. Where that matters, the cost function "
    "profile, an engine's measured time, counts prefill too, and the elephant has half of the time.",
    "The paper's elephant and mice are not public: its seconds are those of other calls.",
)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the elephant and, in the mean, of the mice; seconds."""

    elephant_s: float
    mice_s: float


def figure_11(
    laboratory: Laboratory, counts: Sequence[int] = MOUSE_COUNTS, rates: Sequence[float] = CLOCK_RATES
) -> Findings:
    """The elephant among mice of its own tenant, at several clock rates, and of another one."""
    elephant, mice = elephant_and_mice(laboratory.workloads.applications(TRAIN))
    alone_s = _fate(laboratory.run_policy(Load("elephant alone", (elephant,)), "justitia")).elephant_s
    columns = _columns(laboratory, elephant, mice, counts, rates)
    return Findings(
        name="fig11",
        title="An elephant and mice",
        source=f"{elephant.application_type} application and small ones of {TRAIN} ({laboratory.source})",
        comparisons=_comparisons(columns, counts, alone_s),
        tables=(
            _table("The elephant's completion (s)", columns, counts, "elephant_s"),
            _table("The mice's mean completion (s)", columns, counts, "mice_s"),
            _rates_table(laboratory, rates),
        ),
        charts=(_chart(columns, counts),),
        remarks=REMARKS,
    )


def _comparisons(
    columns: Mapping[str, Mapping[int, Fate]], counts: Sequence[int], alone_s: float
) -> tuple[Comparison, ...]:
    first, last = min(counts), max(counts)
    srtf = (
        Comparison(
            measure=f"elephant under SRJF, {count} mice",
            unit="s",
            paper=f"about {paper}",
            ours=columns["srtf"][count].elephant_s,
        )
        for count, paper in ((first, PAPER_SRTF_S[0]), (last, PAPER_SRTF_S[1]))
    )
    justitia = (
        Comparison(
            measure=f"elephant under Justitia, {last} mice, {where}",
            unit="s",
            paper=" to ".join(map(str, PAPER_JUSTITIA_S)),
            ours=columns[name][last].elephant_s,
        )
        for where, name in (
            ("one tenant", _rate(1.0)),
            ("clock in seconds", PAPERS_CLOCK),
            ("two tenants", APART),
            ("two tenants, prefill counted", APART_PROFILE),
        )
    )
    times = (
        Comparison(
            measure=f"elephant under Justitia, {where}, of its time alone",
            unit="×",
            paper=None,
            ours=max(fate.elephant_s for fate in columns[name].values()) / alone_s,
        )
        for where, name in (("two tenants", APART), ("two tenants, prefill counted", APART_PROFILE))
    )
    return (*srtf, *justitia, Comparison(measure="elephant alone", unit="s", paper=None, ours=alone_s), *times)


def _chart(columns: Mapping[str, Mapping[int, Fate]], counts: Sequence[int]) -> Chart:
    return Chart(
        title="The elephant's completion time",
        x_title="mice",
        y_title="seconds",
        lines=tuple(
            Line(name, tuple((float(count), fates[count].elephant_s) for count in counts))
            for name, fates in columns.items()
        ),
    )


def elephant_and_mice(applications: Sequence[TraceApplication]) -> tuple[TraceApplication, list[TraceApplication]]:
    """The costliest map-reduce application, and the small ones in their order; the rest where a kind is missing."""
    large = [one for one in applications if one.application_type == ELEPHANT_TYPE] or list(applications)
    costliest = max(large, key=lambda one: one.cost)
    small = [one for one in applications if one.application_type in MOUSE_TYPES]
    mice = small or [one for one in applications if one is not costliest] or [costliest]
    return replace(costliest, application_id=ELEPHANT, arrival_s=0.0, tenant=OWN), mice


def _columns(
    laboratory: Laboratory,
    elephant: TraceApplication,
    mice: Sequence[TraceApplication],
    counts: Sequence[int],
    rates: Sequence[float],
) -> Mapping[str, Mapping[int, Fate]]:
    """By name and number of mice."""
    together = {count: _load("one tenant", replace(elephant, tenant=MICE), mice, count) for count in counts}
    apart = {count: _load("two tenants", elephant, mice, count) for count in counts}
    settings = {
        **{_rate(rate): under("justitia", clock_rate=rate) for rate in rates},
        PAPERS_CLOCK: under("justitia", clock=ClockMode.CAPACITY),
    }
    columns = {
        "srtf": {count: _fate(laboratory.run_policy(load, "srtf")) for count, load in together.items()},
        **{
            name: {count: _fate(laboratory.run(load, each)) for count, load in together.items()}
            for name, each in settings.items()
        },
    }
    shares = {APART: under("justitia"), APART_PROFILE: under("justitia", policy_options=(("cost", "profile"),))}
    return columns | {
        name: {count: _fate(laboratory.run(load, each)) for count, load in apart.items()}
        for name, each in shares.items()
    }


def _rate(rate: float) -> str:
    return f"rate {rate:g}"


def _load(name: str, elephant: TraceApplication, mice: Sequence[TraceApplication], count: int) -> Load:
    """The elephant, then so many mice, one each APART_S; the mice begin again where there are too few."""
    later = [
        replace(
            mice[number % len(mice)], application_id=f"mouse{number}", arrival_s=APART_S * (number + 1), tenant=MICE
        )
        for number in range(count)
    ]
    return Load(f"elephant and {count} mice, {name}", (elephant, *later))


def _fate(outcome: Outcome) -> Fate:
    times_s = {one.application_id: one.completion_s for one in outcome.result.applications}
    elephant_s = times_s.pop(ELEPHANT)
    return Fate(elephant_s, sum(times_s.values()) / len(times_s) if times_s else 0.0)


def _table(title: str, columns: Mapping[str, Mapping[int, Fate]], counts: Sequence[int], measure: str) -> Table:
    return Table(
        title=title,
        headings=("mice", *columns),
        rows=tuple((count, *(getattr(fates[count], measure) for fates in columns.values())) for count in counts),
    )


def _rates_table(laboratory: Laboratory, rates: Sequence[float]) -> Table:
    """What the clock rate does to traffic of mostly small applications."""
    load = laboratory.load(SKEWED, SKEWED_INTENSITY)
    yardstick = laboratory.run_policy(load, YARDSTICK)
    rows = []
    for rate in rates:
        outcome = laboratory.run(load, under("justitia", clock_rate=rate))
        mean_s = outcome.completion.mean_s
        saved = saving_percent(mean_s, yardstick.completion.mean_s)
        rows.append((rate, mean_s, saved, outcome.against(yardstick).worst))
    return Table(
        title=f"The clock rate's price: {SKEWED} at {SKEWED_INTENSITY:g}×",
        headings=("clock rate", "mean s", "saved against VTC %", "worst ×"),
        rows=tuple(rows),
    )
