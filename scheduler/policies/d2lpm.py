"""D²LPM, double deficit longest prefix match: DLPM over several replicas, each with a cache of its own.

Two deficits (Cao et al., "Locality-aware Fair Scheduling in LLM Serving", arXiv:2501.14312, D²LPM):
- **of a flow**, which says who is next, as in DLPM: among the waiting calls of flows that have something left, the one
  with the longest prefix cached at any replica; equal matches in order of readiness. Computed prompt tokens are
  charged at admission (prompt_weight 1), output tokens as they are made (output_weight 2); when no backlogged flow has
  anything left, all get `quantum` times their weight, nobody more than one quantum.
- **of a flow at a replica**, which says where: the call prefers the replica with the longest match among those where
  its flow has something left. What a flow is served at a replica is charged there too; once it has used up what it has
  at all known replicas, it gets `replica_quantum` at each. So a prefix stays where it is cached until its flow has had
  more than its share of that replica. No match where something is left: the core puts the call where there is most
  room.

A preference is not a claim: when the preferred replica has no room, the core takes the roomiest one rather than let the
call wait. Replicas are known once a call was granted there.

Leaving and returning: a flow that becomes active (has an application in the system) begins at 0, and so with the next
round; a debt is remembered until the rounds have paid for it, or nobody is active. Deficits at replicas are
forgotten when the flow leaves: they decide no order.

Where prefixes are cached is this policy's own model: a cache for each replica that keeps the `cache_blocks` most
recently used blocks (65,536) of `block_tokens` tokens each (16), of the 256 replicas that were used last. In the paper
each replica orders its own queue; here no call is bound to a replica before it starts, so one order serves all.
The paper leaves both quanta open: 4,096 for a flow, 16,384 at a replica.

A flow is an application or a tenant, as the operator set it, and w its weight.

U = max(prompt_weight·L_input, output_weight·M), L_input the longest prompt, M the tokens of calls that run at once. A
replica's refill ignores weight, is repeated until something is left at one replica, and never exceeds one quantum.

Defining property: the gap of backlogged flows is DLPM's, 2·(quantum + U/min(w)), and without contention all calls of
one prefix go to one replica. Each operation is O(replicas·blocks + log n); a grant also moves the waiting calls whose
match it changes, because the order is by what is cached."""

from __future__ import annotations

from collections import OrderedDict
from math import floor

from scheduler.policies.contract import ApplicationFacts
from scheduler.policies.locality import LocalityPolicy, require_positive
from scheduler.policies.prefix_cache import PrefixCache
from scheduler.types import CallKey

MAX_REPLICAS = 256


class D2lpm(LocalityPolicy):
    """Longest prefix cached anywhere first among flows whose deficit lasts; a cache and a deficit at each replica."""

    name = "d2lpm"
    summary = "the longest cached prefix, of flows that have not used up their quantum, at the replica that has it"
    paper = "D²LPM (Cao et al., arXiv:2501.14312)"

    def __init__(
        self,
        *,
        quantum: float = 4096,
        replica_quantum: float = 16384,
        prompt_weight: float = 1,
        output_weight: float = 2,
        block_tokens: int = 16,
        cache_blocks: int = 65536,
    ) -> None:
        super().__init__(quantum, prompt_weight, output_weight, block_tokens)
        require_positive(replica_quantum=replica_quantum, cache_blocks=cache_blocks)
        self.replica_quantum = replica_quantum
        self._cache_blocks = int(cache_blocks)
        self._caches: OrderedDict[str, PrefixCache] = OrderedDict()
        self._left_at: dict[str, dict[str, float]] = {}

    def preferred_replica(self, key: CallKey) -> str | None:
        """Where the longest match is, of the replicas where the call's flow has something left."""
        if key not in self._queues:
            return None
        call = self._queues.call(key)
        best, longest = None, 0
        for replica_id in reversed(self._caches):
            match = self._caches[replica_id].match(call.prefix)
            if match > longest and self._left(call.flow, replica_id) > 0:
                best, longest = replica_id, match
        return best

    def matched(self, prefix: tuple[int, ...]) -> int:
        return max((cache.match(prefix) for cache in self._caches.values()), default=0)

    def compute(self, prefix: tuple[int, ...], replica_id: str) -> tuple[int, list[int]]:
        forgotten = self._use(replica_id)
        cache = self._caches[replica_id]
        return cache.match(prefix), cache.touch(prefix) + forgotten

    def charge(self, flow: str, replica_id: str, service: float) -> None:
        super().charge(flow, replica_id, service)
        if flow in self._rounds and replica_id in self._caches:
            self._left_at.setdefault(flow, {})[replica_id] = self._left(flow, replica_id) - service
            self._refill_if_used_up(flow)

    def application_left(self, application: ApplicationFacts) -> None:
        super().application_left(application)
        if application.flow not in self._rounds:
            self._left_at.pop(application.flow, None)

    def replica_left(self, replica_id: str) -> None:
        cache = self._caches.pop(replica_id, None)
        if cache is None:
            return
        for left in self._left_at.values():
            left.pop(replica_id, None)
        self.rematch(list(cache))

    def _left(self, flow: str, replica_id: str) -> float:
        return self._left_at.get(flow, {}).get(replica_id, self.replica_quantum)

    def _refill_if_used_up(self, flow: str) -> None:
        most = max(self._left(flow, replica_id) for replica_id in self._caches)
        if most > 0:
            return
        refill = self.replica_quantum * (floor(-most / self.replica_quantum) + 1)
        for replica_id in self._caches:
            self._left_at[flow][replica_id] = min(self._left(flow, replica_id) + refill, self.replica_quantum)

    def _use(self, replica_id: str) -> list[int]:
        """Note that a replica was used; returns the blocks of the one that is forgotten for it."""
        if replica_id not in self._caches:
            self._caches[replica_id] = PrefixCache(self._cache_blocks)
        self._caches.move_to_end(replica_id)
        if len(self._caches) <= MAX_REPLICAS:
            return []
        oldest, cache = self._caches.popitem(last=False)
        for left in self._left_at.values():
            left.pop(oldest, None)
        return list(cache)
