"""The numbers of a generation request, each with its limits, checked once at the edge.

A number outside its limits can end an engine for everybody (vllm-omni PR #6598), so none passes unchecked:
the fields of the table lie within their bounds, and any other number, however deep, is finite and fits in 64
bits. The bounds are inclusive; where the engine's own rule is narrower (`repetition_penalty` > 0) the engine
refuses. JSON booleans are not numbers, and 7.0 is not an integer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from serve_app.errors import invalid

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_REQUEST_TOKENS = 1_000_000
MAX_N = 128
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """An inclusive range; `whole` asks for an integer. `switch` lets true and false pass as well."""

    low: float
    high: float
    whole: bool = False
    switch: bool = False


NUMBER_LIMITS: dict[str, Limits] = {
    "max_tokens": Limits(1, MAX_REQUEST_TOKENS, whole=True),
    "max_completion_tokens": Limits(1, MAX_REQUEST_TOKENS, whole=True),
    "min_tokens": Limits(0, MAX_REQUEST_TOKENS, whole=True),
    "thinking_token_budget": Limits(-1, MAX_REQUEST_TOKENS, whole=True),
    "truncate_prompt_tokens": Limits(-1, MAX_REQUEST_TOKENS, whole=True),
    "n": Limits(1, MAX_N, whole=True),
    "best_of": Limits(1, MAX_N, whole=True),
    "seed": Limits(INT64_MIN, INT64_MAX, whole=True),
    "priority": Limits(INT64_MIN, INT64_MAX, whole=True),
    "top_k": Limits(-1, MAX_REQUEST_TOKENS, whole=True),
    "logprobs": Limits(-1, 1_000, whole=True, switch=True),
    "top_logprobs": Limits(-1, 1_000, whole=True),
    "prompt_logprobs": Limits(-1, 1_000, whole=True),
    "temperature": Limits(0, 2),
    "top_p": Limits(0, 1),
    "min_p": Limits(0, 1),
    "frequency_penalty": Limits(-2, 2),
    "presence_penalty": Limits(-2, 2),
    "repetition_penalty": Limits(0, 100),
    "length_penalty": Limits(-1_000, 1_000),
}

SAMPLING_FIELDS: frozenset[str] = frozenset(NUMBER_LIMITS) | {
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "logit_bias",
    "metadata",
    "model",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "suffix",
    "tool_choice",
    "tools",
    "truncation_side",
    "user",
    "vllm_xargs",
}
"""What the engine (vLLM) understands; any other field reaches it too, and is ignored there."""


def check_numbers(fields: Mapping[str, object], prefix: str = "", skip: Collection[str] = ()) -> None:
    """Raise a 400 that names the first number of `fields` that is out of its limits.

    `prefix` stands before a field's name in the error (`calls[2].`). Fields in `skip` are not looked into.
    """
    for name, value in fields.items():
        if name in skip or value is None:
            continue
        limits = NUMBER_LIMITS.get(name)
        if limits is not None:
            _check_limits(prefix + name, value, limits)
        else:
            _check_nested(prefix + name, value)


def _check_limits(path: str, value: object, limits: Limits) -> None:
    if limits.switch and isinstance(value, bool):
        return
    accepted = (int,) if limits.whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise invalid(path, f"{path} must be {'an integer' if limits.whole else 'a number'}, not {_kind(value)}")
    if not limits.low <= value <= limits.high:
        raise invalid(path, f"{path} must lie in [{limits.low}, {limits.high}], got {_shown(value)}")


def _check_nested(path: str, value: object) -> None:
    """Numbers inside `value` are finite and within 64 bits, texts are Unicode, and nesting is bounded."""
    pending: list[tuple[str, object, int]] = [(path, value, 0)]
    while pending:
        at, item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise invalid(path, f"{path} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, dict):
            for key in item:
                check_text(at, key)
        if isinstance(item, dict | list):
            pending.extend((child, inner, depth + 1) for child, inner in _children(at, item))
        else:
            _check_leaf(at, item)


def _check_leaf(path: str, item: object) -> None:
    if isinstance(item, float) and not math.isfinite(item):
        raise invalid(path, f"{path} must be a finite number, got {item}")
    if isinstance(item, int) and not INT64_MIN <= item <= INT64_MAX:
        raise invalid(path, f"{path} must fit in 64 bits, got {_shown(item)}")
    if isinstance(item, str):
        check_text(path, item)


def check_text(path: str, text: str) -> None:
    """Raise a 400 for text that no tokenizer can take: half of a surrogate pair (`"\\ud800"` in JSON)."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(path, f"{path} holds an unpaired surrogate at character {error.start}") from None


def _children(path: str, item: dict[str, object] | list[object]) -> Iterator[tuple[str, object]]:
    if isinstance(item, dict):
        return ((f"{path}.{key}", inner) for key, inner in item.items())
    return ((f"{path}[{index}]", inner) for index, inner in enumerate(item))


def _kind(value: object) -> str:
    return "a boolean" if isinstance(value, bool) else type(value).__name__


def _shown(value: float) -> str:
    return str(value) if abs(value) < 1e40 else f"a number with {len(str(value))} characters"
