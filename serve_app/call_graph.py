"""Dependencies between the calls of an application, as a graph of names. Pure, and without recursion.

Every function takes `after`: each call's name with the names it waits for, in the order of the document. All
are linear in calls and dependencies, so a chain of thousands of calls costs milliseconds.

The core looks for cycles too (`scheduler.applications.find_cycle_or_stranger`), only to refuse what it could not
run; here one cycle is walked through and named, for the people who wrote it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

CYCLE_NAMES_SHOWN = 20


def topological_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Names so that each follows what it waits for; calls that wait for nothing keep the document's order.

    Calls of a cycle, and calls that wait for one, are missing. Every dependency must be a key of `after`.
    """
    waiting = {name: len(needed) for name, needed in after.items()}
    dependents: dict[str, list[str]] = {name: [] for name in after}
    for name, needed in after.items():
        for dependency in needed:
            dependents[dependency].append(name)
    ready = deque(name for name, count in waiting.items() if count == 0)
    order: list[str] = []
    while ready:
        name = ready.popleft()
        order.append(name)
        for dependent in dependents[name]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                ready.append(dependent)
    return order


def find_cycle(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of one cycle, each waiting for the one that follows it; empty when there is none."""
    ordered = set(topological_order(after))
    stuck = {name: needed for name, needed in after.items() if name not in ordered}
    if not stuck:
        return []
    name = next(iter(stuck))
    walked: dict[str, int] = {}
    while name not in walked:
        walked[name] = len(walked)
        name = next(dependency for dependency in stuck[name] if dependency in stuck)
    return list(walked)[walked[name] :]


def describe_cycle(cycle: Sequence[str]) -> str:
    """`a → b → a`, with the middle left out of a long one."""
    shown = list(cycle[:CYCLE_NAMES_SHOWN])
    if len(cycle) > CYCLE_NAMES_SHOWN:
        shown.append(f"… {len(cycle) - CYCLE_NAMES_SHOWN} more …")
    return " → ".join([*shown, cycle[0]])
