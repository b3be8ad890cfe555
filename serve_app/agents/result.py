"""What every agent gives back."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.client import CallTrace


class InputError(ValueError):
    """A text that an agent cannot work on, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """`answer` is never empty; `calls` are those that ran. Agents add what they found out."""

    answer: str
    calls: tuple[CallTrace, ...]
