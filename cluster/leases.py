"""The leases of one replica: granted, then claimed by the request that comes, then ended.

Laws: a lease is claimed at most once; a lease that was aborted, or that an earlier scheduler granted and nobody
claimed, is refused; every claimed lease ends in exactly one fact; facts are kept until the scheduler has them, and
the latest ends longer, for a scheduler that takes over before the ingress heard of them. Grants wait for their
requests no longer than the scheduler lets them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from cluster.engine import ActiveLease, LeaseRefused
from cluster.messages import CallRequest, LeaseFact, PullReply
from scheduler.actions import Grant
from scheduler.cost import memory_cost
from scheduler.events import CallFailed, CallFinished, CallStarted, CallStopped

MAX_REMEMBERED = 100_000
MAX_RESTATED = 1_000
CLAIM_WAIT_S = 5.0


@dataclass(slots=True)
class _Running:
    lease: ActiveLease
    stop: Callable[[], object]


class LeaseTable:
    """All leases of one replica. `changed` is called when there is something to report."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._granted: OrderedDict[str, Grant] = OrderedDict()
        self._running: dict[str, _Running] = {}
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._facts: list[LeaseFact] = []
        self._acknowledged_ends: deque[LeaseFact] = deque(maxlen=MAX_RESTATED)
        self._arrived = asyncio.Condition()
        self._ended_cost = 0.0

    @property
    def active(self) -> dict[str, ActiveLease]:
        """Claimed leases that have not ended, by id."""
        return {lease_id: running.lease for lease_id, running in self._running.items()}

    @property
    def facts(self) -> tuple[LeaseFact, ...]:
        """Facts that the scheduler has not acknowledged, oldest first."""
        return tuple(self._facts)

    @property
    def served_token_iterations(self) -> float:
        """KV token-time served since the replica started: of ended leases, and of running ones so far.

        Counting every running sequence's p + i at each of its iterations i, as the engine goes, gives this sum.
        """
        return self._ended_cost + sum(_cost(running.lease) for running in self._running.values())

    def acknowledge(self, count: int) -> None:
        """The scheduler has the oldest `count` facts."""
        ends = (fact for fact in self._facts[:count] if not isinstance(fact, CallStarted))
        self._acknowledged_ends.extend(ends)
        del self._facts[:count]

    async def apply(self, reply: PullReply) -> None:
        """Take grants and aborts from the scheduler."""
        for grant in reply.grants:
            self._granted[grant.lease_id] = grant
        for lease_id in reply.aborted_leases:
            self._abort(lease_id)
        _forget_oldest(self._granted)
        async with self._arrived:
            self._arrived.notify_all()

    def follow(self, epoch: int) -> None:
        """A scheduler of another epoch has taken over.

        What the earlier one granted and nobody claimed is void. Ends that only the earlier one knew are stated
        again, since the ingress that gives such a call back may not have heard of its end.
        """
        for lease_id, grant in list(self._granted.items()):
            if grant.epoch != epoch:
                self._refuse(lease_id, "its scheduler was replaced")
        self._facts = [*self._acknowledged_ends, *self._facts]
        self._acknowledged_ends.clear()

    async def claim(self, request: CallRequest, stop: Callable[[], object]) -> ActiveLease:
        """Begin the call of a lease; `stop` ends it early. Raises LeaseRefused.

        A request may overtake the grant that it follows, so an unknown lease is waited for a moment.
        """
        try:
            async with asyncio.timeout(CLAIM_WAIT_S), self._arrived:
                await self._arrived.wait_for(lambda: self._is_known(request.lease_id))
        except TimeoutError:
            raise LeaseRefused(f"no grant for lease {request.lease_id}") from None
        if request.lease_id not in self._granted:
            raise LeaseRefused(f"lease {request.lease_id} {self._refused.get(request.lease_id, 'is in use')}")
        grant = self._granted.pop(request.lease_id)
        lease = ActiveLease(grant.lease_id, grant.application_id, grant.call_id, grant.priority, request.sequences)
        self._running[grant.lease_id] = _Running(lease, stop)
        self._refuse(grant.lease_id, "was used before")
        self._state(CallStarted(grant.lease_id))
        return lease

    def finish(self, lease: ActiveLease) -> None:
        """The engine has answered in full."""
        self._end(lease, CallFinished(lease.lease_id, lease.prompt_tokens, lease.output_tokens))

    def stopped(self, lease: ActiveLease) -> None:
        """The client left, or the scheduler ended the lease, before the answer was complete."""
        self._end(lease, CallStopped(lease.lease_id, lease.prompt_tokens, lease.output_tokens))

    def fail(self, lease: ActiveLease, reason: str) -> None:
        """The engine refused the request."""
        self._end(lease, CallFailed(lease.lease_id, reason))

    def _end(self, lease: ActiveLease, fact: LeaseFact) -> None:
        if self._running.pop(lease.lease_id, None) is None:
            return
        lease.revoked = True
        self._ended_cost += _cost(lease)
        self._state(fact)

    def _state(self, fact: LeaseFact) -> None:
        self._facts.append(fact)
        self._changed()

    def _abort(self, lease_id: str) -> None:
        running = self._running.get(lease_id)
        if running is None:
            self._refuse(lease_id, "was taken back")
        else:
            running.lease.revoked = True
            running.stop()

    def _refuse(self, lease_id: str, why: str) -> None:
        self._granted.pop(lease_id, None)
        self._refused[lease_id] = why
        _forget_oldest(self._refused)

    def _is_known(self, lease_id: str) -> bool:
        return lease_id in self._granted or lease_id in self._refused or lease_id in self._running


def _cost(lease: ActiveLease) -> float:
    return sum(memory_cost(use.prompt_tokens, use.output_tokens) for use in lease.uses)


def _forget_oldest(remembered: OrderedDict[str, Grant] | OrderedDict[str, str]) -> None:
    while len(remembered) > MAX_REMEMBERED:
        remembered.popitem(last=False)
