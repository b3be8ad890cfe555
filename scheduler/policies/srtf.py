"""Shortest remaining time first, of whole applications: the one with the least work left (SRJF).

Schrage ("A proof of the optimality of the shortest remaining processing time discipline", Operations Research, 1968).
Rank of an application: its remaining cost over its weight. What remains is the predicted cost less what was served,
running calls counted as far as they came; it follows every correction that is told, up or down. (With equal weights
this is the paper's rule; dividing by the weight is Smith's, optimal for a weighted mean when all are present.) Equal
ranks in order of arrival; calls of one application in order of readiness. Nothing is charged here: the core measures
cost, as KV token-time, p·d + d·(d + 1)/2 summed over the sequences of a call (p prompt, d output tokens). An
application that idles keeps its rank.

The paper preempts: a job that arrives with less left takes the server at once. Here a call runs to its end, and the
rule decides at the next grant; between the calls of an application it preempts. A large application can starve while
small ones keep coming.

Defining property: with all applications present on one server and true predictions, the weighted mean flow time of
applications is the smallest that any order can have. O(log n).
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import ALWAYS, ApplicationFacts, CallFacts, Need, Policy, RunningCall
from scheduler.types import CallKey


class ShortestRemainingTimeFirst(Policy):
    """Smallest remaining cost of the application over its weight first."""

    name = "srtf"
    summary = "applications in order of the cost that they have left over weight"
    paper = "Schrage (Operations Research, 1968)"
    follows_service = True
    service_adds_up = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS, Need.PREEMPTION)

    def __init__(self) -> None:
        self._queues = ApplicationQueues()

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, _rank(call.application))

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def application_changed(self, application: ApplicationFacts) -> None:
        self._queues.move(application.application_id, _rank(application))

    def head(self) -> CallKey | None:
        return self._queues.head()

    def steady_tokens(self, first: ApplicationFacts, running: Sequence[RunningCall]) -> int:
        """Until what another application has left falls to what the head's has, as if that stayed what it is."""
        falling: dict[str, list[RunningCall]] = {}
        for one in running:
            falling.setdefault(one.facts.key.application_id, []).append(one)
        gaps = self._queues.gaps(first.application_id, falling)
        return min((_tokens_below(gap * _weight(falling[name]), falling[name]) for name, gap in gaps), default=ALWAYS)

    def rank(self, call: CallFacts) -> float | None:
        return self._queues.rank(call.key.application_id, _rank(call.application))


def _rank(application: ApplicationFacts) -> float:
    return application.remaining_cost / application.weight


def _weight(running: Sequence[RunningCall]) -> float:
    """The weight of the application whose calls these are."""
    return running[0].facts.application.weight


def _tokens_below(cost: float, running: Sequence[RunningCall]) -> int:
    """The most tokens, the same of each sequence, that together cost less than this in KV token-time; 0 if none do."""
    sequences = sum(one.facts.sequences for one in running)
    held = sum(one.facts.sequences * (one.facts.prompt_tokens + one.kept_tokens + one.made_tokens) for one in running)
    low, high = 0, max(int(cost // (held + sequences)), 0)
    while low < high:
        middle = (low + high + 1) // 2
        if held * middle + sequences * middle * (middle + 1) // 2 < cost:
            low = middle
        else:
            high = middle - 1
    return low
