"""Which replica holds which call: replicas with their ledgers, leases, and grants that nobody has used yet.

Laws: a lease is in this book from its grant (or adoption) to its release, and in exactly one replica's ledger; lease
ids are `epoch-number` and never used twice in an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from scheduler.admission import Holding
from scheduler.applications import Call
from scheduler.capacity import Replica
from scheduler.finish_heap import FinishHeap


class LeaseBook:
    """All replicas and leases of one scheduler. `reserved_s` says when a grant that nobody used was given."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.replicas: dict[str, Replica] = {}
        self.leases: dict[str, Call] = {}
        self.reserved_s: dict[str, float] = {}
        self.granted = 0
        self._holds = 0
        self._by_age: FinishHeap[str] = FinishHeap()

    @property
    def pool_tokens(self) -> int:
        """M: KV tokens of all replicas together."""
        return sum(replica.limits.pool_tokens for replica in self.replicas.values())

    def roomiest_replica(self, call: Call) -> Replica | None:
        """Of the replicas that wait and have room for the call, the one with most free memory."""
        holding = _holding(call)
        waiting = [r for r in self.replicas.values() if r.offered_grants > 0 and r.has_place(holding)]
        by_room = sorted(waiting, key=lambda r: (r.held_tokens - r.limits.pool_tokens, r.replica_id))
        return next((r for r in by_room if r.can_ever_hold(call.prompt_tokens) and r.fits(holding)), None)

    def preferred_replica(self, call: Call, preferred: str | None) -> Replica | None:
        """The preferred replica if it waits and has room for the call, otherwise the roomiest."""
        replica = None if preferred is None else self.replicas.get(preferred)
        if replica is None or replica.offered_grants < 1 or not replica.can_ever_hold(call.prompt_tokens):
            return self.roomiest_replica(call)
        return replica if replica.fits(_holding(call)) else self.roomiest_replica(call)

    def reserve(self, replica: Replica, call: Call, now_s: float) -> str:
        """Use one grant of the replica's offer for a call; returns the lease."""
        self.granted += 1
        lease_id = f"{self.epoch}-{self.granted}"
        replica.offered_grants -= 1
        self.reserved_s[lease_id] = now_s
        self.hold(replica, call, lease_id, now_s)
        return lease_id

    def hold(self, replica: Replica, call: Call, lease_id: str, now_s: float) -> None:
        """Enter a call under a lease into a replica's ledger."""
        call.lease_id, call.replica_id = lease_id, replica.replica_id
        if not call.kept_tokens:
            call.granted_s = now_s
            call.attempts += 1
        replica.hold(lease_id, _holding(call))
        self.leases[lease_id] = call
        self._holds += 1
        self._by_age.set(lease_id, call.granted_s, self._holds)

    def use(self, lease_id: str) -> None:
        """The request of this lease has come."""
        self.reserved_s.pop(lease_id, None)

    def refresh(self, call: Call) -> None:
        """Bring the ledger up to date with a call's progress."""
        assert call.lease_id is not None
        assert call.replica_id is not None
        self.replicas[call.replica_id].hold(call.lease_id, _holding(call))

    def release(self, call: Call) -> None:
        """Strike a call's lease out."""
        assert call.lease_id is not None
        assert call.replica_id is not None
        del self.leases[call.lease_id]
        self._by_age.discard(call.lease_id)
        self.reserved_s.pop(call.lease_id, None)
        self.replicas[call.replica_id].strike(call.lease_id)
        call.lease_id = None

    def unused_since(self, moment_s: float) -> list[str]:
        """Leases granted at or before this moment that nobody has used, oldest first."""
        return leading(self.reserved_s, moment_s)

    def longest_running_s(self, now_s: float) -> float:
        """How long the oldest call that holds a lease has held it; 0 without any."""
        oldest = self._by_age.peek()
        return 0.0 if oldest is None else now_s - self._by_age.rank(oldest)


def leading(moments_s: Mapping[str, float], deadline_s: float) -> list[str]:
    """Keys of the leading moments at or before the deadline; the mapping is in order of its moments."""
    return [key for key, _ in takewhile(lambda item: item[1] <= deadline_s, moments_s.items())]


def _holding(call: Call) -> Holding:
    return Holding(call.prompt_tokens + call.generated_tokens, call.rest_tokens, call.sequences)
