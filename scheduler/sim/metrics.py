"""What a run was like, in numbers.

Definitions:

- Completion is the end of an application's last call less its arrival, in seconds.
- A percentile is interpolated linearly between the two nearest ranks: of n sorted values x_1 … x_n the one at q is
  x_k + f·(x_(k+1) − x_k) with k + f = 1 + q·(n − 1). numpy and `statistics.quantiles(method="inclusive")` agree.
- A ratio compares an application with itself: its completion over that under a yardstick policy, or over its
  completion in the fluid reference (GPS). Applications without the other number, or for which it is 0, are left out.
- Lag is the finish less the finish under GPS: negative is time won. A bound violation is a finish after the delay bound
  of `scheduler.audit`.
- Rates are over the makespan, which begins with the trace. KV use is over the time in which engines ran.
- Cost is true KV token-time, in token-iterations.

Nothing here changes a result, and every measure of no application is None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from scheduler.sim.service import ServiceRecord
from scheduler.sim.simulation import ApplicationResult, SimulationResult

MAX_CDF_POINTS = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Completion times of some applications, in seconds."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios of some applications; `cdf` has (ratio, share of applications with at most that) in rising order."""

    count: int
    share_within_1: float
    mean: float
    p90: float
    worst: float
    worst_application: str
    cdf: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lags in seconds; `bounded` applications have a delay bound, `violations` of them broke it."""

    count: int
    mean_s: float
    worst_s: float
    share_late: float
    bounded: int
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The applications of one type or one tenant; `cost_share` is their part of all cost."""

    completion: Completion
    ratio_to_yardstick: Ratios | None
    ratio_to_gps: Ratios | None
    cost: float
    cost_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All measures of one run."""

    completion: Completion | None
    ratio_to_yardstick: Ratios | None
    ratio_to_gps: Ratios | None
    lag: Lag | None
    output_tokens_per_s: float | None
    prefilled_tokens_per_s: float | None
    applications_per_minute: float | None
    by_type: Mapping[str, Group]
    by_tenant: Mapping[str, Group]
    service: ServiceRecord | None


def measure(
    result: SimulationResult,
    yardstick: SimulationResult | None = None,
    service: ServiceRecord | None = None,
) -> Measures:
    """The measures of a run, beside a run of the same workload under another policy where there is one."""
    applications = result.applications
    under_yardstick = None if yardstick is None else completions(yardstick.applications)
    return Measures(
        completion=completion_of(applications),
        ratio_to_yardstick=ratios(applications, under_yardstick or {}),
        ratio_to_gps=ratios(applications, gps_completions(applications)),
        lag=lag_of(applications),
        output_tokens_per_s=_rate(result.output_tokens, result.makespan_s),
        prefilled_tokens_per_s=_rate(result.prefilled_tokens, result.makespan_s),
        applications_per_minute=_rate(60 * len(applications), result.makespan_s),
        by_type=_groups(applications, lambda one: one.application_type, under_yardstick or {}),
        by_tenant=_groups(applications, lambda one: one.tenant, under_yardstick or {}),
        service=service,
    )


def percentile(ordered: Sequence[float], q: float) -> float:
    """The value at q in [0, 1] of values in rising order, at least one (definition: this module's docstring)."""
    if not ordered or not 0 <= q <= 1:
        raise ValueError(f"need values and 0 <= q <= 1, got {len(ordered)} values and q = {q}")
    place = q * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def completion_of(applications: Iterable[ApplicationResult]) -> Completion | None:
    """The completion times of these applications."""
    times_s = sorted(one.completion_s for one in applications)
    if not times_s:
        return None
    return Completion(
        count=len(times_s),
        mean_s=sum(times_s) / len(times_s),
        p50_s=percentile(times_s, 0.5),
        p90_s=percentile(times_s, 0.9),
        p99_s=percentile(times_s, 0.99),
        worst_s=times_s[-1],
    )


def completions(applications: Iterable[ApplicationResult]) -> dict[str, float]:
    """Completion times by application."""
    return {one.application_id: one.completion_s for one in applications}


def gps_completions(applications: Iterable[ApplicationResult]) -> dict[str, float]:
    """Completion times in the fluid reference by application, of those whose finish there is known."""
    return {
        one.application_id: one.gps_finish_s - one.arrival_s for one in applications if one.gps_finish_s is not None
    }


def ratios(applications: Iterable[ApplicationResult], yardstick: Mapping[str, float]) -> Ratios | None:
    """Completion of each application over its number of seconds in `yardstick`."""
    pairs = sorted(
        (one.completion_s / yardstick[one.application_id], one.application_id)
        for one in applications
        if yardstick.get(one.application_id, 0.0) > 0
    )
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    worst, worst_application = pairs[-1]
    return Ratios(
        count=len(values),
        share_within_1=sum(value <= 1 for value in values) / len(values),
        mean=sum(values) / len(values),
        p90=percentile(values, 0.9),
        worst=worst,
        worst_application=worst_application,
        cdf=cdf(values),
    )


def cdf(ordered: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(value, share of values at most that) of values in rising order: all, or MAX_CDF_POINTS at equal steps."""
    count = len(ordered)
    steps = min(count, MAX_CDF_POINTS) - 1
    places = [round(step * (count - 1) / steps) for step in range(steps + 1)] if steps > 0 else range(count)
    values = dict.fromkeys(ordered[place] for place in places)
    return tuple((value, bisect_right(ordered, value) / count) for value in values)


def lag_of(applications: Iterable[ApplicationResult]) -> Lag | None:
    """Lags of the applications whose finish under GPS is known, and how many of them broke their bound."""
    known = [(one, one.finish_s - one.gps_finish_s) for one in applications if one.gps_finish_s is not None]
    if not known:
        return None
    lags_s = [lag_s for _, lag_s in known]
    bounds = [(one.finish_s, one.bound_s) for one, _ in known if one.bound_s is not None]
    return Lag(
        count=len(known),
        mean_s=sum(lags_s) / len(known),
        worst_s=max(lags_s),
        share_late=sum(lag_s > 0 for lag_s in lags_s) / len(known),
        bounded=len(bounds),
        violations=sum(finish_s > bound_s for finish_s, bound_s in bounds),
    )


def _groups(
    applications: Iterable[ApplicationResult],
    name_of: Callable[[ApplicationResult], str],
    yardstick: Mapping[str, float],
) -> dict[str, Group]:
    members: dict[str, list[ApplicationResult]] = defaultdict(list)
    for one in applications:
        members[name_of(one)].append(one)
    total = sum(one.cost for group in members.values() for one in group)
    return {name: _group(members[name], total, yardstick) for name in sorted(members)}


def _group(members: Sequence[ApplicationResult], total_cost: float, yardstick: Mapping[str, float]) -> Group:
    completion = completion_of(members)
    assert completion is not None
    cost = sum(one.cost for one in members)
    return Group(
        completion=completion,
        ratio_to_yardstick=ratios(members, yardstick),
        ratio_to_gps=ratios(members, gps_completions(members)),
        cost=cost,
        cost_share=cost / total_cost if total_cost else 0.0,
    )


def _rate(amount: float, span_s: float) -> float | None:
    return amount / span_s if span_s > 0 else None
