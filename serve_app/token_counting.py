"""How many tokens a prompt has, before any engine sees it.

Laws.
1. Counting never blocks the event loop: it runs in one thread of its own, a slice of the prompts at a time, so
   that requests which are counted at the same moment take turns.
2. A count is at least 1. It is an estimate (the engine's own count corrects the ledger), so what cannot be
   counted, such as an image, counts as nothing.
3. Whatever a client puts into its messages ends in a count or in a 400 that names `messages`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from cluster.engines import SimulatedSettings, VllmSettings
from cluster.models import ModelUnavailable, prepare_model
from cluster.simulated_engine import approximate_tokens, chat_text
from serve_app.chat_messages import message_texts
from serve_app.errors import ApiError, invalid
from serve_app.inference_request import InferenceRequest, Prompt

SLICE_CHARS = 50_000
TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the template's renderer that `chat_template_kwargs` may not replace."""


class TokenCounter(Protocol):
    """Counts the tokens of a request's prompts: one number a prompt, one in all for a chat."""

    async def count(self, request: InferenceRequest) -> tuple[int, ...]:
        """Tokens of each prompt. Raises ApiError (400) for messages that the chat template refuses."""

    def close(self) -> None:
        """Let go of what counting needs; nothing is counted after."""


class ApproximateTokenCounter:
    """A token each four characters, as the simulated engine counts them."""

    async def count(self, request: InferenceRequest) -> tuple[int, ...]:
        if request.is_chat:
            return (approximate_tokens(chat_text(request.messages)),)
        return tuple(_approximate(prompt) for prompt in request.prompts)

    def close(self) -> None:
        pass


class ModelTokenCounter:
    """Counts with a model's own tokenizer and chat template.

    `model` is a checkpoint's directory or a hub id. The constructor loads the tokenizer (seconds, or a download: not
    on an event loop), and raises ModelUnavailable when there is none.
    """

    def __init__(self, model: str | Path) -> None:
        self._tokenizer = _load_tokenizer(str(model))
        self._length = _length_function(self._tokenizer)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="token-counting")

    async def count(self, request: InferenceRequest) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        if request.is_chat:
            return (await loop.run_in_executor(self._executor, self._count_chat, request),)
        special = request.body.get("add_special_tokens") is not False
        counts: list[int] = []
        for part in _slices(request.prompts):
            counts += await loop.run_in_executor(self._executor, self._count_slice, part, special)
        return tuple(counts)

    def close(self) -> None:
        """Let the thread end; counting is over."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _count_slice(self, prompts: Sequence[Prompt], special: bool) -> list[int]:
        return [max(1, self._length(prompt, special)) if isinstance(prompt, str) else len(prompt) for prompt in prompts]

    def _count_chat(self, request: InferenceRequest) -> int:
        special = request.body.get("add_special_tokens") is True
        return max(1, self._length(self._templated(request), special))

    def _templated(self, request: InferenceRequest) -> str:
        """The chat as the model will read it. The template is code: whatever it raises is about its input."""
        try:
            text = self._tokenizer.apply_chat_template(
                [_template_message(message) for message in request.messages],
                tools=None if request.tools is None else list(request.tools),
                tokenize=False,
                **_template_arguments(request.body),
            )
        except Exception as error:
            raise _template_refusal(error) from error
        return str(text)


def _load_tokenizer(model: str) -> Any:
    """From local files if they are there, else from the hub (which transformers leaves alone under HF_HUB_OFFLINE)."""
    from transformers import AutoTokenizer  # heavy, and needed where a model is served only

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception:  # transformers names many kinds of "not there"; the hub's answer says what is wrong
        try:
            return AutoTokenizer.from_pretrained(model)
        except Exception as error:
            raise ModelUnavailable(f"the tokenizer of the model {model!r} cannot be loaded: {error}") from error


def _length_function(tokenizer: Any) -> Callable[[str, bool], int]:
    """Text and "with special tokens" to a count.

    Straight to the Rust tokenizer where there is one, and there to `encode_batch_fast`: `encode` keeps the GIL
    for as long as a text takes, the batch functions let go of it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text, special: len(tokenizer.encode(text, add_special_tokens=special))
    backend.no_truncation()
    backend.no_padding()
    return lambda text, special: len(backend.encode_batch_fast([text], add_special_tokens=special)[0])


def _slices(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """`prompts` in order, in runs of at most SLICE_CHARS characters (or one longer prompt)."""
    begin = chars = 0
    for index, prompt in enumerate(prompts):
        if index > begin and chars + len(prompt) > SLICE_CHARS:
            yield prompts[begin:index]
            begin, chars = index, 0
        chars += len(prompt)
    yield prompts[begin:]


def _template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates expect it, and as vLLM passes it: text content, parsed tool arguments."""
    text = "\n".join(text for _, text in message_texts([message]))
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return {**message, "content": text}
    return {**message, "content": text, "tool_calls": [_template_tool_call(call) for call in calls]}


def _template_tool_call(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": _parsed(arguments)}}


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the body says about its template. A template of the client's own is the engine's to refuse."""
    extra = body.get("chat_template_kwargs")
    arguments = extra if isinstance(extra, dict) else {}
    continues = body.get("continue_final_message") is True
    return {
        **{name: value for name, value in arguments.items() if name not in TEMPLATE_ARGUMENTS},
        "add_generation_prompt": body.get("add_generation_prompt") is not False and not continues,
        "continue_final_message": continues,
        "documents": body.get("documents"),
    }


def _template_refusal(error: Exception) -> ApiError:
    return invalid("messages", f"the model's chat template refuses these messages: {error}")


def _approximate(prompt: Prompt) -> int:
    return approximate_tokens(prompt) if isinstance(prompt, str) else max(1, len(prompt))


async def create_counter(engine: VllmSettings | SimulatedSettings) -> TokenCounter:
    """The counter that agrees with an engine, made off the event loop. Raises ModelUnavailable."""
    if isinstance(engine, VllmSettings):
        return await asyncio.to_thread(lambda: ModelTokenCounter(prepare_model(engine.model)))
    return ApproximateTokenCounter()
