"""The life of a call, as a table.

    blocked ──▶ ready ──▶ granted ──▶ running ──▶ finished
                  ▲          │           │
                  └──────────┴───────────┘        a lost or expired lease returns the call to its old place

`stopping` is a running call that nobody waits for: it keeps its memory until the engine lets go of it. finished,
failed and cancelled are ends. A move that is not listed raises IllegalMove with the call's history.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class CallState(StrEnum):
    BLOCKED = "blocked"
    READY = "ready"
    GRANTED = "granted"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = frozenset({CallState.FINISHED, CallState.FAILED, CallState.CANCELLED})
HOLDING = frozenset({CallState.GRANTED, CallState.RUNNING, CallState.STOPPING})
"""States in which a call has a lease and a place in a replica's ledger."""

ADOPTABLE = frozenset({CallState.BLOCKED, CallState.READY})
"""States from which a call that runs under an earlier scheduler's lease can be taken back."""

MOVES: Mapping[CallState, frozenset[CallState]] = {
    CallState.BLOCKED: frozenset(
        {CallState.READY, CallState.RUNNING, CallState.FAILED, CallState.CANCELLED}  # running: adopted
    ),
    CallState.READY: frozenset(
        {CallState.GRANTED, CallState.RUNNING, CallState.FAILED, CallState.CANCELLED}  # running: adopted
    ),
    CallState.GRANTED: frozenset(
        {CallState.RUNNING, CallState.READY, CallState.FINISHED, CallState.FAILED, CallState.CANCELLED}
    ),
    CallState.RUNNING: frozenset(
        {CallState.FINISHED, CallState.READY, CallState.FAILED, CallState.STOPPING, CallState.CANCELLED}
    ),
    CallState.STOPPING: frozenset({CallState.CANCELLED}),
    CallState.FINISHED: frozenset(),
    CallState.FAILED: frozenset(),
    CallState.CANCELLED: frozenset(),
}


class IllegalMove(RuntimeError):
    """A call was to make a move that its life does not have."""


def check_move(call: str, history: list[CallState], to: CallState) -> None:
    """Raise IllegalMove unless `to` may follow the last state of `history`."""
    if to not in MOVES[history[-1]]:
        path = " → ".join(history)
        raise IllegalMove(f"call {call}: {path} may not be followed by {to}")
