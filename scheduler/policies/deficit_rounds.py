"""Deficits of flows, refilled in rounds: who may be next, and who has had enough for a while.

A flow spends its deficit by what it is charged and may be next while some is left. When no backlogged flow has any,
a round ends: every flow gets a quantum, times its weight, but never has more than one (Shreedhar and Varghese's deficit
round robin, SIGCOMM 1995, with spending after the fact: a deficit may fall below 0 and is then made up for).

Laws:
- a refill happens only when a call is granted that needs it; asking changes nothing;
- a flow that becomes active begins with what it left with, at most 0, so that it waits for the end of the round: those
  who were there cannot be passed for ever by newcomers;
- a flow that left with a debt is remembered until the rounds have paid for it, or until nobody is active.

Rounds are numbered, and a flow's refills are counted when it is looked at, so that a refill of all costs nothing: flows
are filed by the number of the round in which they have something left. Each operation is O(log n) in the flows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import ApplicationFacts


@dataclass(slots=True)
class _Account:
    """What a flow had left in some round; `place` is its order among those that may be next, while it waits."""

    number: int
    weight: float
    deficit: float
    round: int
    applications: int = 0
    place: tuple[float, int] | None = None
    filed_in: int = 0


class DeficitRounds:
    """The deficits of all active flows, and those of them that wait."""

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._round = 0
        self._accounts: dict[str, _Account] = {}
        self._flow_of: dict[str, str] = {}
        self._debts: dict[str, _Account] = {}
        self._paid_in: FinishHeap[str] = FinishHeap()
        self._files: dict[int, FinishHeap[str]] = {}
        self._rounds: FinishHeap[int] = FinishHeap()

    def __contains__(self, flow: str) -> bool:
        """Whether a flow is active."""
        return flow in self._accounts

    def head(self) -> str | None:
        """The flow that is next: the first in place of those that have something left, after refills if need be."""
        number = self._rounds.peek()
        return None if number is None else self._files[number].peek()

    def deficit(self, flow: str) -> float:
        """What an active flow may still be charged in this round; KeyError for any other."""
        return self._left(self._accounts[flow])

    def arrive(self, application: ApplicationFacts) -> None:
        flow = application.flow
        self._flow_of[application.application_id] = flow
        account = self._accounts.get(flow) or self._return(flow, application)
        self._settle(account)
        account.weight = application.flow_weight
        account.applications += 1

    def leave(self, application: ApplicationFacts) -> None:
        flow = self._flow_of.pop(application.application_id, None)
        if flow is None:
            return
        account = self._accounts[flow]
        account.applications -= 1
        if account.applications == 0:
            del self._accounts[flow]
            self._remember(flow, account)

    def charge(self, flow: str, service: float) -> None:
        """Spend some of a flow's deficit; strangers are ignored."""
        account = self._accounts.get(flow)
        if account is None:
            return
        self._settle(account)
        account.deficit -= service
        if account.place is not None:
            self.place(flow, *account.place)

    def place(self, flow: str, rank: float, sequence: int) -> None:
        """An active flow waits; among flows that have something left the smallest (rank, sequence) goes first."""
        self.displace(flow)
        account = self._accounts[flow]
        account.place, account.filed_in = (rank, sequence), self._next_round(account)
        if account.filed_in not in self._files:
            self._files[account.filed_in] = FinishHeap()
            self._rounds.set(account.filed_in, account.filed_in, 0)
        self._files[account.filed_in].set(flow, rank, sequence)

    def displace(self, flow: str) -> None:
        """An active flow waits no more."""
        account = self._accounts[flow]
        if account.place is None:
            return
        account.place = None
        file = self._files[account.filed_in]
        file.discard(flow)
        if not file:
            del self._files[account.filed_in]
            self._rounds.discard(account.filed_in)

    def begin(self) -> None:
        """The flow that is next, and there is one, is granted a call: the refills that this takes happen."""
        number = self._rounds.peek()
        assert number is not None
        self._round = number
        self._forget()

    def _return(self, flow: str, application: ApplicationFacts) -> _Account:
        account = self._debts.pop(flow, None) or _Account(
            application.sequence, application.flow_weight, 0.0, self._round
        )
        self._paid_in.discard(flow)
        self._accounts[flow] = account
        return account

    def _remember(self, flow: str, account: _Account) -> None:
        self._settle(account)
        if account.deficit < 0:
            self._debts[flow] = account
            rounds = ceil(-account.deficit / (self._quantum * account.weight))
            self._paid_in.set(flow, self._round + rounds, account.number)
        self._forget()

    def _forget(self) -> None:
        """Drop the debts that the rounds have paid for; all of them when nobody is active."""
        while (flow := self._paid_in.peek()) is not None:
            if self._accounts and self._paid_in.rank(flow) > self._round:
                return
            self._paid_in.discard(flow)
            del self._debts[flow]

    def _left(self, account: _Account) -> float:
        quantum = self._quantum * account.weight
        return min(account.deficit + quantum * (self._round - account.round), quantum)

    def _settle(self, account: _Account) -> None:
        """Bring an account to the present round."""
        account.deficit, account.round = self._left(account), self._round

    def _next_round(self, account: _Account) -> int:
        """The first round, this one or later, in which something is left."""
        left = self._left(account)
        return self._round if left > 0 else self._round + floor(-left / (self._quantum * account.weight)) + 1
