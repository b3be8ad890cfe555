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
- The order, dependencies and types are the trace's. Time that an application thinks before a call is not replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.application_prompts import prompt_of_document
from serve_app.documents import ApplicationDocument

FILLER = "."
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
            "temperature": 0.0,
        }


def stretched(applications: Iterable[TraceApplication], factor: float) -> list[TraceApplication]:
    """The same applications with the first at 0 and `factor` times the time between any two."""
    listed = list(applications)
    begin_s = min(one.arrival_s for one in listed) if listed else 0.0
    return [replace(one, arrival_s=(one.arrival_s - begin_s) * factor) for one in listed]


def check_replayable(applications: Iterable[TraceApplication], rule: LengthRule, pool_tokens: int) -> None:
    """Raise TrafficError for what cannot be replayed: a call beyond the model or the pool, or one that thinks."""
    longest = min(rule.max_model_len, pool_tokens)
    for application in applications:
        for call in application.calls:
            where = f"application {application.application_id}, call {call.name}"
            if call.prompt_tokens < 1:
                raise TrafficError(f"{where}: it has no prompt")
            if call.delay_s:
                raise TrafficError(f"{where}: applications that think before a call are not replayed")
            if call.prompt_tokens + call.output_tokens > longest:
                length = call.prompt_tokens + call.output_tokens
                raise TrafficError(f"{where}: {length} tokens are more than the {longest} of the engine")


def document_of(application: TraceApplication, rule: LengthRule) -> dict[str, Any]:
    """The body of `POST /v1/applications` for one application."""
    texts = prompt_texts(application, rule.chars_per_token)
    return {
        "application_id": application.application_id,
        "application_type": application.application_type,
        "weight": application.weight,
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
    """The application with that for its prompt which the service takes for it: the texts of its first calls."""
    document = ApplicationDocument.model_validate(document_of(application, rule))
    return replace(application, prompt=prompt_of_document(document))
