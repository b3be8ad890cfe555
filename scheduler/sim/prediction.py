"""What a simulated scheduler is told of an application when it arrives, and what it learns when one has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.sim.workload import TraceApplication

UNKNOWN_OUTPUT_TOKENS = 256
"""Predicted for a call of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Output tokens of a sequence by call name, and the application's KV token-time (None: the sum over its calls)."""

    outputs: Mapping[str, int]
    cost: float | None = None


class Predictor(Protocol):
    """Predicts at arrival, and hears the truth at the end."""

    def predict(self, application: TraceApplication) -> Prediction:
        """What is to be expected of an application whose lengths nobody knows."""

    def learn(self, application: TraceApplication) -> None:
        """It has ended; all of it is known."""


class Oracle:
    """The truth."""

    def predict(self, application: TraceApplication) -> Prediction:
        return Prediction({call.name: call.output_tokens for call in application.calls})

    def learn(self, application: TraceApplication) -> None:
        pass


class TypeMean:
    """The mean of what ended before: of a type's costs, and of its calls' output tokens; at first a constant."""

    def __init__(self) -> None:
        self._costs: dict[str, tuple[int, float]] = {}
        self._outputs: dict[str, tuple[int, float]] = {}

    def predict(self, application: TraceApplication) -> Prediction:
        count, total = self._outputs.get(application.application_type, (0, 0.0))
        tokens = max(round(total / count), 1) if count else UNKNOWN_OUTPUT_TOKENS
        seen, cost = self._costs.get(application.application_type, (0, 0.0))
        return Prediction({call.name: tokens for call in application.calls}, cost / seen if seen else None)

    def learn(self, application: TraceApplication) -> None:
        kind = application.application_type
        seen, cost = self._costs.get(kind, (0, 0.0))
        self._costs[kind] = (seen + 1, cost + application.cost)
        count, total = self._outputs.get(kind, (0, 0.0))
        made = sum(call.output_tokens for call in application.calls)
        self._outputs[kind] = (count + len(application.calls), total + made)


class Nothing:
    """The same for every call."""

    def predict(self, application: TraceApplication) -> Prediction:
        return Prediction({call.name: UNKNOWN_OUTPUT_TOKENS for call in application.calls})

    def learn(self, application: TraceApplication) -> None:
        pass
