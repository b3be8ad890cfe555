"""The text by which a model judges an application: what its first calls ask.

Laws: at most `MAX_CHARACTERS` of it, whatever its calls hold, and no more is read than that; what users say stands
before the instructions of an agent's author, which are long and the same in each of its runs; token ids are no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serve_app.chat_messages import message_texts
from serve_app.documents import ApplicationDocument, CallDocument
from serve_app.inference_request import InferenceRequest, Prompt

MAX_CHARACTERS = 4_000
"""As much as the models look at (`predictors.features`)."""
_OF_THE_AUTHOR = frozenset({"system", "developer"})


def prompt_of_request(request: InferenceRequest) -> str:
    """What one OpenAI request asks."""
    return _joined(_chat_texts(request.messages) if request.is_chat else _plain_texts(request.prompts))


def prompt_of_document(document: ApplicationDocument) -> str:
    """What the calls of a document ask that come after no other, in its order."""
    roots = (call for call in document.calls if not call.after)
    return _joined(text for call in roots for text in _call_texts(call))


def _call_texts(call: CallDocument) -> Iterator[str]:
    if call.messages is not None:
        return _chat_texts(call.messages)
    return _plain_texts([call.prompt or ""])


def _chat_texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for of_the_author in (False, True):
        chosen = [message for message in messages if (message.get("role") in _OF_THE_AUTHOR) == of_the_author]
        yield from (text for _, text in message_texts(chosen))


def _plain_texts(prompts: Iterable[Prompt]) -> Iterator[str]:
    return (prompt for prompt in prompts if isinstance(prompt, str))


def _joined(texts: Iterable[str]) -> str:
    parts: list[str] = []
    left = MAX_CHARACTERS
    for text in texts:
        parts.append(text[:left])
        left -= len(parts[-1]) + 1
        if left <= 0:
            break
    return "\n".join(parts)
