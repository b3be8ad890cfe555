"""Applications to simulate: what a trace says of them, and the truth that engines learn only at the end.

The format is JSON Lines, one application a line, with `application_id`, `application_type`, `arrival_s`, `prompt` and
`calls` (`name`, `after`, `prompt_tokens`, `output_tokens`; optionally `sequences`, `prefix`, hashes of its leading
blocks, and `delay_s`, how long the application thinks before the call), and optionally `tenant`, `weight`, `deadline_s`
and `period_s`. Other fields are ignored. Lines stand in order of arrival. Every fault is a WorkloadError that names the
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from scheduler.cost import memory_cost
from scheduler.types import ApplicationSpec, CallSpec

MAX_CALLS = 1_000_000
T = TypeVar("T", str, int)


class WorkloadError(ValueError):
    """A workload that cannot be simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCall:
    """One call: p prompt tokens, and the d tokens that each of its sequences will make.

    Its prompt is ready `delay_s` after the last call that it comes after has ended, or after its application's arrival.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    after: tuple[str, ...] = ()
    sequences: int = 1
    prefix: tuple[int, ...] = ()
    delay_s: float = 0.0

    @property
    def cost(self) -> float:
        """Its true KV token-time, in token-iterations."""
        return memory_cost(self.prompt_tokens, (self.output_tokens,) * self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceApplication:
    """One application of a trace; `arrival_s` counts from the trace's beginning."""

    application_id: str
    arrival_s: float
    calls: tuple[TraceCall, ...]
    application_type: str = "unknown"
    prompt: str = ""
    tenant: str = "default"
    weight: float = 1.0
    deadline_s: float | None = None
    period_s: float | None = None

    @property
    def cost(self) -> float:
        """Its true KV token-time, in token-iterations."""
        return sum(call.cost for call in self.calls)

    @property
    def thinks(self) -> bool:
        """Does it let time pass before a call?"""
        return any(call.delay_s for call in self.calls)

    def spec(self, outputs: Mapping[str, int], predicted_cost: float | None) -> ApplicationSpec:
        """What a scheduler is told at arrival; `outputs` are the predicted output tokens by call name.

        One that thinks is open, so that no delay bound is stated for it: its time is not the scheduler's alone.
        """
        return ApplicationSpec(
            application_id=self.application_id,
            application_type=self.application_type,
            tenant=self.tenant,
            weight=self.weight,
            predicted_cost=predicted_cost,
            open=self.thinks,
            deadline_s=self.deadline_s,
            period_s=self.period_s,
            calls=tuple(
                CallSpec(
                    call_id=call.name,
                    prompt_tokens=call.prompt_tokens,
                    predicted_output_tokens=outputs[call.name],
                    max_output_tokens=max(call.output_tokens, outputs[call.name]),
                    sequences=call.sequences,
                    after=call.after,
                    true_output_tokens=call.output_tokens,
                )
                for call in self.calls
            ),
        )


def read_workload(lines: Iterable[str]) -> Iterator[TraceApplication]:
    """The applications of a JSON Lines trace, one at a time; empty lines are skipped."""
    last_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            application = _application(json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise WorkloadError(f"line {number}: {what}") from error
        if application.arrival_s < last_s:
            raise WorkloadError(f"line {number}: arrives at {application.arrival_s} s, before the line above it")
        last_s = application.arrival_s
        yield application


def write_application(application: TraceApplication) -> str:
    """One line of the format, without its line end."""
    document: dict[str, Any] = {
        "application_id": application.application_id,
        "application_type": application.application_type,
        "arrival_s": application.arrival_s,
        "prompt": application.prompt,
    }
    for name, usual in (("tenant", "default"), ("weight", 1.0), ("deadline_s", None), ("period_s", None)):
        if getattr(application, name) != usual:
            document[name] = getattr(application, name)
    document["calls"] = [_call_document(call) for call in application.calls]
    return json.dumps(document)


def at_intensity(applications: Iterable[TraceApplication], intensity: float) -> Iterator[TraceApplication]:
    """The same applications, arriving `intensity` times as fast; they think as long as before."""
    if not 0 < intensity < float("inf"):
        raise WorkloadError(f"intensity must be positive and finite, got {intensity}")
    for application in applications:
        yield replace(application, arrival_s=application.arrival_s / intensity)


def _call_document(call: TraceCall) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": call.name,
        "after": list(call.after),
        "prompt_tokens": call.prompt_tokens,
        "output_tokens": call.output_tokens,
    }
    if call.sequences != 1:
        document["sequences"] = call.sequences
    if call.prefix:
        document["prefix"] = list(call.prefix)
    if call.delay_s:
        document["delay_s"] = call.delay_s
    return document


def _application(document: Any) -> TraceApplication:
    if not isinstance(document, dict):
        raise TypeError("not an object")
    calls = tuple(_call(call) for call in document["calls"])
    if not 1 <= len(calls) <= MAX_CALLS:
        raise ValueError(f"an application has 1 to {MAX_CALLS} calls, not {len(calls)}")
    arrival_s = float(document["arrival_s"])
    if not 0 <= arrival_s < float("inf"):
        raise ValueError(f"arrival_s must be finite and not negative, got {arrival_s}")
    named = ("weight", "deadline_s", "period_s")
    optional = {name: document[name] for name in named if document.get(name) is not None}
    for name, value in optional.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, got {value!r}")
    tenant = document.get("tenant", "default")
    if not isinstance(tenant, str):
        raise TypeError(f"tenant must be a string, got {tenant!r}")
    return TraceApplication(
        application_id=str(document["application_id"]),
        application_type=str(document.get("application_type", "unknown")),
        arrival_s=arrival_s,
        prompt=str(document.get("prompt", "")),
        tenant=tenant,
        calls=calls,
        **optional,
    )


def _call(document: dict[str, Any]) -> TraceCall:
    delay_s = float(document.get("delay_s", 0.0))
    if not 0 <= delay_s < float("inf"):
        raise ValueError(f"delay_s must be finite and not negative, got {delay_s}")
    return TraceCall(
        name=str(document["name"]),
        after=_list_of(str, document, "after"),
        prompt_tokens=_count(document, "prompt_tokens", 0),
        output_tokens=_count(document, "output_tokens", 1),
        sequences=_count({"sequences": 1, **document}, "sequences", 1),
        prefix=_list_of(int, document, "prefix"),
        delay_s=delay_s,
    )


def _list_of(kind: type[T], document: Mapping[str, Any], name: str) -> tuple[T, ...]:
    values = document.get(name, [])
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise TypeError(f"{name} must be a list of {kind.__name__}, got {values!r}")
    return tuple(values)


def _count(document: Mapping[str, Any], name: str, least: int) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value
