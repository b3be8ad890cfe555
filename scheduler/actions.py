"""Orders that the core gives to its driver, in the imperative.

`Publish…` tell what was decided and need no obedience; the others must be carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.types import ApplicationRecord


class Refusal(StrEnum):
    """Why something was refused. The HTTP status of each stands in `serve_app.errors`."""

    DUPLICATE_ID = "duplicate_id"
    UNKNOWN_APPLICATION = "unknown_application"
    APPLICATION_CLOSED = "application_closed"
    CANNOT_FIT = "cannot_fit"
    BUSY = "busy"
    NO_ENGINE = "no_engine"
    INVALID = "invalid"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run one call on one replica. `priority`: smaller runs first inside the engine, in [0, 2**53]."""

    replica_id: str
    application_id: str
    call_id: str
    lease_id: str
    epoch: int
    priority: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse an application (`call_id` is None) or one of its calls."""

    application_id: str
    call_id: str | None
    refusal: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the call that runs under this lease, or refuse it if it has not come yet."""

    replica_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class PublishTag:
    """An application's finish tag was set or corrected; every change has its reason."""

    application_id: str
    start_tag: float
    finish_tag: float
    predicted_cost: float
    reason: str


@dataclass(frozen=True, slots=True)
class PublishCallEnd:
    """A call reached its end: `finished`, `failed` or `cancelled`; true token counts, one output count a sequence."""

    application_id: str
    call_id: str
    outcome: str
    reason: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PublishCompletion:
    """An application has ended; its reference may still be running (`record.gps_finish_s` is None)."""

    record: ApplicationRecord


@dataclass(frozen=True, slots=True)
class PublishAudit:
    """Both the application and its reference have ended: lag and bound are known."""

    record: ApplicationRecord


Action = Grant | Reject | Abort | PublishTag | PublishCallEnd | PublishCompletion | PublishAudit
