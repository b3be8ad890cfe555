"""How fast a machine was, window by window, and the simulator's virtual time on the clock of such a machine.

Other work on a machine, or on the host of a virtual one, slows an engine by a quarter and more for some minutes. The
pace of a window is the time that the engine's iterations took in it over what the calibration says of the same
iterations: 1.2 means a fifth slower. An engine that runs at pace k does in t seconds what takes t/k at pace 1. So a
simulation at pace 1 becomes one at the paces of a run: arrivals are moved to the work that can have been done by then,
W(t) = ∫ dt/k(t), and its times back by the inverse of W. After the last window its pace goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from scheduler.sim.calibration import Fit, Iteration
from scheduler.sim.simulation import ApplicationResult, SimulationResult
from scheduler.sim.workload import TraceApplication

WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of each window of WINDOW_S seconds from the beginning of a run on, at least one, each above 0."""

    windows: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for other windows."""
        if not self.windows or not all(0 < pace < inf for pace in self.windows):
            raise ValueError(f"paces must be finite and above 0, at least one, got {list(self.windows)}")

    def work_s(self, clock_s: float) -> float:
        """W: seconds at pace 1 in which an engine does what it does until this moment of the run, at least 0."""
        window = min(int(clock_s // WINDOW_S), len(self.windows) - 1)
        return self._done_s[window] + (clock_s - window * WINDOW_S) / self.windows[window]

    def clock_s(self, work_s: float) -> float:
        """The moment of the run at which so much is done, at least 0: the inverse of `work_s`."""
        window = bisect_right(self._done_s, work_s) - 1
        return window * WINDOW_S + (work_s - self._done_s[window]) * self.windows[window]

    @property
    def _done_s(self) -> list[float]:
        """W at the beginning of each window."""
        return list(accumulate((WINDOW_S / pace for pace in self.windows[:-1]), initial=0.0))

    def of_work(self, applications: Sequence[TraceApplication]) -> list[TraceApplication]:
        """The applications as a simulation at pace 1 needs them."""
        return [replace(one, arrival_s=self.work_s(one.arrival_s)) for one in applications]

    def on_clock(self, result: SimulationResult) -> SimulationResult:
        """Such a simulation's result with arrivals, ends, bounds and the makespan on the run's clock.

        `busy_s` stays as it is, at pace 1: when engines were busy is not kept.
        """
        applications = [self._on_clock(one) for one in result.applications]
        return replace(result, applications=applications, makespan_s=self.clock_s(result.makespan_s))

    def _on_clock(self, one: ApplicationResult) -> ApplicationResult:
        return replace(
            one,
            arrival_s=self.clock_s(one.arrival_s),
            finish_s=self.clock_s(one.finish_s),
            gps_finish_s=None if one.gps_finish_s is None else self.clock_s(one.gps_finish_s),
            bound_s=None if one.bound_s is None else self.clock_s(one.bound_s),
        )


def paces_of(log: Sequence[Iteration], marks: Sequence[int], fitted: Fit) -> Paces:
    """The paces of a run: `marks` are the iterations in the log at the end of each window, in rising order.

    A window in which the engine did nothing has the pace of all of them.
    """
    overall = pace_of(log, fitted, 1.0)
    edges = [0, *(min(mark, len(log)) for mark in marks)]
    return Paces(tuple(pace_of(log[begin:end], fitted, overall) for begin, end in pairwise(edges)) or (overall,))


def pace_of(log: Sequence[Iteration], fitted: Fit, usual: float) -> float:
    """The time that these iterations took over the fit's; `usual` where there are none."""
    expected_s = sum(fitted.duration_s(one) for one in log)
    took_s = sum(one.duration_s for one in log)
    return took_s / expected_s if expected_s > 0 and took_s > 0 else usual
