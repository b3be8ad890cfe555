"""Applications on their way, as a table that moves on a terminal and as lines of text elsewhere.

`watch` polls the service; a poll that gets no connection is tried again for some seconds, so that a restart of the
service does not end it. What it returns is what the service said last about each application.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from serve_app.cli.http import application_path

POLL_INTERVAL_S = 0.5
MAX_FAILED_POLLS = 20
ANSWER_WORDS = 12
ENDED_STATES = frozenset({"finished", "failed", "cancelled"})
STATE_STYLE = {
    "queued": "dim",
    "running": "cyan",
    "finished": "green",
    "failed": "bold red",
    "cancelled": "yellow",
}

Status = dict[str, Any]


class ServiceRefused(Exception):
    """The service answered a poll with an error status; `answer` is what it said."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(f"HTTP {answer.status_code}")
        self.answer = answer


async def watch(
    client: httpx.AsyncClient,
    ids: Sequence[str],
    console: Console,
    poll_interval_s: float = POLL_INTERVAL_S,
) -> list[Status]:
    """Follow applications until all have ended; their last statuses, in the order of `ids`.

    Raises ServiceRefused when one is not known, httpx.TransportError when the service stays unreachable.
    """
    if console.is_terminal:
        return await _watch_live(client, ids, console, poll_interval_s)
    return await _watch_lines(client, ids, console, poll_interval_s)


def progress_table(statuses: Iterable[Mapping[str, Any]]) -> Table:
    """One row an application: type, finish tag, calls done, state, seconds since its arrival."""
    table = Table(_ids(), "type", "finish tag", "calls", "state", "seconds")
    for status in statuses:
        state = str(status.get("state", ""))
        table.add_row(
            Text(str(status.get("application_id", ""))),
            Text(str(status.get("application_type", ""))),
            shown_number(status.get("finish_tag")),
            _calls_done(status),
            Text(state, style=STATE_STYLE.get(state, "")),
            shown_number(_seconds(status)),
        )
    return table


def progress_line(application_id: str, status: Mapping[str, Any]) -> str:
    """How far one application is, in a line of text."""
    return f"{application_id}: {status.get('state')}, {_calls_done(status)} calls"


def final_table(statuses: Iterable[Mapping[str, Any]]) -> Table:
    """One row an application: its time, its time under fair sharing (GPS), the lag, and what it answered."""
    table = Table(_ids(), "type", "state", "took (s)", "fair share (s)", "lag (s)", "answer")
    for status in statuses:
        state = str(status.get("state", ""))
        table.add_row(
            Text(str(status.get("application_id", ""))),
            Text(str(status.get("application_type", ""))),
            Text(state, style=STATE_STYLE.get(state, "")),
            shown_number(status.get("completion_s")),
            shown_number(status.get("gps_completion_s")),
            shown_number(status.get("lag_s")),
            Text(first_words(status.get("error") or answer_text(status))),
        )
    return table


def _ids() -> Column:
    """Ids whole, so that they can be copied."""
    return Column("application", no_wrap=True)


def answer_text(status: Mapping[str, Any]) -> str:
    """What an application answered: the text of its last call (its first sequence), or nothing."""
    calls = status.get("calls") or []
    outputs = calls[-1].get("outputs") if calls else None
    return str(outputs[0]).strip() if outputs else ""


def first_words(text: str, words: int = ANSWER_WORDS) -> str:
    parts = text.split()
    return " ".join(parts[:words]) + (" …" if len(parts) > words else "")


def shown_number(value: object) -> str:
    """A number as a reader wants it; other values as they are, and a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"
    return str(value)


async def _watch_live(
    client: httpx.AsyncClient, ids: Sequence[str], console: Console, poll_interval_s: float
) -> list[Status]:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            statuses = await _poll(client, ids, poll_interval_s)
            live.update(progress_table(statuses), refresh=True)
            if _all_ended(statuses):
                return statuses
            await asyncio.sleep(poll_interval_s)


async def _watch_lines(
    client: httpx.AsyncClient, ids: Sequence[str], console: Console, poll_interval_s: float
) -> list[Status]:
    shown: dict[str, str] = {}
    while True:
        statuses = await _poll(client, ids, poll_interval_s)
        for application_id, status in zip(ids, statuses, strict=True):
            line = progress_line(application_id, status)
            if shown.get(application_id) != line:
                shown[application_id] = line
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        if _all_ended(statuses):
            return statuses
        await asyncio.sleep(poll_interval_s)


async def _poll(client: httpx.AsyncClient, ids: Sequence[str], retry_interval_s: float) -> list[Status]:
    return list(await asyncio.gather(*(_status(client, name, retry_interval_s) for name in ids)))


async def _status(client: httpx.AsyncClient, application_id: str, retry_interval_s: float) -> Status:
    for attempt in range(MAX_FAILED_POLLS):
        try:
            answer = await client.get(application_path(application_id))
        except httpx.TransportError:
            if attempt == MAX_FAILED_POLLS - 1:
                raise
        else:
            if answer.is_success:
                return dict(answer.json())
            if answer.status_code not in (429, 502, 503, 504) or attempt == MAX_FAILED_POLLS - 1:
                raise ServiceRefused(answer)
        await asyncio.sleep(retry_interval_s)
    raise AssertionError("the last attempt returns or raises")


def _all_ended(statuses: Iterable[Mapping[str, Any]]) -> bool:
    return all(status.get("state") in ENDED_STATES for status in statuses)


def _calls_done(status: Mapping[str, Any]) -> str:
    return f"{shown_number(status.get('calls_done'))}/{shown_number(status.get('calls_total'))}"


def _seconds(status: Mapping[str, Any]) -> float | None:
    if status.get("completion_s") is not None:
        return float(status["completion_s"])
    created_s = status.get("created_s")
    if created_s is None or status.get("state") in ENDED_STATES:
        return None
    return max(0.0, time.time() - float(created_s))
