"""Shortest job first: the call that is predicted to cost least for its weight.

Smith ("Various optimizers for single-stage production", Naval Research Logistics Quarterly, 1956): on one server, with
all jobs present, serving them by length minimizes the mean time to completion, and by length over weight the weighted
mean. Rank of a call: its predicted cost over the weight of its application, taken once when it begins to wait, under
the cost function of the option `cost` (KV token-time unless told); equal ranks in order of readiness. Nothing is
charged, and idling changes nothing. Of the application that a call belongs to only the weight is looked at. A long
call can starve while shorter ones keep coming: that is the rule, and `hrrn` is its remedy.

KV token-time of a call is p·d + d·(d + 1)/2 summed over its sequences, p prompt tokens and d output tokens of each.

Defining property: with all calls present on one server and true predictions, the weighted mean flow time is the
smallest that any order can have. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, memory_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.types import CallKey


class ShortestJobFirst(Policy):
    """Smallest predicted cost over weight first."""

    name = "sjf"
    summary = "calls in order of their predicted cost over weight"
    paper = "Smith (Naval Research Logistics Quarterly, 1956)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)

    def __init__(self, *, cost: CostModel = memory_cost) -> None:
        self._cost = cost
        self._waiting: FinishHeap[CallKey] = FinishHeap()

    def add(self, call: CallFacts) -> None:
        self._waiting.set(call.key, self.rank(call), call.ready_sequence)

    def remove(self, key: CallKey) -> None:
        self._waiting.discard(key)

    def head(self) -> CallKey | None:
        return self._waiting.peek()

    def rank(self, call: CallFacts) -> float:
        return call.predicted_cost(self._cost) / call.application.weight
