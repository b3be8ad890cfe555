"""One OpenAI inference as the ingress needs to know it before any engine sees it.

`parse_inference` answers: how many sequences, of which prompts, at most how long, for which application. The
body itself is not rewritten: the engine gets the client's bytes. What could harm an engine or a neighbour is
refused here with a 400 that names the field: numbers out of their limits, prompts without text, searches that
generate beyond the lease of their call. Fields that this module does not know pass.

The application of a request is the first hint that `ID_HINTS` finds, in its order: what names an application
outright comes before the session ids of agents, the body before the headers, and the cache key (which may be
shared by many runs) comes last. A request that names a parent (`PARENT_HINTS`) comes from a sub-agent and belongs to
the parent's application (`serve_app.sub_agents`). `STAGE_HINTS` name the kind of call that it is within its
application, by which lengths are learnt. Requests without any hint are told apart by their API key alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.types import MAX_SEQUENCES
from serve_app.chat_messages import check_messages
from serve_app.documents import CHAT_PATH, COMPLETIONS_PATH, ID_PATTERN, TYPE_PATTERN
from serve_app.errors import ApiError, invalid
from serve_app.json_body import parse_object
from serve_app.prompt_templates import NAME_PATTERN
from serve_app.sampling_fields import check_numbers, check_text
from serve_app.tenants import key_group

COMPLETIONS_DEFAULT_TOKENS = 16
MAX_TOKEN_ID = 2**31 - 1

Prompt = str | tuple[int, ...]


class Hint(NamedTuple):
    """A place where a request may name its application. `exact`: an invalid id is refused, not hashed."""

    source: str  # "body", "metadata" (an object in the body) or "header"
    name: str
    exact: bool = False


ID_HINTS: tuple[Hint, ...] = (
    Hint("body", "application_id", exact=True),
    Hint("header", "x-application-id", exact=True),
    Hint("metadata", "application_id", exact=True),
    Hint("body", "program_id"),
    Hint("header", "x-llm-d-inference-fairness-id"),
    Hint("header", "x-gateway-inference-fairness-id"),
    Hint("header", "x-claude-code-session-id"),
    Hint("header", "session-id"),
    Hint("header", "x-session-affinity"),
    Hint("header", "x-session-id"),
    Hint("body", "prompt_cache_key"),
)
PARENT_HINTS: tuple[Hint, ...] = (
    Hint("body", "parent_application_id", exact=True),
    Hint("header", "x-parent-application-id", exact=True),
    Hint("metadata", "parent_application_id", exact=True),
)
STAGE_HINTS: tuple[Hint, ...] = (
    Hint("body", "stage", exact=True),
    Hint("header", "x-stage", exact=True),
    Hint("metadata", "stage", exact=True),
)
TYPE_HINTS: tuple[Hint, ...] = (
    Hint("body", "application_type", exact=True),
    Hint("header", "x-application-type", exact=True),
    Hint("metadata", "application_type", exact=True),
)

REFUSED_FIELDS: dict[str, str] = {
    "use_beam_search": "beam search generates outside the lease of its call; use n for several sequences",
    "prompt_embeds": "the tokens of embeddings cannot be counted",
}

_ID = re.compile(ID_PATTERN)
_TYPE = re.compile(TYPE_PATTERN)
_STAGE = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ApplicationHints:
    """What a request says about its application; None where it says nothing.

    `key_group` is the same for requests with the same API key, and empty for those without one.
    """

    application_id: str | None = None
    application_type: str | None = None
    parent_id: str | None = None
    stage: str | None = None
    key_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A checked request. `raw` is the client's body, byte for byte.

    Chat has `messages` and `tools` and no `prompts`; a completion has one entry in `prompts` for each prompt:
    a text, or token ids. `sequences` is n times their number. `max_tokens` is where the engine will stop, None
    for "at the end of the context" (completions without the field stop at 16, as in OpenAI's API).
    """

    path: str
    raw: bytes
    body: Mapping[str, Any]
    is_chat: bool
    n: int
    sequences: int
    max_tokens: int | None
    hints: ApplicationHints
    prompts: tuple[Prompt, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] | None = None


def parse_inference(path: str, headers: Mapping[str, str], body: bytes) -> InferenceRequest:
    """The request in `body`, sent to `path` with `headers` (any case). Raises ApiError."""
    if path not in (CHAT_PATH, COMPLETIONS_PATH):
        raise ApiError(404, f"{path} is not an inference path")
    fields = parse_object(body)
    is_chat = path == CHAT_PATH
    _check_fields(fields)
    prompts = () if is_chat else _prompts(fields.get("prompt"))
    n = _n(fields)
    return InferenceRequest(
        path=path,
        raw=body,
        body=fields,
        is_chat=is_chat,
        n=n,
        sequences=_sequences(n, 1 if is_chat else len(prompts)),
        max_tokens=_chat_max_tokens(fields) if is_chat else fields.get("max_tokens", COMPLETIONS_DEFAULT_TOKENS),
        hints=_hints(fields, headers),
        prompts=prompts,
        messages=tuple(check_messages("messages", fields.get("messages"))) if is_chat else (),
        tools=_tools(fields) if is_chat else None,
    )


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name, reason in REFUSED_FIELDS.items():
        if fields.get(name) not in (None, False):
            raise invalid(name, f"{name} is refused: {reason}")
    _check_stream(fields.get("stream"))
    check_numbers(fields, skip=("prompt", "messages"))


def _n(fields: Mapping[str, Any]) -> int:
    n: int = 1 if fields.get("n") is None else fields["n"]
    if fields.get("best_of") not in (None, n):
        raise invalid("best_of", f"best_of must be absent or equal to n ({n})")
    return n


def _sequences(n: int, prompts: int) -> int:
    if n * prompts > MAX_SEQUENCES:
        raise invalid("prompt", f"{prompts} prompts with n = {n} are more than {MAX_SEQUENCES} sequences")
    return n * prompts


def _chat_max_tokens(fields: Mapping[str, Any]) -> int | None:
    limit: int | None = fields.get("max_completion_tokens")
    return limit if limit is not None else fields.get("max_tokens")


def _check_stream(stream: object) -> None:
    if stream is not None and not isinstance(stream, bool):
        raise invalid("stream", "stream must be true or false")


def _tools(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    tools = fields.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise invalid("tools", "tools must be a list")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise invalid(f"tools[{index}]", f"tools[{index}] must be an object")
    return tuple(tools) or None


def _prompts(prompt: object) -> tuple[Prompt, ...]:
    """One entry a prompt, from the four shapes of OpenAI's API: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return (_text_prompt("prompt", prompt),)
    if not isinstance(prompt, list):
        raise invalid("prompt", "prompt must be a text, a list of token ids, or a list of either")
    if not prompt:
        raise invalid("prompt", "prompt is empty")
    if isinstance(prompt[0], int):
        return (_token_prompt("prompt", prompt),)
    return tuple(_list_entry(f"prompt[{index}]", entry) for index, entry in enumerate(prompt))


def _list_entry(path: str, entry: object) -> Prompt:
    if isinstance(entry, str):
        return _text_prompt(path, entry)
    if isinstance(entry, list):
        return _token_prompt(path, entry)
    raise invalid(path, f"{path} must be a text or a list of token ids")


def _text_prompt(path: str, text: str) -> str:
    if not text or text.isspace():
        raise invalid(path, f"{path} is empty")
    check_text(path, text)
    return text


def _token_prompt(path: str, tokens: list[Any]) -> tuple[int, ...]:
    if not tokens:
        raise invalid(path, f"{path} is empty")
    if any(type(token) is not int for token in tokens):
        raise invalid(path, f"{path} must hold token ids only")
    if min(tokens) < 0 or max(tokens) > MAX_TOKEN_ID:
        raise invalid(path, f"{path} holds a token id outside [0, {MAX_TOKEN_ID}]")
    return tuple(tokens)


def _hints(fields: Mapping[str, Any], headers: Mapping[str, str]) -> ApplicationHints:
    lowered = {name.lower(): value for name, value in headers.items()}
    return ApplicationHints(
        application_id=_first_hint(ID_HINTS, _ID, fields, lowered),
        application_type=_first_hint(TYPE_HINTS, _TYPE, fields, lowered),
        parent_id=_first_hint(PARENT_HINTS, _ID, fields, lowered),
        stage=_first_hint(STAGE_HINTS, _STAGE, fields, lowered),
        key_group=key_group(lowered.get("authorization")),
    )


def _first_hint(
    hints: tuple[Hint, ...], valid: re.Pattern[str], fields: Mapping[str, Any], headers: Mapping[str, str]
) -> str | None:
    for hint in hints:
        value = _hint_value(hint, fields, headers)
        if value is None:
            continue
        if isinstance(value, str) and valid.fullmatch(value):
            return value
        if hint.exact:
            where = hint.name if hint.source != "metadata" else f"metadata.{hint.name}"
            raise invalid(where, f"{where} must match {valid.pattern}")
        if value != "":
            return _hashed_id(str(value))
    return None


def _hint_value(hint: Hint, fields: Mapping[str, Any], headers: Mapping[str, str]) -> object:
    if hint.source == "header":
        return headers.get(hint.name)
    if hint.source == "body":
        return fields.get(hint.name)
    metadata = fields.get("metadata")
    return metadata.get(hint.name) if isinstance(metadata, dict) else None


def _hashed_id(alias: str) -> str:
    """A valid id for a session id of any shape: the same for the same text, and no other text's."""
    return "session-" + hashlib.sha256(alias.encode("utf-8", "surrogatepass")).hexdigest()[:32]
