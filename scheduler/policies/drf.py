"""Dominant resource fairness: the flow runs whose larger part of any resource is smallest.

Ghodsi, Zaharia, Hindman, Konwinski, Shenker and Stoica, "Dominant Resource Fairness: Fair Allocation of Multiple
Resource Types", NSDI 2011, section 4 (algorithm 1) and 4.3 (weights). Two resources: places for sequences, which stand
for compute, and KV memory in tokens; how much of both there is, all replicas together, comes with `pool_changed`.
While it runs, a call of n sequences holds n places and n·(prompt + predicted output) tokens. A flow's dominant share is

    max(places held / places, tokens held / tokens) / weight,

and the backlogged flow with the smallest one runs its first call (equal shares: the flow with the older application).

Charged: what is held, from the grant until the call ends or is lost; nothing remains of it, so there is no history, no
credit for idleness and no debt. Predictions are not corrected while a call runs: the engine's own memory is the
business of the core, this is about shares. A resource of which nothing is known counts for nothing.

Different from the paper: if the first call does not fit, the core holds the order and waits for room, where the paper
leaves it open; the demand is the call's own, not the same for all of a flow's tasks.

A flow is an application or a tenant, as the operator set it, and w its weight.

Defining property: by filling an empty pool with divisible demands in small steps the dominant shares of flows that
stay backlogged become equal by weight until a resource is exhausted (max-min, progressive filling), to within one
call; and a flow that asks for more than it needs does not run more (strategy-proofness, section 3). O(log n); a change
of the pool is O(n log n) in the flows that wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey


@dataclass(frozen=True, slots=True)
class _Amount:
    """So much of each resource."""

    places: int = 0
    tokens: int = 0

    def plus(self, other: _Amount, times: int = 1) -> _Amount:
        return _Amount(self.places + times * other.places, self.tokens + times * other.tokens)

    def dominant_share(self, pool: _Amount) -> float:
        """The larger of the parts that this is of the pool's resources."""
        parts = ((self.places, pool.places), (self.tokens, pool.tokens))
        return max(held / there if there else 0.0 for held, there in parts)


_NOTHING = _Amount()


def _demand(call: CallFacts) -> _Amount:
    return _Amount(call.sequences, call.sequences * (call.prompt_tokens + call.predicted_output_tokens))


class Drf(Policy):
    """Smallest dominant share first."""

    name = "drf"
    summary = "smallest dominant share of places and KV memory"
    paper = "DRF (Ghodsi et al., NSDI 2011)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self) -> None:
        self._pool = _NOTHING
        self._queues = FlowQueues()
        self._running: dict[CallKey, CallFacts] = {}
        self._held: dict[str, _Amount] = {}
        self._by_share: FinishHeap[str] = FinishHeap()

    def pool_changed(self, pool_tokens: int, sequences: int) -> None:
        self._pool = _Amount(sequences, pool_tokens)
        for flow in self._queues:
            self._file(flow)

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._file(call.flow)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._by_share.discard(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._running[call.key] = call
        self._hold(call, 1)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        granted = self._running.pop(call.key, None)
        if granted is not None:
            self._hold(granted, -1)

    def head(self) -> CallKey | None:
        flow = self._by_share.peek()
        return None if flow is None else self._queues.first(flow).key

    def dominant_share(self, flow: str) -> float:
        """The larger part of a resource that a flow's calls hold."""
        return self._held.get(flow, _NOTHING).dominant_share(self._pool)

    def _hold(self, call: CallFacts, times: int) -> None:
        held = self._held.pop(call.flow, _NOTHING).plus(_demand(call), times)
        if held != _NOTHING:
            self._held[call.flow] = held
        if call.flow in self._queues:
            self._file(call.flow)

    def _file(self, flow: str) -> None:
        weight = self._queues.first(flow).flow_weight
        self._by_share.set(flow, self.dominant_share(flow) / weight, self._queues.number(flow))
