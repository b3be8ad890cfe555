"""An application and its calls, as the core keeps them between events.

Costs: a call is expected to cost what was predicted, or what its progress shows once that is more; when it ends,
what it truly cost. An application is expected to cost the sum; it is kept up to date call by call, so that
asking is O(1).

Tags: `finish_tag = start_tag + max(predicted, expected)/weight` until the end, then `start_tag + true/weight`. While an
application is open and its prediction has a deviation, the estimate of `scheduler.revealed_work` takes the maximum's
place: what its calls were seen to cost moves what is expected of the rest. One of which nothing was predicted is
expected to cost what it has had and asks for: least attained service first.
The start tag is V at arrival. It moves in one case: when an application that the reference has already served
in full reveals more work, it starts anew at the present V, as a flow back from idleness does in fair queueing
(S = max(V, F)); otherwise it could save up credit while it asks for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from scheduler.cost import CostModel
from scheduler.lifecycle import ENDS, CallState, check_move
from scheduler.policies.contract import ApplicationFacts, CallFacts
from scheduler.revealed_work import total_cost
from scheduler.types import ApplicationSpec, CallKey, CallSpec

MAX_ENDED_CALLS = 100
"""Ended calls of an open application that are kept; of older ones only their cost is."""


@dataclass(slots=True)
class Call:
    """One call's state. `expected_cost` and `served_cost` are maintained by `Application.reestimate`.

    `kept_tokens` were made before its present lease, `preemptions` counts the leases that were taken from it.
    `facts` is what the policy was told when it last began to wait, or was found running.
    """

    key: CallKey
    after: tuple[str, ...]
    prompt_tokens: int
    predicted_output_tokens: int
    max_output_tokens: int
    sequences: int
    waiting_for: set[str]
    true_output_tokens: int | None = None
    stage: int = 0
    prefix: tuple[int, ...] = ()
    facts: CallFacts | None = None
    announced: bool = False
    ready_sequence: int = -1
    attempts: int = 0
    preemptions: int = 0
    kept_tokens: tuple[int, ...] = ()
    lease_id: str | None = None
    replica_id: str | None = None
    granted_s: float = 0.0
    ended_s: float = 0.0
    output_tokens: tuple[int, ...] = ()
    expected_cost: float = 0.0
    served_cost: float = 0.0
    end_reason: str = ""
    history: list[CallState] = field(default_factory=lambda: [CallState.BLOCKED])

    @property
    def state(self) -> CallState:
        return self.history[-1]

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def generated_tokens(self) -> int:
        """Output tokens of its longest sequence so far."""
        return max(self.output_tokens, default=0)

    @property
    def rest_tokens(self) -> int:
        """Output tokens that its longest sequence is still expected to make, at least 1."""
        return max(self.predicted_output_tokens - self.generated_tokens, 1)

    def made_under_lease(self) -> tuple[int, ...]:
        """Output tokens of each sequence since its present (or last) grant."""
        if not self.kept_tokens:
            return self.output_tokens
        pairs = zip(self.output_tokens, self.kept_tokens, strict=False)
        return tuple(max(made - kept, 0) for made, kept in pairs)

    def move(self, to: CallState) -> None:
        """Go to another state; IllegalMove when the table does not list it."""
        check_move("/".join(self.key), self.history, to)
        self.history.append(to)

    def progress(self, output_tokens: tuple[int, ...]) -> None:
        """Note what was generated so far.

        A call that outlives its prediction is expected to go on for half of what it has made, up to its maximum:
        of a length with a heavy tail, the longer it has lasted the more is to come.
        """
        self.output_tokens = output_tokens
        made = self.generated_tokens
        if made >= self.predicted_output_tokens:
            self.predicted_output_tokens = min(made + max(made // 2, 1), max(self.max_output_tokens, made))

    def estimate(self, cost: CostModel) -> float:
        """Its cost as far as is known: the true one after its end, else the predicted one."""
        if self.ended:
            return cost(self.prompt_tokens, self.output_tokens) if self.output_tokens else 0.0
        return cost(self.prompt_tokens, [self.predicted_output_tokens] * self.sequences)


class Application:
    """One application: its calls, their expected costs, and its tags. `told` is what the policy was told last."""

    def __init__(
        self,
        spec: ApplicationSpec,
        sequence: int,
        arrival_s: float,
        start_tag: float,
        cost_model: CostModel,
        ended_cost: float = 0.0,
    ) -> None:
        self.spec = spec
        self.sequence = sequence
        self.arrival_s = arrival_s
        self.last_end_s = arrival_s
        self.start_tag = start_tag
        self.open = spec.open
        self.calls: dict[str, Call] = {}
        self.unfinished_calls = 0
        self.expected_cost = ended_cost
        self.served_cost = ended_cost
        self.flow, self.flow_weight, self.tenant_weight = spec.application_id, spec.weight, 1.0
        self._folded_calls = 0
        self._ended_calls: deque[str] = deque()
        self.gps_finish_s: float | None = None
        self.failure: str | None = None
        self.cancellation: str | None = None
        self.told: ApplicationFacts | None = None
        self._facts: ApplicationFacts | None = None
        self._facts_state: tuple[object, ...] = ()
        self._cost = cost_model
        self._dependents: dict[str, list[str]] = {}
        for call in spec.calls:
            self.reveal(call)
        self._count_stages()
        self.predicted_cost = spec.predicted_cost if spec.predicted_cost is not None else self.expected_cost
        self.finish_tag = self._tag()

    @property
    def application_id(self) -> str:
        return self.spec.application_id

    @property
    def ended(self) -> bool:
        return not self.open and self.unfinished_calls == 0

    @property
    def outcome(self) -> str:
        """finished, failed or cancelled, once it has ended."""
        if self.failure is not None:
            return "failed"
        stopped = not self.spec.open and any(call.state is CallState.CANCELLED for call in self.calls.values())
        return "cancelled" if stopped or self.cancellation is not None else "finished"

    @property
    def cost(self) -> float:
        """What all of it costs as far as is known: the true cost once it has ended."""
        return self.expected_cost if self.ended else self.prediction

    @property
    def prediction(self) -> float:
        """What all of it was last expected to cost; of an open one, calls that nobody has seen yet included."""
        if self.open and self.spec.cost_deviation is not None:
            return total_cost(self.predicted_cost, self.spec.cost_deviation, self.expected_cost)
        return max(self.predicted_cost, self.expected_cost)

    @property
    def remaining_cost(self) -> float:
        """What it is still expected to cost; `served_cost` has the rest, the made part of running calls included."""
        return max(self.cost - self.served_cost, 0.0)

    @property
    def call_count(self) -> int:
        """Calls that were revealed, those that are no longer kept included."""
        return self._folded_calls + len(self.calls)

    def reveal(self, spec: CallSpec) -> Call:
        """Add a call; its dependencies must be calls of this application."""
        call = Call(
            key=CallKey(self.application_id, spec.call_id),
            after=spec.after,
            prompt_tokens=spec.prompt_tokens,
            predicted_output_tokens=spec.predicted_output_tokens,
            max_output_tokens=spec.max_output_tokens,
            sequences=spec.sequences,
            true_output_tokens=spec.true_output_tokens,
            stage=max((self.calls[name].stage + 1 for name in spec.after if name in self.calls), default=0),
            waiting_for={name for name in spec.after if name not in self.calls or not self.calls[name].ended},
        )
        self.calls[spec.call_id] = call
        for name in spec.after:
            self._dependents.setdefault(name, []).append(spec.call_id)
        self.unfinished_calls += 1
        self.reestimate(call)
        return call

    def dependents(self, call_id: str) -> list[Call]:
        """Calls that come directly after this one."""
        return [self.calls[name] for name in self._dependents.get(call_id, ())]

    def reestimate(self, call: Call) -> None:
        """Bring the expected and the served cost up to date with what is known of this call."""
        estimate = call.estimate(self._cost)
        self.expected_cost += estimate - call.expected_cost
        call.expected_cost = estimate
        served = self._cost(call.prompt_tokens, call.output_tokens) if call.output_tokens else 0.0
        self.served_cost += served - call.served_cost
        call.served_cost = served

    def end_call(self, call: Call, state: CallState, now_s: float, reason: str) -> None:
        """Bring a call to one of its ends."""
        call.move(state)
        call.ended_s = self.last_end_s = now_s
        call.end_reason = reason
        self.unfinished_calls -= 1
        self.reestimate(call)
        if self.open:
            self._fold_oldest(call)

    def _fold_oldest(self, call: Call) -> None:
        """Of a long-lived open application keep the last calls that ended, and the cost of all."""
        self._ended_calls.append(call.key.call_id)
        if len(self._ended_calls) > MAX_ENDED_CALLS:
            oldest = self.calls.pop(self._ended_calls.popleft())
            self._dependents.pop(oldest.key.call_id, None)
            self._folded_calls += 1

    def _count_stages(self) -> None:
        """Number the stages of calls that came in any order (Kahn's algorithm, O(calls + dependencies))."""
        left = {name: len(call.after) for name, call in self.calls.items()}
        free = deque(name for name, count in left.items() if count == 0)
        while free:
            call = self.calls[free.popleft()]
            for dependent in self.dependents(call.key.call_id):
                dependent.stage = max(dependent.stage, call.stage + 1)
                left[dependent.key.call_id] -= 1
                if left[dependent.key.call_id] == 0:
                    free.append(dependent.key.call_id)

    def facts(self) -> ApplicationFacts:
        """What a policy may know of it; the same object as long as nothing changes."""
        cost, remaining_cost, calls = self.cost, self.remaining_cost, self.call_count
        moving = (self.start_tag, self.finish_tag, cost, remaining_cost, calls)
        state = (*moving, self.flow, self.flow_weight, self.tenant_weight)
        if self._facts is None or state != self._facts_state:
            self._facts, self._facts_state = self._new_facts(cost, remaining_cost), state
        return self._facts

    def _new_facts(self, cost: float, remaining_cost: float) -> ApplicationFacts:
        spec = self.spec
        return ApplicationFacts(
            application_id=spec.application_id,
            sequence=self.sequence,
            flow=self.flow,
            tenant=spec.tenant,
            application_type=spec.application_type,
            weight=spec.weight,
            flow_weight=self.flow_weight,
            tenant_weight=self.tenant_weight,
            arrival_s=self.arrival_s,
            start_tag=self.start_tag,
            finish_tag=self.finish_tag,
            predicted_cost=cost,
            remaining_cost=remaining_cost,
            deadline_s=inf if spec.deadline_s is None else self.arrival_s + spec.deadline_s,
            period_s=inf if spec.period_s is None else spec.period_s,
            calls=self.call_count,
        )

    def call_facts(self, call: Call, ready_s: float) -> CallFacts:
        """What a policy may know of one of its calls, which became ready at this moment."""
        return CallFacts(
            key=call.key,
            application=self.facts(),
            ready_sequence=call.ready_sequence,
            ready_s=ready_s,
            stage=call.stage,
            after=call.after,
            prompt_tokens=call.prompt_tokens,
            predicted_output_tokens=call.predicted_output_tokens,
            true_output_tokens=call.true_output_tokens,
            sequences=call.sequences,
            prefix=call.prefix,
            grants=call.attempts + call.preemptions,
        )

    def measure_in(self, cost: CostModel, virtual_time: float) -> None:
        """Measure costs in another unit, from a start at the present V: what was counted before means nothing in it."""
        self._cost = cost
        for call in self.calls.values():
            self.reestimate(call)
        self.expected_cost = sum(call.expected_cost for call in self.calls.values())
        self.served_cost = sum(call.served_cost for call in self.calls.values())
        self.predicted_cost = self.expected_cost
        self.start_tag = virtual_time - self.served_cost / self.spec.weight

    def start_anew_if_served(self, virtual_time: float) -> None:
        """Before more work is revealed: what V passed while the application asked for nothing is gone."""
        self.start_tag += max(0.0, virtual_time - self.finish_tag)

    def update_tag(self) -> bool:
        """Let the tag follow what is known; returns whether it moved."""
        tag = self._tag()
        moved = tag != self.finish_tag
        self.finish_tag = tag
        return moved

    def _tag(self) -> float:
        return self.start_tag + self.cost / self.spec.weight


def find_cycle_or_stranger(calls: Iterable[CallSpec]) -> str | None:
    """What is wrong with the dependencies of these calls, in words, or None. O(calls + dependencies).

    Kahn's algorithm: take away calls whose dependencies are gone until none is left, or a cycle is.
    """
    specs = {call.call_id: call for call in calls}
    for call in specs.values():
        strangers = [name for name in call.after if name not in specs]
        if strangers:
            return f"call {call.call_id!r} comes after {strangers[0]!r}, which is not a call"
    left = {name: len(call.after) for name, call in specs.items()}
    dependents: dict[str, list[str]] = {}
    for call in specs.values():
        for name in call.after:
            dependents.setdefault(name, []).append(call.call_id)
    free = deque(name for name, count in left.items() if count == 0)
    while free:
        for name in dependents.get(free.popleft(), ()):
            left[name] -= 1
            if left[name] == 0:
                free.append(name)
    caught = [name for name, count in left.items() if count > 0]
    return f"calls wait for each other in a cycle: {', '.join(caught[:10])}" if caught else None
