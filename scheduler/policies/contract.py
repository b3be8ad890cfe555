"""The policy contract: which waiting call goes next?

The core tells a policy which calls wait and what their applications' tags are; the policy answers with `head()`.
It owns its own numbers and nothing else, decides nothing about capacity, and looks at no other policy. Asking
changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from scheduler.types import CallKey

MAX_PRIORITY = 2**53


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits for a grant.

    `ready_sequence` numbers calls in the order in which they first became ready (a call that was lost keeps its
    number); `application_sequence` numbers applications in order of arrival. Both are unique.
    """

    key: CallKey
    ready_sequence: int
    application_sequence: int
    finish_tag: float


class Policy(ABC):
    """One scheduling policy, made once when the scheduler starts."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def add(self, call: WaitingCall) -> None:
        """A call began to wait."""

    @abstractmethod
    def remove(self, key: CallKey) -> None:
        """A call waits no more: granted, cancelled or failed. Unknown keys are ignored."""

    @abstractmethod
    def head(self) -> CallKey | None:
        """The call to run next, or None when none waits."""

    @abstractmethod
    def priority(self, call: WaitingCall) -> int:
        """The same order as an integer in [0, MAX_PRIORITY], smaller first, for the engine's own queue."""

    def retag(self, application_id: str, finish_tag: float) -> None:  # noqa: B027 - most policies have no tags
        """An application's finish tag was corrected."""


def bounded_priority(rank: float) -> int:
    """A rank as an engine priority, cut to [0, MAX_PRIORITY]."""
    return int(min(max(rank, 0.0), MAX_PRIORITY))
