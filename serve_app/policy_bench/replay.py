"""Clients that send applications when they arrive, over HTTP, and follow each until all is known of it.

Each application is one client: it waits for its moment, posts its document, reads its events as they come, and asks
for the final status. Laws: seconds count from the first moment of the replay, on this machine's monotonic clock; an
application's time is what its client saw, from the moment at which the trace has it arrive (a late start counts
against the service) to the event of its end; whatever goes wrong with one is kept as its `error` and stops no other; a
status that cannot be had once is asked for again; nothing is waited for longer than `limit_s` and, for the last
statuses, AUDIT_WAIT_S in all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from scheduler.sim.workload import TraceApplication
from serve_app.cli.http import APPLICATIONS, application_path, refusal_reason
from serve_app.policy_bench.traffic import LengthRule, document_of

AUDIT_WAIT_S = 20.0
"""How long after the last end the reference may take to finish everybody."""

ASK_TIMEOUT_S = 5.0
ASKED_AT_ONCE = 8
"""Of the last statuses: one that hangs holds up no other for longer than ASK_TIMEOUT_S."""

POLL_S = 0.5
CONNECT_TIMEOUT_S = 60.0
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""What comes of an answer that is no JSON, or has not the shape that it should have."""

Ended = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one application. Seconds from the beginning of the replay; costs are KV token-iterations.

    `finish_s` is None for one that did not finish, and `error` then says why; it also names calls whose lengths are
    not those of the trace. `gps_finish_s` and `bound_s` are None where the service knows none.
    """

    application_id: str
    arrival_s: float
    sent_s: float | None = None
    finish_s: float | None = None
    gps_finish_s: float | None = None
    bound_s: float | None = None
    predicted_cost: float | None = None
    error: str | None = None


async def replay(
    url: str,
    applications: Sequence[TraceApplication],
    rule: LengthRule,
    limit_s: float,
    ended: Ended,
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[Outcome]:
    """The outcomes in the order of `applications`; `ended` hears of each id when its client is done."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=limit_s)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, transport=transport) as client:
        begin_s = time.monotonic()
        runs = [_Client(client, one, rule, begin_s) for one in applications]
        tasks = [asyncio.create_task(_finish(run, begin_s + limit_s, ended)) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await _wait_for_audits(runs)
        return [run.outcome() for run in runs]


async def _finish(run: _Client, deadline_s: float, ended: Ended) -> None:
    try:
        async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.0)):
            await run.go()
    except TimeoutError:
        run.error = "it had not ended when the time was over"
    except (httpx.HTTPError, *UNREADABLE) as error:
        run.error = f"{type(error).__name__}: {error}"
    ended(run.trace.application_id)


class _Client:
    """One application's client."""

    def __init__(self, http: httpx.AsyncClient, trace: TraceApplication, rule: LengthRule, begin_s: float) -> None:
        self.trace = trace
        self.error: str | None = None
        self.status: dict[str, Any] = {}
        self._ask_error: str | None = None
        self._http = http
        self._rule = rule
        self._begin_s = begin_s
        self._sent_s: float | None = None
        self._finish_s: float | None = None

    @property
    def path(self) -> str:
        return application_path(self.trace.application_id)

    async def go(self) -> None:
        """From the wait for its moment to its end."""
        document = document_of(self.trace, self._rule)
        await asyncio.sleep(max(self._begin_s + self.trace.arrival_s - time.monotonic(), 0.0))
        self._sent_s = self._now_s()
        answer = await self._http.post(APPLICATIONS, json=document)
        if answer.is_error:
            self.error = f"refused ({answer.status_code}): {refusal_reason(answer)}"
            return
        async for event in _events(self._http, f"{self.path}/events"):
            if event.get("event") == "application_ended":
                self._finish_s = self._now_s()
                return
        self.error = "its events ended before it did"

    async def ask(self) -> None:
        """Bring the status up to date, unless it is final or there is none; keep why it cannot be had."""
        if self.audited:
            return
        try:
            answer = await self._http.get(self.path, timeout=ASK_TIMEOUT_S)
            if answer.is_success:
                self.status, self._ask_error = dict(answer.json()), None
            else:
                self._ask_error = refusal_reason(answer)
        except (httpx.HTTPError, *UNREADABLE) as error:
            self._ask_error = f"its status is unknown: {type(error).__name__}"

    @property
    def audited(self) -> bool:
        return self._finish_s is None or self.status.get("gps_completion_s") is not None

    def outcome(self) -> Outcome:
        """What is known by now."""
        application_id, arrival_s = self.trace.application_id, self.trace.arrival_s
        try:
            return self._outcome(application_id, arrival_s)
        except UNREADABLE as error:
            fault = self.error or f"its status cannot be read: {error!r}"
            return Outcome(application_id=application_id, arrival_s=arrival_s, sent_s=self._sent_s, error=fault)

    def _outcome(self, application_id: str, arrival_s: float) -> Outcome:
        return Outcome(
            application_id=application_id,
            arrival_s=arrival_s,
            sent_s=self._sent_s,
            finish_s=None if self.status.get("state") != "finished" else self._finish_s,
            gps_finish_s=self._after_arrival("gps_completion_s"),
            bound_s=self._after_arrival("bound_s"),
            predicted_cost=self.status.get("predicted_cost"),
            error=self.error or self._fault(),
        )

    def _fault(self) -> str | None:
        """What the service says went wrong, or the first call that was not as long as in the trace."""
        if self.status.get("state") != "finished":
            why = self.status.get("error") or self._ask_error
            return str(why or f"it is {self.status.get('state', 'unknown')}")
        made = {call["name"]: (call["prompt_tokens"], call["output_tokens"]) for call in self.status["calls"]}
        for call in self.trace.calls:
            wanted = (call.prompt_tokens, call.output_tokens * call.sequences)
            if made.get(call.name) != wanted:
                return f"call {call.name} has {made.get(call.name)} prompt and output tokens instead of {wanted}"
        return None

    def _after_arrival(self, name: str) -> float | None:
        """A duration of the service's, counted from where its own clock has the application arrive: about `sent_s`."""
        value = self.status.get(name)
        return None if value is None or self._sent_s is None else self._sent_s + float(value)

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s


async def _events(http: httpx.AsyncClient, path: str) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events, parsed."""
    async with http.stream("GET", path) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def _wait_for_audits(runs: Sequence[_Client]) -> None:
    """Ask for final statuses until the reference has served everybody, or no longer than AUDIT_WAIT_S."""
    asking = asyncio.Semaphore(ASKED_AT_ONCE)
    with suppress(TimeoutError):
        async with asyncio.timeout(AUDIT_WAIT_S), asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(_audit(run, asking))


async def _audit(run: _Client, asking: asyncio.Semaphore) -> None:
    while not run.audited:
        async with asking:
            await run.ask()
        await asyncio.sleep(0.0 if run.audited else POLL_S)
