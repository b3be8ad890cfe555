"""What becomes of applications, put together from the scheduler's actions: to learn from, and to write down.

An ingress knows what an application was asked from its arrival, and its calls' true lengths from their ends; its
cost comes with the word of its end. Laws: memory is bounded (`MAX_APPLICATIONS`, `MAX_CALLS` of each and
`MAX_CALLS_IN_ALL`); who is forgotten teaches nothing, and is never taken for somebody else; one whose end another
ingress will hear of is kept only while it has calls here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from scheduler.cost import memory_cost
from scheduler.types import ApplicationRecord
from serve_app.tenants import bare_id

MAX_APPLICATIONS = 10_000
MAX_CALLS = 1_000
MAX_CALLS_IN_ALL = 200_000


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that finished; tokens of its prompt and of each of its sequences."""

    stage: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]

    @property
    def cost(self) -> float:
        """Token-iterations."""
        return memory_cost(self.prompt_tokens, self.output_tokens)


@dataclass(frozen=True, slots=True)
class EndedApplication:
    """One that has ended, as far as this ingress saw it: of its calls those that went through it, at most MAX_CALLS."""

    record: ApplicationRecord
    prompt: str
    calls: tuple[EndedCall, ...]

    @property
    def complete(self) -> bool:
        """Are all of its calls here?"""
        return len(self.calls) == self.record.calls

    @property
    def cost(self) -> float:
        """Token-iterations; where calls are missing, what the scheduler counted, in the unit of its policy."""
        return sum(call.cost for call in self.calls) if self.complete else self.record.true_cost

    def document(self, ended_s: float, with_prompt: bool) -> dict[str, Any]:
        """A line of the log of finished applications (`serve_app.training_data` reads it); `ended_s` is Unix time."""
        record = self.record
        text = {"prompt": self.prompt} if with_prompt else {}
        return {
            "application_id": bare_id(record.application_id),
            "application_type": record.application_type,
            "tenant": record.tenant,
            "outcome": record.outcome,
            "ended_s": round(ended_s, 3),
            "completion_s": round(record.completion_s, 4),
            "predicted_cost": record.predicted_cost,
            "true_cost": self.cost,
            **text,
            "calls": [_call_document(call) for call in self.calls],
        }


@dataclass(frozen=True, slots=True)
class Expectation:
    """An application's cost in token-iterations, and the standard deviation of its natural logarithm."""

    cost: float
    deviation: float


@dataclass(slots=True)
class Underway:
    """One that has arrived: what it was asked, what it was expected to cost, its calls that have finished."""

    prompt: str
    expected: Expectation | None
    calls: list[EndedCall] = field(default_factory=list)


class ApplicationsUnderway:
    """Those that have arrived at this ingress, oldest first, until their end."""

    def __init__(self) -> None:
        self._applications: OrderedDict[str, Underway] = OrderedDict()
        self._calls = 0
        self._owned: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._applications)

    def get(self, application_id: str) -> Underway | None:
        """One that has arrived and not ended."""
        return self._applications.get(application_id)

    def begin(self, application_id: str, prompt: str, expected: Expectation | None = None) -> None:
        """It has arrived; one that is known already goes on."""
        if application_id not in self._applications:
            self._applications[application_id] = Underway(prompt, expected)
            self._forget_beyond_limits()

    def own(self, application_id: str) -> None:
        """The scheduler tells this ingress of it, its end included; that may come before its first call."""
        self._owned[application_id] = None
        while len(self._owned) > MAX_APPLICATIONS:
            self._owned.popitem(last=False)

    def owns(self, application_id: str) -> bool:
        """Will this ingress hear of its end?"""
        return application_id in self._owned

    def end_call(self, application_id: str, call: EndedCall) -> None:
        """One of its calls has finished."""
        underway = self._applications.get(application_id)
        if underway is not None and len(underway.calls) < MAX_CALLS:
            underway.calls.append(call)
            self._calls += 1
            self._forget_beyond_limits()

    def end(self, record: ApplicationRecord) -> EndedApplication | None:
        """It has ended; None for one whose arrival was not seen here, or is forgotten."""
        underway = self.forget(record.application_id)
        return None if underway is None else EndedApplication(record, underway.prompt, tuple(underway.calls))

    def forget(self, application_id: str) -> Underway | None:
        """It was refused, or has ended, here or elsewhere; idempotent."""
        self._owned.pop(application_id, None)
        underway = self._applications.pop(application_id, None)
        self._calls -= 0 if underway is None else len(underway.calls)
        return underway

    def _forget_beyond_limits(self) -> None:
        while len(self._applications) > MAX_APPLICATIONS or self._calls > MAX_CALLS_IN_ALL:
            self.forget(next(iter(self._applications)))


def _call_document(call: EndedCall) -> dict[str, Any]:
    """Sequences of one length each are told as the reader wants them: a call of that many, as long as their mean."""
    sequences = len(call.output_tokens)
    mean = round(sum(call.output_tokens) / sequences) if sequences else 0
    return {
        "name": call.stage,
        "prompt_tokens": call.prompt_tokens,
        "output_tokens": mean,
        "sequences": sequences,
    }
