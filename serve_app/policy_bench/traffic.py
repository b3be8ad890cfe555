"""Applications of a trace as documents that a service can run, with prompts and answers of the trace's lengths.

Laws:

- A prompt has exactly the trace's tokens on an engine of `LengthRule.chars_per_token` (the tiny random model has a
  token a byte, the simulated engine one each four characters). What the application was asked stands at the beginning
  of the calls that come first, spread over them in order; the rest is filler without words.
- An answer has exactly the trace's tokens, and the service is not told how many: `max_tokens` is all that the model's
  context leaves, the same for every call with the same prompt. vLLM ends the answer by fields that no part of the
  service reads: `min_tokens` forbids the end-of-sequence token until one is left to make, and `logit_bias` makes it
  certain then. An engine without logits (the simulated one) has to be given the length as `max_tokens`, which bounds
  what the service predicts: comparisons on it are no test of predictions.
- The order, dependencies, types, weights, deadlines and periods are the trace's. Time that an application thinks before
  a call is not replayed, nor are tenants (everybody is one) and what prompts have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.sim.engine import EngineProfile
from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.application_prompts import prompt_of_document
from serve_app.documents import ApplicationDocument
from serve_app.sampling_fields import MAX_N

FILLER = "."
ONE_TENANT = "default"
"""Everybody's, where no key is asked for."""

CERTAIN = 100
"""The largest `logit_bias` of OpenAI's API: far beyond any logit of a random model."""


class TrafficError(ValueError):
    """A workload that cannot be replayed; the message names the application and the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRule:
    """How an engine is made to read and write so many tokens.

    `end_token_id` is the model's end of sequence; None for an engine that has none, and is told the length instead.
    """

    model: str
    max_model_len: int
    chars_per_token: int = 1
    end_token_id: int | None = None

    def sampling(self, call: TraceCall) -> dict[str, Any]:
        """The request's fields that make an answer of d tokens."""
        if self.end_token_id is None:
            return {"max_tokens": call.output_tokens, "ignore_eos": True}
        return {
            "max_tokens": self.max_model_len - call.prompt_tokens,
            "min_tokens": call.output_tokens - 1,
            "logit_bias": {str(self.end_token_id): CERTAIN},
            "temperature": 0.0 if call.sequences == 1 else 1.0,  # vLLM has no several greedy answers
        }


def stretched(applications: Iterable[TraceApplication], factor: float) -> list[TraceApplication]:
    """The same applications with the first at 0 and `factor` times the time between any two."""
    listed = list(applications)
    begin_s = min(one.arrival_s for one in listed) if listed else 0.0
    return [replace(one, arrival_s=(one.arrival_s - begin_s) * factor) for one in listed]


def check_replayable(applications: Iterable[TraceApplication], engine: EngineProfile) -> None:
    """Raise TrafficError for what cannot be replayed: a call that the engine cannot hold, or one that thinks."""
    for where, call in _calls_of(applications):
        if call.prompt_tokens < 1:
            raise TrafficError(f"{where}: it has no prompt")
        if call.delay_s:
            raise TrafficError(f"{where}: applications that think before a call are not replayed")
        if call.sequences > MAX_N:
            raise TrafficError(f"{where}: {call.sequences} sequences are more than the {MAX_N} of a request")
        _check_fits(where, call, engine, "the engine")


def check_fits(applications: Iterable[TraceApplication], engine: EngineProfile, name: str) -> None:
    """Raise TrafficError for a call that the engine, of this name in the message, can never hold."""
    for where, call in _calls_of(applications):
        _check_fits(where, call, engine, name)


def _calls_of(applications: Iterable[TraceApplication]) -> Iterator[tuple[str, TraceCall]]:
    for application in applications:
        for call in application.calls:
            yield f"application {application.application_id}, call {call.name}", call


def _check_fits(where: str, call: TraceCall, engine: EngineProfile, name: str) -> None:
    length, longest = call.prompt_tokens + call.output_tokens, engine.longest_sequence_tokens
    if length > longest:
        raise TrafficError(f"{where}: {length} tokens are more than the {longest} of {name}")
    if call.sequences > engine.max_sequences:
        raise TrafficError(f"{where}: {call.sequences} sequences are more than the {engine.max_sequences} of {name}")
    blocks = call.sequences * engine.blocks_of(length)
    if blocks > engine.usable_blocks:
        what = f"{call.sequences} sequences of {length} tokens take {blocks} blocks"
        raise TrafficError(f"{where}: {what}, more than the {engine.usable_blocks} of {name}")


def document_of(application: TraceApplication, rule: LengthRule) -> dict[str, Any]:
    """The body of `POST /v1/applications` for one application."""
    texts = prompt_texts(application, rule.chars_per_token)
    times = {"deadline_s": application.deadline_s, "period_s": application.period_s}
    return {
        "application_id": application.application_id,
        "application_type": application.application_type,
        "weight": application.weight,
        **{name: value for name, value in times.items() if value is not None},
        "model": rule.model,
        "calls": [_call_document(call, texts[call.name], rule) for call in application.calls],
    }


def _call_document(call: TraceCall, text: str, rule: LengthRule) -> dict[str, Any]:
    sequences = {} if call.sequences == 1 else {"n": call.sequences}
    named = {"name": call.name, "after": list(call.after), "prompt": text}
    return {**named, **sequences, **rule.sampling(call)}


def prompt_texts(application: TraceApplication, chars_per_token: int) -> Mapping[str, str]:
    """Each call's prompt by its name, `chars_per_token` characters (of one byte each) a token."""
    asked = _plain(application.prompt)
    return dict(_texts(application.calls, asked, chars_per_token))


def _texts(calls: Iterable[TraceCall], asked: str, chars_per_token: int) -> Iterator[tuple[str, str]]:
    for call in calls:
        chars = call.prompt_tokens * chars_per_token
        head, asked = ("", asked) if call.after else (asked[:chars], asked[chars:])
        yield call.name, head + FILLER * (chars - len(head))


def _plain(text: str) -> str:
    """The text in characters of one byte, without what a document's prompts would take for a reference."""
    return text.encode("ascii", "replace").decode("ascii").replace("{{", "{(").strip()


def as_the_service_sees(application: TraceApplication, rule: LengthRule) -> TraceApplication:
    """The application as its document has it: of the one tenant, no prompt the beginning of another.

    Its prompt is what the service takes for it: the texts of its first calls.
    """
    document = ApplicationDocument.model_validate(document_of(application, rule))
    calls = tuple(replace(call, prefix=()) for call in application.calls)
    return replace(application, prompt=prompt_of_document(document), tenant=ONE_TENANT, calls=calls)
