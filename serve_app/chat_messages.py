"""Chat messages as clients send them: which are well formed, and where their texts are.

A message is an object with a role; its content is text, a list of parts, or absent. Parts of kinds that this
module does not know (images, audio) pass untouched: the engine decides about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serve_app.errors import invalid
from serve_app.sampling_fields import check_numbers


def check_messages(path: str, messages: object) -> list[dict[str, Any]]:
    """`messages` itself if it is well formed and says something. Raises ApiError (400) naming what is not."""
    if not isinstance(messages, list):
        raise invalid(path, f"{path} must be a list of messages")
    if not messages:
        raise invalid(path, f"{path} is empty")
    for index, message in enumerate(messages):
        _check_message(f"{path}[{index}]", message)
    check_numbers({path: messages})
    if not has_content(messages):
        raise invalid(path, f"{path} have no content")
    return messages


def message_texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(path, text) of every text in `messages`: string contents, and the text of content parts."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            yield f"messages[{index}].content", content
        elif isinstance(content, list):
            yield from _part_texts(f"messages[{index}].content", content)


def map_message_texts(messages: Sequence[Mapping[str, Any]], change: Callable[[str], str]) -> list[dict[str, Any]]:
    """A copy of `messages` with `change` applied to every text that `message_texts` names."""
    return [{**message, **_changed_content(message, change)} for message in messages]


def has_content(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any message says anything: text that is not blank, a part that is not text, or a tool call."""
    if any(text.strip() for _, text in message_texts(messages)):
        return True
    return any(message.get("tool_calls") or _has_other_parts(message.get("content")) for message in messages)


def _check_message(path: str, message: object) -> None:
    if not isinstance(message, dict):
        raise invalid(path, f"{path} must be an object with role and content")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise invalid(f"{path}.role", f"{path}.role must be a text")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise invalid(f"{path}.content", f"{path}.content must be a text or a list of parts")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, str | dict):
            raise invalid(f"{path}.content[{index}]", f"{path}.content[{index}] must be a text or an object")


def _part_texts(path: str, parts: Sequence[object]) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(parts):
        if isinstance(part, str):
            yield f"{path}[{index}]", part
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield f"{path}[{index}].text", part["text"]


def _changed_content(message: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {"content": change(content)}
    if isinstance(content, list):
        return {"content": [_changed_part(part, change) for part in content]}
    return {}


def _changed_part(part: object, change: Callable[[str], str]) -> object:
    if isinstance(part, str):
        return change(part)
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": change(part["text"])}
    return part


def _has_other_parts(content: object) -> bool:
    if not isinstance(content, list):
        return False
    return any(isinstance(part, Mapping) and not isinstance(part.get("text"), str) for part in content)
