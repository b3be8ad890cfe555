"""Completely fair scheduling: the flow with the least virtual runtime runs.

Linux's CFS (Molnar 2007, since 2.6.23; Documentation/scheduler/sched-design-CFS). Each flow has a virtual runtime,
the service it has received over its weight; the backlogged flow with the least runs its first call (equal ones: the
flow with the older application). min_vruntime is the least of them and never falls.

What is charged. In the kernel a runtime grows while a task runs. Calls run many at once and are not taken off a
server, so a flow that is not charged before its first tokens appear would be given every free place at one moment.
Hence the predicted cost is charged at the grant, what a call makes beyond it as it appears, and the difference to the
true cost, which may be negative, when it ends or is lost. So in the end a flow has paid for what its calls have made.

Leaving and returning. A flow that wakes up is placed at max(own, min_vruntime). The kernel places it up to half a
scheduling latency below, so that it can preempt; here nothing is preempted, and this would pay for coming and going:
the constant chosen is 0. When nothing waits, all runtimes begin anew.

Different from the kernel: no slices or granularities (a call runs to its end), no groups, one run queue.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence. A call that ends before its first token cost
nothing.

Defining property (lag): between flows that stay backlogged, with true predictions, virtual runtimes differ by at most
q, the largest cost/weight of a call, at each decision. With false ones, the true services received over weight differ
by at most q plus what the calls that run may still be mistaken by, however long it goes on. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.flow_meters import FlowMeters
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.running_charges import RunningCharges
from scheduler.types import CallKey


class Cfs(Policy):
    """Least virtual runtime first; the floor of the meters is min_vruntime."""

    name = "cfs"
    summary = "least weighted virtual runtime, corrected as calls run"
    paper = "CFS (Molnar, Linux 2.6.23, 2007)"
    follows_service = True
    service_demotes = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._queues = FlowQueues()
        self._runtimes = FlowMeters()
        self._running = RunningCharges(cost)

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._runtimes.join(call.flow, self._queues.number(call.flow))

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._runtimes.leave(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._charge(call, self._running.granted(call))

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._charge(call, self._running.progressed(call, output_tokens))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._charge(call, self._running.ended(call, output_tokens))

    def application_left(self, application: ApplicationFacts) -> None:
        self._runtimes.forget_if_empty()

    def head(self) -> CallKey | None:
        flow = self._runtimes.least()
        return None if flow is None else self._queues.first(flow).key

    def _charge(self, call: CallFacts, cost: float) -> None:
        self._runtimes.charge(call.flow, cost / call.flow_weight)
        self._runtimes.raise_floor_to_least()
