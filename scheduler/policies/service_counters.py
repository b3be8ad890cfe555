"""Counters of service a flow, smallest first: what the policies that count service have in common.

Every flow with an application in the system (an *active* flow) has a counter of what it was charged, divided by its
weight. The backlogged flow with the smallest counter is next; equal counters go in order of their oldest application
that waits, and calls in order of readiness inside a flow.

Laws:
- **lift.** A flow that becomes active gets the smallest counter among the active flows, or its own from before if that
  is larger; so that nobody saves up credit while idle, and nobody sheds a debt by leaving.
- **memory.** The counter of a flow that left is kept while it is larger than the smallest active one, since below that
  the lift makes it void; of the largest `MAX_DEBTS` only, and never of an application, which does not return. When
  nobody is active all debts are forgiven, and counters begin at 0 again, as nobody has been kept waiting by them. (A
  refund that takes the smallest counter back does not bring back what was forgotten.)
- **settling.** A call is charged up to a total that depends on what it has made; the difference to what it was charged
  before is added to its flow's counter. The total when it ends stays; a call that is lost and granted again is charged
  anew, for its prompt is computed again.
- **grain.** Totals are whole multiples of `GRAIN`, so that counters up to 2³² are the same in however many reports the
  progress of a call is told.

Counters are not rebased while somebody is active: at a million tokens a second a float64 tells tokens apart for 285
years.
add, remove and every charge are O(log n) in the flows and in the calls of the flow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import ALWAYS, ApplicationFacts, CallFacts, Need, Policy, RunningCall
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey

MAX_DEBTS = 512
"""Flows that left and are remembered with what they were charged beyond the others."""

GRAIN = 2.0**-20
"""The smallest charge, in the unit of a counter."""


@dataclass(slots=True)
class _Flow:
    """An active flow: a number to break ties, and its applications in the system."""

    number: int
    applications: int = 0


class ServiceCounters:
    """The counters of all flows, and the calls that wait in them."""

    def __init__(self) -> None:
        self._queues = FlowQueues()
        self._flows: dict[str, _Flow] = {}
        self._flow_of: dict[str, str] = {}
        self._active: FinishHeap[str] = FinishHeap()
        self._waiting: FinishHeap[str] = FinishHeap()
        self._debts: FinishHeap[str] = FinishHeap()

    @property
    def floor(self) -> float:
        """The smallest counter of an active flow; 0 when there is none."""
        flow = self._active.peek()
        return 0.0 if flow is None else self._active.rank(flow)

    def counter(self, flow: str) -> float:
        """The counter of an active flow; the floor for any other."""
        return self._active.rank(flow) if flow in self._flows else self.floor

    def head(self) -> CallKey | None:
        flow = self._waiting.peek()
        return None if flow is None else self._queues.first(flow).key

    def lead(self) -> float:
        """By how much the first waiting flow's counter lies below those of all others that wait."""
        first = self._waiting.peek()
        others = (self._waiting.rank(flow) for flow in self._waiting if flow != first)
        return min(others, default=inf) - (0.0 if first is None else self._waiting.rank(first))

    def arrive(self, application: ApplicationFacts) -> None:
        flow = application.flow
        self._flow_of[application.application_id] = flow
        if flow not in self._flows:
            debt = self._debts.rank(flow) if flow in self._debts else -inf
            self._debts.discard(flow)
            self._flows[flow] = _Flow(application.sequence)
            self._active.set(flow, max(self.floor, debt), application.sequence)
        self._flows[flow].applications += 1

    def leave(self, application: ApplicationFacts) -> None:
        flow = self._flow_of.pop(application.application_id, None)
        if flow is None:
            return
        self._flows[flow].applications -= 1
        if self._flows[flow].applications == 0:
            if flow == application.tenant or flow != application.application_id:  # an application does not return
                self._debts.set(flow, self._active.rank(flow), self._flows[flow].number)
            self._active.discard(flow)
            del self._flows[flow]
            self._forget()

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._waiting.set(call.flow, self._active.rank(call.flow), self._queues.number(call.flow))

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._waiting.discard(flow)

    def charge(self, flow: str, service: float) -> None:
        """Add service, in units of the flow's weight; strangers are ignored."""
        if flow not in self._flows:
            return
        counter = self._active.rank(flow) + service
        self._active.set(flow, counter, self._flows[flow].number)
        if flow in self._waiting:
            self._waiting.set(flow, counter, self._queues.number(flow))
        self._forget()

    def _forget(self) -> None:
        """Drop the debts that the lift makes void, and the smallest of too many."""
        floor = self.floor if self._active else inf
        while (flow := self._debts.peek()) is not None:
            if self._debts.rank(flow) > floor and len(self._debts) <= MAX_DEBTS:
                return
            self._debts.discard(flow)


class CounterPolicy(Policy):
    """The flow with the smallest counter first; a policy says what a call is charged."""

    needs: tuple[Need, ...] = (Need.WEIGHTS,)
    shares_among_flows = True
    follows_service = True
    service_adds_up = True

    def __init__(self) -> None:
        self._counters = ServiceCounters()
        self._charged: dict[CallKey, float] = {}

    @abstractmethod
    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        """What a call has to be charged in all when its sequences have made so many tokens; at its grant all are 0."""

    def charge_at_end(self, call: CallFacts, made: tuple[int, ...]) -> float:
        """What it has to be charged in all when it holds its replica no more."""
        return self.charge_while_running(call, made)

    def unit(self, call: CallFacts) -> float:
        """How much a counter moves by: charges are divided by this."""
        return call.flow_weight

    def head(self) -> CallKey | None:
        return self._counters.head()

    def steady_tokens(self, first: ApplicationFacts, running: Sequence[RunningCall]) -> int:
        """While what the head's flow is charged leaves its counter below the others', as if these stayed."""
        own = [one for one in running if one.facts.flow == first.flow]
        if not own:
            return ALWAYS
        lead = self._counters.lead()
        low, high = 0, max(one.facts.predicted_output_tokens for one in own)
        while low < high:
            middle = (low + high + 1) // 2
            if sum(self._charge_ahead(one, middle) for one in own) < lead:
                low = middle
            else:
                high = middle - 1
        return low

    def _charge_ahead(self, one: RunningCall, tokens: int) -> float:
        """What a running call would be charged for so many more tokens a sequence, in its flow's unit."""
        made = (one.made_tokens + tokens,) * one.facts.sequences
        total = self._in_units(one.facts, self.charge_while_running(one.facts, made))
        return total - self._charged[one.facts.key]

    def rank(self, call: CallFacts) -> float | None:
        return self._counters.counter(call.flow)

    def add(self, call: CallFacts) -> None:
        self._counters.add(call)

    def remove(self, key: CallKey) -> None:
        self._counters.remove(key)

    def application_arrived(self, application: ApplicationFacts) -> None:
        self._counters.arrive(application)

    def application_left(self, application: ApplicationFacts) -> None:
        self._counters.leave(application)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._charged[call.key] = 0.0
        self._settle(call, self.charge_while_running(call, (0,) * call.sequences))

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        if call.key in self._charged:
            self._settle(call, self.charge_while_running(call, output_tokens or (0,) * call.sequences))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        if call.key in self._charged:
            self._settle(call, self.charge_at_end(call, output_tokens or (0,) * call.sequences))
            del self._charged[call.key]

    def _settle(self, call: CallFacts, service: float) -> None:
        total = self._in_units(call, service)
        difference = total - self._charged[call.key]
        self._charged[call.key] = total
        if difference:
            self._counters.charge(call.flow, difference)

    def _in_units(self, call: CallFacts, service: float) -> float:
        return round(service / self.unit(call) / GRAIN) * GRAIN
