"""What the policies of a simulation go by and its workload does not carry: said in one line, before the runs.

A policy that orders by deadlines has nothing to order by where nobody states one. It runs all the same, on what stands
in for them (nobody has a deadline, all weights are 1, no prompt shares a prefix), and its numbers then say little about
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.policies import POLICIES
from scheduler.policies.contract import Need
from scheduler.sim.workload import TraceApplication

CARRIES: Mapping[Need, Callable[[TraceApplication], bool]] = {
    Need.DEADLINES: lambda application: application.deadline_s is not None,
    Need.PERIODS: lambda application: application.period_s is not None,
    Need.PREFIXES: lambda application: any(call.prefix for call in application.calls),
    Need.DEPENDENCIES: lambda application: any(call.after for call in application.calls),
    Need.WEIGHTS: lambda application: application.weight != 1.0,
}
"""Whether an application carries what a policy may need."""

IN_WORDS: Mapping[Need, str] = {Need.WEIGHTS: "weights other than 1"}


def missing_needs(policies: Sequence[str], applications: Iterable[TraceApplication], given: set[Need]) -> str | None:
    """A sentence on what these policies need and no application carries, or None; `given` is known from elsewhere."""
    missing = {need for name in policies for need in POLICIES[name].needs if need in CARRIES} - given
    for application in applications:
        missing = {need for need in missing if not CARRIES[need](application)}
        if not missing:
            return None
    lacks = [_in_words(need, policies) for need in CARRIES if need in missing]
    return f"The workload lacks what policies go by: {', '.join(lacks)}." if lacks else None


def _in_words(need: Need, policies: Sequence[str]) -> str:
    takers = ", ".join(name for name in policies if need in POLICIES[name].needs)
    return f"{IN_WORDS.get(need, need)} ({takers})"
