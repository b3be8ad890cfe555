"""Applications whose calls are all known at arrival: submitted whole and followed to their end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from serve_app.client import AsyncJustitia, AsyncSubmitted, CallTrace, JustitiaError
from serve_app.client_errors import reading

CANCEL_S = 10.0


@dataclass(frozen=True)
class Whole:
    """Outputs by call, one text a sequence, and what ran when."""

    outputs: Mapping[str, list[str]]
    calls: tuple[CallTrace, ...]


def chat_call(name: str, prompt: str, max_tokens: int, after: tuple[str, ...] = (), **sampling: Any) -> dict[str, Any]:
    """One call of a document: one message of a user, deterministic unless `sampling` says otherwise."""
    messages = [{"role": "user", "content": prompt}]
    fields = {"temperature": 0.0, **sampling}
    return {"name": name, "after": list(after), "messages": messages, "max_tokens": max_tokens, **fields}


def literal(text: str) -> str:
    """Somebody's text for a prompt of a document, where two braces would stand for another call's output."""
    return re.sub(r"\{(?=\{)", "{ ", text)


async def run_whole(client: AsyncJustitia, application_type: str, calls: list[dict[str, Any]]) -> Whole:
    """Run an application of these calls. Raises JustitiaError when it is refused or does not finish.

    Whoever is cancelled here, even before the service has answered, cancels the application there.
    """
    submitted = await client.submit({"application_type": application_type, "calls": calls})
    try:
        times = await _times(submitted)
        status = await submitted.status()
    except BaseException:  # a cancellation above all: nobody will ask for the rest
        with suppress(JustitiaError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await submitted.cancel()
        raise
    with reading(status):
        if status["state"] != "finished":
            raise JustitiaError(f"the application is {status['state']}: {status['error'] or 'no reason is known'}")
        ended = {call["name"]: call for call in status["calls"]}
        traces = [_trace(call, ended[call["name"]], times, status["created_s"]) for call in calls]
        return Whole({name: call["outputs"] for name, call in ended.items()}, tuple(traces))


async def _times(submitted: AsyncSubmitted) -> dict[tuple[str, str], float]:
    """By event and call, Unix seconds of the last grant and the end of each call; waits for the application's end."""
    times: dict[tuple[str, str], float] = {}
    async with aclosing(submitted.events()) as events:
        async for event in events:
            with reading(event):
                if event["event"] == "application_ended":
                    break
                if "call" in event:
                    times[event["event"], event["call"]] = event["time_s"]
    return times


def _trace(
    call: Mapping[str, Any], ended: Mapping[str, Any], times: Mapping[tuple[str, str], float], created_s: float
) -> CallTrace:
    name = call["name"]
    started_s, finished_s = (times.get((event, name), created_s) for event in ("call_granted", "call_ended"))
    tokens = ended["prompt_tokens"] or 0, ended["output_tokens"] or 0
    return CallTrace(name, name, started_s - created_s, finished_s - created_s, tuple(call["after"]), *tokens)
