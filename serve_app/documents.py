"""Applications on the wire: what a client may POST to `/v1/applications`, and what it gets back.

Laws.
1. A document that is accepted can be run: names are unique, every dependency exists, there is no cycle, every
   `{{name}}` is a direct dependency, every prompt has text, every number is within its limits.
2. A document that is refused is refused with a 400 that names the field; nothing of it is kept.
3. Sampling fields that this module does not know reach the engine unchanged; those that would change who runs
   when, or the shape of the answer, are refused by name (`RESERVED_FIELDS`).

`parse_application` is the way in: it raises `ApiError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from scheduler.types import MAX_TIME_S
from serve_app.call_graph import describe_cycle, find_cycle, topological_order
from serve_app.chat_messages import check_messages, has_content, map_message_texts, message_texts
from serve_app.errors import from_validation, invalid
from serve_app.json_body import parse_object
from serve_app.prompt_templates import NAME_PATTERN, literal_chars, references, substitute
from serve_app.sampling_fields import (
    INT64_MAX,
    INT64_MIN,
    MAX_N,
    MAX_REQUEST_TOKENS,
    SAMPLING_FIELDS,
    check_numbers,
)

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
TYPE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
MAX_CALLS = 10_000
MAX_STOPS = 64
# Anybody may state any weight, and clients of one tenant share. A wider range than this (the core takes 1e-6 to 1e6)
# would let one client's weight move everybody else's tags.
MIN_WEIGHT = 0.01
MAX_WEIGHT = 100.0
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

OPEN_REASON = (
    "an open application has no calls at its beginning: send them one by one to /v1/chat/completions or "
    "/v1/completions with its application_id, and close it with POST /v1/applications/{id}/close"
)
PARENT_REASON = (
    "only an open application can be a part of another one: send the calls of a sub-agent one by one to "
    "/v1/chat/completions or /v1/completions"
)
RESERVED_FIELDS: dict[str, str] = {
    "stream": "results of an application are read from its status or its events",
    "stream_options": "results of an application are read from its status or its events",
    "priority": "the scheduler sets the order inside the engine",
    "use_beam_search": "beam search generates outside the lease of its call; use n for several sequences",
    "best_of": "use n",
    "max_completion_tokens": "use max_tokens, for chat as well",
    "request_id": "ids inside the engine are the service's own",
    "prompt_embeds": "the tokens of embeddings cannot be counted",
    "echo": "outputs are passed on to other calls without their prompts",
}

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIME_S, allow_inf_nan=False)]
_STRICT = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class CallDocument(BaseModel):
    """One call of a document. Fields beyond these are sampling fields and go to the engine as they are."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    name: Name
    after: list[Name] = []
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_REQUEST_TOKENS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    stop: Any = None

    @property
    def is_chat(self) -> bool:
        return self.messages is not None

    @property
    def path(self) -> str:
        return CHAT_PATH if self.is_chat else COMPLETIONS_PATH

    def texts(self) -> list[tuple[str, str]]:
        """(path within the call, template) of each text of its prompt."""
        if self.messages is not None:
            return list(message_texts(self.messages))
        return [("prompt", self.prompt or "")]

    def references(self) -> list[str]:
        """Names of the calls whose output the prompt holds, as often as it holds them."""
        return [name for _, text in self.texts() for name in references(text)]

    def sampling_fields(self) -> dict[str, Any]:
        """What goes into the engine's request beside the prompt."""
        known = ("max_tokens", "temperature", "top_p", "seed", "stop")
        fields = {name: getattr(self, name) for name in known if getattr(self, name) is not None}
        if self.n != 1:
            fields["n"] = self.n
        return {**(self.model_extra or {}), **fields}


class ApplicationDocument(BaseModel):
    """A whole application: its calls and their dependencies, known at arrival; or an `open` one, without calls as yet.

    An open one that names its `parent_application_id` is a sub-agent: its calls are its parent's. `deadline_s` (from
    its arrival) and `period_s` (how often such a run comes) matter to policies of deadlines only.
    """

    model_config = _STRICT

    application_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    parent_application_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    application_type: Annotated[str, Field(pattern=TYPE_PATTERN)] = "unknown"
    weight: Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)] = 1.0
    deadline_s: Seconds | None = None
    period_s: Seconds | None = None
    model: str | None = None
    calls: Annotated[list[CallDocument], Field(max_length=MAX_CALLS)] = []
    open: bool = False

    _order: list[str] = PrivateAttr(default_factory=list)
    _calls_by_name: dict[str, CallDocument] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.open and self.calls:
            raise invalid("calls", OPEN_REASON)
        if self.open:
            return self
        if self.parent_application_id is not None:
            raise invalid("parent_application_id", PARENT_REASON)
        if not self.calls:
            raise invalid("calls", "calls: an application has at least one call")
        self._calls_by_name = _calls_by_name(self.calls)
        for index, call in enumerate(self.calls):
            _check_call(f"calls[{index}]", call, self._calls_by_name)
        self._order = _acyclic_order(self.calls)
        return self

    def order(self) -> list[str]:
        """Call names, each after everything it depends on."""
        return list(self._order)

    def call(self, call_name: str) -> CallDocument:
        return self._calls_by_name[call_name]

    def path(self, call_name: str) -> str:
        """Where the call's request goes: chat completions for messages, completions for a prompt."""
        return self.call(call_name).path

    def render(self, call_name: str, outputs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The OpenAI request body of a call; `outputs` holds the texts of its dependencies by call name.

        Raises ApiError (400) when empty outputs leave the prompt without text, KeyError when one is missing.
        """
        call = self.call(call_name)
        prompt = _rendered_prompt(call, outputs)
        model = {} if self.model is None else {"model": self.model}
        return {**model, **prompt, **call.sampling_fields()}

    def longest_template_chars(self, call_name: str) -> int:
        """Characters of the call's prompt that are known before its dependencies end."""
        return sum(literal_chars(text) for _, text in self.call(call_name).texts())

    def unrecognised_fields(self) -> list[str]:
        """Paths of the fields that are passed on but that no engine is known to understand."""
        return [
            f"calls[{index}].{field}"
            for index, call in enumerate(self.calls)
            for field in call.model_extra or {}
            if field not in SAMPLING_FIELDS
        ]


ApplicationState = Literal["queued", "running", "finished", "failed", "cancelled"]


class CallStatus(BaseModel):
    """One call in an application's status. `outputs` holds one text a sequence once the call has finished."""

    name: str
    state: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    outputs: list[str] | None = None
    error: str | None = None


class ApplicationStatus(BaseModel):
    """An application as its owner sees it.

    `finish_tag` is virtual time and costs are KV token-iterations. `created_s` is Unix time; `completion_s`,
    `gps_completion_s` (under fair sharing) and `bound_s` are seconds after arrival, `lag_s` the difference of
    the first two. None: not known, or not yet. `calls` is None in listings, and for an application that came call by
    call. `ignored_fields` are the paths of fields that no engine is known to understand.
    """

    application_id: str
    application_type: str = "unknown"
    tenant: str = "default"
    weight: float = 1.0
    state: ApplicationState
    finish_tag: float | None = None
    predicted_cost: float | None = None
    true_cost: float | None = None
    created_s: float | None = None
    calls_total: int | None = None
    calls_done: int | None = None
    calls: list[CallStatus] | None = None
    completion_s: float | None = None
    gps_completion_s: float | None = None
    lag_s: float | None = None
    bound_s: float | None = None
    error: str | None = None
    ignored_fields: list[str] | None = None


def parse_application(body: bytes | Mapping[str, Any]) -> ApplicationDocument:
    """The document in an HTTP body (or an object already parsed from one). Raises ApiError."""
    fields = parse_object(body) if isinstance(body, bytes) else dict(body)
    try:
        return ApplicationDocument.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from None


def _calls_by_name(calls: Sequence[CallDocument]) -> dict[str, CallDocument]:
    by_name: dict[str, CallDocument] = {}
    for index, call in enumerate(calls):
        if call.name in by_name:
            raise invalid(f"calls[{index}].name", f"calls[{index}].name: {call.name!r} is the name of another call")
        by_name[call.name] = call
    return by_name


def _check_call(path: str, call: CallDocument, calls: Mapping[str, CallDocument]) -> None:
    _check_reserved(path, call)
    check_numbers(call.model_extra or {}, prefix=f"{path}.")
    _check_stop(f"{path}.stop", call.stop)
    _check_prompt(path, call)
    _check_dependencies(f"{path}.after", call, calls)
    _check_references(path, call, calls)


def _check_reserved(path: str, call: CallDocument) -> None:
    for field in call.model_extra or {}:
        if field in RESERVED_FIELDS:
            raise invalid(f"{path}.{field}", f"{path}.{field} is refused: {RESERVED_FIELDS[field]}")


def _check_stop(path: str, stop: object) -> None:
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else None
    if stop is None:
        return
    if texts is None or len(texts) > MAX_STOPS or not all(isinstance(text, str) and text for text in texts):
        raise invalid(path, f"{path} must be a text or a list of at most {MAX_STOPS} texts, none empty")
    check_numbers({path: texts})


def _check_prompt(path: str, call: CallDocument) -> None:
    if (call.messages is None) == (call.prompt is None):
        raise invalid(f"{path}.prompt", f"{path}: give exactly one of messages and prompt")
    if call.messages is not None:
        check_messages(f"{path}.messages", call.messages)
    elif not (call.prompt or "").strip():
        raise invalid(f"{path}.prompt", f"{path}.prompt is empty")


def _check_dependencies(path: str, call: CallDocument, calls: Mapping[str, CallDocument]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(call.after):
        at = f"{path}[{index}]"
        if name == call.name:
            raise invalid(at, f"{at}: call {name!r} cannot come after itself")
        if name not in calls:
            raise invalid(at, f"{at}: call {call.name!r} comes after {name!r}, which is no call of this application")
        if name in seen:
            raise invalid(at, f"{at}: {name!r} is named twice")
        seen.add(name)


def _check_references(path: str, call: CallDocument, calls: Mapping[str, CallDocument]) -> None:
    after = set(call.after)
    for at, text in call.texts():
        for name in references(text):
            if name not in calls:
                raise invalid(f"{path}.{at}", f"{path}.{at}: {{{{{name}}}}} is no call of this application")
            if name not in after:
                reason = f"call {call.name!r} uses {{{{{name}}}}}, so its after must name {name!r}"
                raise invalid(f"{path}.{at}", f"{path}.{at}: {reason}")


def _acyclic_order(calls: Sequence[CallDocument]) -> list[str]:
    after = {call.name: call.after for call in calls}
    order = topological_order(after)
    if len(order) < len(after):
        cycle = find_cycle(after)
        index = list(after).index(cycle[0])
        raise invalid(f"calls[{index}].after", f"calls wait for each other in a cycle: {describe_cycle(cycle)}")
    return order


def _rendered_prompt(call: CallDocument, outputs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    prompt: str | list[dict[str, Any]]
    if call.messages is not None:
        prompt = map_message_texts(call.messages, lambda text: substitute(text, outputs))
        blank = not has_content(prompt)
    else:
        prompt = substitute(call.prompt or "", outputs)
        blank = not prompt.strip()
    field = "messages" if call.is_chat else "prompt"
    if blank:
        empty = ", ".join(sorted(set(call.references())))
        raise invalid(f"{call.name}.{field}", f"call {call.name!r} has an empty prompt: {empty} gave no text")
    return {field: prompt}
