"""How the client talks to the service: one HTTP connection pool, bounded retries, events that resume.

Laws.
1. What the service refused is sent again only where waiting may mend it (429, 503), after the seconds that its
   Retry-After names, at most `max_retries` times and never beyond `timeout_s` from the first attempt.
2. What never reached the service is sent again. What may have reached it is sent again where a second time does no
   harm: a question, an ending, an application whose id this client made up (the second one is then refused as a
   duplicate), and an inference whose answer had not begun: the service stops the call of a client that has left.
3. Events are handed on in order, each once, however often the connection breaks.
4. Whoever is cancelled lets go of its connection at once.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx

from serve_app.client_errors import JustitiaError, JustitiaUnreachable, object_of, reading, refusal

RETRIED_STATUS = frozenset({429, 503})
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
CONNECT_S = 10.0
MAX_CONNECTIONS = 1_000
QUIET_S = 300.0
"""Events that stay away so long are asked for anew: a connection may die without a word."""
LAST_EVENT = "application_audited"

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Check = Callable[[], None]


def _nothing() -> None:
    """Checks nothing."""


def application_path(application_id: str, action: str = "") -> str:
    """`/v1/applications/ID[/action]`, whatever characters the id holds."""
    path = f"/v1/applications/{quote(application_id, safe='')}"
    return f"{path}/{action}" if action else path


class Transport:
    """One service as a client reaches it; `aclose` ends it.

    `timeout_s` bounds a request with all its repeats, waiting in the service's queue included, and each pause of a
    stream. `http` replaces the connections, for tests. Raises ValueError for a URL, a key or limits of no use.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        timeout_s: float,
        max_retries: int,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not 0 < timeout_s < math.inf or max_retries < 0:
            raise ValueError(f"timeout_s must be positive and finite, max_retries not negative: {timeout_s=}")
        self.base_url = _checked_url(base_url)
        self.api_key = api_key
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=_authorization(api_key),
            timeout=_read_within(None),
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS // 10),
            transport=http,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(
        self, method: str, path: str, body: object = None, *, repeatable: bool = True, check: Check = _nothing
    ) -> dict[str, Any]:
        """The service's answer, a JSON object. Raises JustitiaError, and what `check` does before any attempt."""

        async def once() -> httpx.Response:
            check()
            answer = await self._http.request(method, path, json=body)
            return _accepted(answer)

        return _parsed(await self._insist(once, repeatable))

    @asynccontextmanager
    async def stream(self, path: str, body: object, check: Check = _nothing) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of a streamed answer to a POST; repeated until it has begun.

        Raises JustitiaError, and what `check` does before any attempt.
        """

        async def once() -> httpx.Response:
            check()
            timeout = _read_within(self.timeout_s)
            return await self._begin(self._http.build_request("POST", path, json=body, timeout=timeout))

        answer = await self._insist(once, repeatable=True)
        try:
            yield _lines(answer)
        finally:
            await answer.aclose()

    async def events(self, application_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events of an application with numbers above `after`, until all is known of it.

        A connection that breaks is taken up again after the last event that came, `max_retries` times in a row.
        """
        failures = 0
        while True:
            try:
                async with aclosing(self._events_once(application_id, after)) as events:
                    async for event in events:
                        with reading(event):
                            failures, after = 0, int(event["id"])
                        yield event
                        if event.get("event") == LAST_EVENT:
                            return
                if await self._is_over(application_id):
                    return
            except httpx.ReadTimeout:
                continue  # perhaps nothing has happened; asking again fails where nobody is there
            except httpx.TransportError as error:
                if failures >= self.max_retries:
                    raise JustitiaUnreachable(f"{self.base_url}: {_reason(error)}") from error
            failures += 1
            if failures > self.max_retries:
                raise JustitiaUnreachable(f"the events of {application_id!r} break off again and again")
            await asyncio.sleep(_wait_s(failures - 1, None))

    async def _events_once(self, application_id: str, after: int) -> AsyncGenerator[dict[str, Any]]:
        async def once() -> httpx.Response:
            path, headers = application_path(application_id, "events"), {"Last-Event-ID": str(after)}
            timeout = _read_within(QUIET_S)
            return await self._begin(self._http.build_request("GET", path, headers=headers, timeout=timeout))

        answer = await self._insist(once, repeatable=True)
        try:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    with reading(line):
                        event = object_of(json.loads(line.removeprefix("data:")))
                    yield event
        finally:
            await answer.aclose()

    async def _is_over(self, application_id: str) -> bool:
        """Has it ended? A stream may end early because an ingress stopped in good order."""
        status = await self.ask("GET", application_path(application_id))
        with reading(status):
            return status["state"] not in ("queued", "running")

    async def _begin(self, request: httpx.Request) -> httpx.Response:
        answer = await self._http.send(request, stream=True)
        if answer.is_error:
            await answer.aread()
            await answer.aclose()
        return _accepted(answer)

    async def _insist(self, once: Callable[[], Awaitable[httpx.Response]], repeatable: bool) -> httpx.Response:
        """What `once` gives, tried again as the module's laws allow."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        failure: JustitiaError | None = None
        for attempt in range(self.max_retries + 1):
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await once()
            except TimeoutError:
                raise failure or JustitiaUnreachable(f"no answer within {self.timeout_s:g} s") from None
            except httpx.TransportError as error:
                failure = JustitiaUnreachable(f"{self.base_url}: {_reason(error)}")
                if not repeatable and not isinstance(error, _NEVER_SENT):
                    raise failure from error
            except JustitiaError as error:
                if error.status not in RETRIED_STATUS:
                    raise
                failure = error
            wait_s = _wait_s(attempt, failure.retry_after_s)
            if attempt == self.max_retries or loop.time() + wait_s >= deadline_s:
                break
            await asyncio.sleep(wait_s)
        assert failure is not None
        raise failure


def _read_within(seconds: float | None) -> httpx.Timeout:
    """Limits of one request: to connect, and between two parts of its answer."""
    return httpx.Timeout(None, connect=CONNECT_S, read=seconds)


def _accepted(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise refusal(answer)
    return answer


def _parsed(answer: httpx.Response) -> dict[str, Any]:
    with reading(answer.text):
        document = object_of(answer.json())
    call_id = answer.headers.get("x-call-id")
    return document if call_id is None else {**document, "call_id": call_id}


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    try:
        async for line in answer.aiter_lines():
            yield line
    except httpx.TransportError as error:
        raise JustitiaUnreachable(f"the answer broke off: {_reason(error)}") from error


def _wait_s(attempt: int, asked_s: float | None) -> float:
    """Seconds before the next attempt: those that the service asked for, or twice as long each time."""
    return asked_s if asked_s is not None else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**attempt)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{base_url!r} must begin with http:// or https:// and name a host")
    return base_url.rstrip("/")


def _authorization(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise ValueError("the API key must be visible ASCII characters")
    return {"Authorization": f"Bearer {api_key}"}
