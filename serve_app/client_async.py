"""The service for programs that are asynchronous: whole applications, open ones, and questions about both."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

import httpx

from serve_app.client_application import END_S, AsyncApplication, Statement
from serve_app.client_errors import JustitiaError, JustitiaUnreachable, reading
from serve_app.client_transport import Transport, application_path

DEFAULT_URL = "http://127.0.0.1:8000"


class AsyncJustitia:
    """A client of one service; an async context manager, or to be closed with `aclose`.

    `base_url` and `api_key` fall back to JUSTITIA_URL and JUSTITIA_API_KEY. `model` is named in requests, None for the
    first that the service has. `timeout_s` bounds a request, its wait in the queue and `max_retries` repeats included.
    Raises ValueError for what cannot be used. `http` replaces the connections, for tests.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 8,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.transport = Transport(
            base_url or os.environ.get("JUSTITIA_URL") or DEFAULT_URL,
            api_key or os.environ.get("JUSTITIA_API_KEY") or None,
            timeout_s,
            max_retries,
            http,
        )
        self._model = model
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Applications that are under way go on without this client."""
        await self.transport.aclose()

    async def model_name(self) -> str:
        """The model that requests name. Raises JustitiaError."""
        async with self._asking:
            if self._model is None:
                answer = await self.transport.ask("GET", "/v1/models")
                with reading(answer):
                    names = [str(model["id"]) for model in answer["data"]]
                if not names:
                    raise JustitiaUnreachable("the service has no model")
                self._model = names[0]
        return self._model

    def application(
        self,
        application_type: str,
        *,
        application_id: str | None = None,
        weight: float = 1.0,
        deadline_s: float | None = None,
    ) -> AsyncApplication:
        """An application whose calls come one by one; to be entered with `async with`.

        Inside the block of another one, and without an id of its own, it is a part of that one.
        """
        statement = Statement(application_type, weight, deadline_s)
        return AsyncApplication(self.transport, self, statement, application_id)

    async def submit(self, document: Mapping[str, Any]) -> AsyncSubmitted:
        """Start a whole application: its calls and what each of them comes after. Raises JustitiaError.

        Where this is cancelled, the application is cancelled too, unless the document names its id.
        """
        named = document.get("application_id") is not None
        application_id = document["application_id"] if named else f"app-{uuid.uuid4().hex[:20]}"
        whole = {**document, "application_id": application_id}
        try:
            await self.transport.ask("POST", "/v1/applications", whole, repeatable=not named)
        except asyncio.CancelledError:
            if not named:  # another id may be that of somebody else's
                await self._take_back(application_id)
            raise
        except JustitiaError as error:
            if named or error.code != "duplicate_id":  # nobody else has this id: the first answer was lost
                raise
        return AsyncSubmitted(self, str(application_id))

    async def _take_back(self, application_id: str) -> None:
        """Cancel an application of which nobody here will hear."""
        with suppress(JustitiaError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self.cancel(application_id)

    async def get(self, application_id: str) -> dict[str, Any]:
        """Status and results. Raises JustitiaError, 404 for one that is unknown; so do the others below."""
        return await self.transport.ask("GET", application_path(application_id))

    async def list(self) -> list[dict[str, Any]]:
        """This tenant's applications, without their calls."""
        answer = await self.transport.ask("GET", "/v1/applications")
        with reading(answer):
            return [dict(status) for status in answer["data"]]

    async def cancel(self, application_id: str) -> dict[str, Any]:
        """Stop an application; its status."""
        return await self.transport.ask("DELETE", application_path(application_id))

    async def close(self, application_id: str) -> dict[str, Any]:
        """Say that an open application will send no more calls; its status."""
        return await self.transport.ask("POST", application_path(application_id, "close"))

    async def explain(self, application_id: str) -> dict[str, Any]:
        """Why it waits, who is ahead of it, its tag and costs."""
        return await self.transport.ask("GET", application_path(application_id, "explain"))

    async def scheduler(self) -> dict[str, Any]:
        """The scheduler's state in a few numbers."""
        return await self.transport.ask("GET", "/v1/scheduler")

    def events(self, application_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events of an application from number `after` + 1 on; a lost connection is taken up where it broke."""
        return self.transport.events(application_id, after)


class AsyncSubmitted:
    """An application that was submitted whole."""

    def __init__(self, client: AsyncJustitia, application_id: str) -> None:
        self.id = application_id
        self._client = client

    def events(self, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """What happens to it, from event number `after` + 1 on, until all is known."""
        return self._client.events(self.id, after)

    async def wait(self) -> dict[str, Any]:
        """Its status with all outputs, once it has ended: `finished`, `failed` or `cancelled`."""
        async with aclosing(self.events()) as events:
            async for event in events:
                if event.get("event") == "application_ended":
                    break
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """Its status, with the outputs of the calls that have ended. Raises JustitiaError; so do the others."""
        return await self._client.get(self.id)

    async def cancel(self) -> dict[str, Any]:
        """Stop it; its status."""
        return await self._client.cancel(self.id)

    async def explain(self) -> dict[str, Any]:
        """Why it waits, who is ahead of it, its tag and costs."""
        return await self._client.explain(self.id)
