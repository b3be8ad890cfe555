"""Start and finish tags against GPS: what the packet fair queueing policies have in common.

A call that begins to wait at V(a) and is preceded in its flow by one with finish tag F' has

    S = max(V(a), F'),   F = S + L/w,

with L its predicted cost, w the flow's weight and V the virtual time of GPS among flows
(`scheduler.policies.fluid_flows`). A flow is served first come first served, so only its first waiting call has tags:
F' is the tag of the call of the flow that was granted last. They are computed from V(a), which is kept for each
waiting call, so that a call that was lost returns to its old place (with V(a) the time of its return), and one that
is cancelled leaves no hole.

V follows the service that is seen: what running calls have made, in this policy's cost function, by `progressed` and
`ended`. So it needs no clock and no unit but its own, never runs ahead of the servers, and has caught up with a server
whenever a call ends there. A call that comes between two reports of a busy server has the V(a) of the earlier one. On
one server this is exactly fair queueing for calls that came at that report, since nothing is decided in between: the
bounds of the policies hold against GPS with these arrivals.

Lengths are predictions. What a call makes beyond its own is work that came for its flow, and F' moves with it; when
it ends with less, or is lost, or is cancelled, the work that is missing leaves the fluid, down to what the fluid has
delivered of it. So the fluid has, in the end, as much work as the servers.

F' of a flow is kept while it is backlogged here or in the fluid: for a flow that is in neither, V has passed it. When
nothing waits or runs, everything is forgotten and V begins at 0 again.
"""

from __future__ import annotations

from abc import abstractmethod

from scheduler.cost import CostModel
from scheduler.policies.contract import CallFacts, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.fluid_flows import FluidFlows
from scheduler.policies.running_charges import RunningCharges, made_cost
from scheduler.types import CallKey


class TaggedPolicy(Policy):
    """Keeps the tags of each backlogged flow's first call; what is done with them is its heir's."""

    def __init__(self, cost: CostModel) -> None:
        self._length = cost
        self._queues = FlowQueues()
        self._fluid = FluidFlows()
        self._running = RunningCharges(cost)
        self._made: dict[CallKey, float] = {}
        self._came: dict[CallKey, float] = {}
        self._last_finish: dict[str, float] = {}

    @property
    def virtual_time(self) -> float:
        """V, to look at."""
        return self._fluid.virtual_time

    @abstractmethod
    def _file(self, flow: str) -> None:
        """The tags of this backlogged flow may have changed."""

    @abstractmethod
    def _unfile(self, flow: str) -> None:
        """This flow is no longer backlogged."""

    def tags(self, flow: str) -> tuple[float, float]:
        """Start and finish tag of a backlogged flow's first call."""
        return self._tags_of(self._queues.first(flow))

    def add(self, call: CallFacts) -> None:
        self._came[call.key] = self._fluid.virtual_time
        self._fluid.add(call.flow, call.flow_weight, call.predicted_cost(self._length))
        self._queues.add(call)
        self._file(call.flow)

    def remove(self, key: CallKey) -> None:
        if self._came.pop(key, None) is None:
            return
        call = self._queues.call(key)
        if key not in self._running:
            self._fluid.add(call.flow, call.flow_weight, -call.predicted_cost(self._length))
        self._queues.remove(key)
        self._refresh(call.flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        if call.key not in self._came:
            self._fluid.add(call.flow, call.flow_weight, call.predicted_cost(self._length))
        self._last_finish[call.flow] = self._tags_of(call)[1]
        self._running.granted(call)
        self._made[call.key] = 0.0

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._correct(call, self._running.progressed(call, output_tokens))
        self._see(call, output_tokens)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._correct(call, self._running.ended(call, output_tokens))
        self._see(call, output_tokens)
        self._made.pop(call.key, None)
        self._refresh(call.flow)

    def _see(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        """Deliver to the fluid what a running call has made since it was last heard of."""
        before = self._made.get(call.key)
        if before is not None:
            self._made[call.key] = max(before, made_cost(self._length, call, output_tokens))
            self._serve(self._made[call.key] - before)

    def _serve(self, service: float) -> None:
        for flow in self._fluid.serve(service):
            self._forget_if_idle(flow)

    def _tags_of(self, call: CallFacts) -> tuple[float, float]:
        came = self._came.get(call.key, self._fluid.virtual_time)
        start = max(came, self._last_finish.get(call.flow, came))
        return start, start + call.predicted_cost(self._length) / call.flow_weight

    def _correct(self, call: CallFacts, difference: float) -> None:
        self._fluid.add(call.flow, call.flow_weight, difference)
        if difference > 0 or call.flow in self._last_finish:
            last = self._last_finish.get(call.flow, self._fluid.virtual_time)
            self._last_finish[call.flow] = last + difference / call.flow_weight
        if call.flow in self._queues:
            self._file(call.flow)

    def _refresh(self, flow: str) -> None:
        if flow in self._queues:
            self._file(flow)
            return
        self._unfile(flow)
        self._forget_if_idle(flow)
        if not self._queues and not self._running:
            self._fluid.clear()
            self._last_finish.clear()

    def _forget_if_idle(self, flow: str) -> None:
        if flow not in self._queues and flow not in self._fluid:
            self._last_finish.pop(flow, None)
