"""The same client for programs that are not asynchronous.

Every method is that of `AsyncJustitia` and its kin, run on an event loop in a thread of the client's own; it may be
called from any thread that runs no event loop. An interrupt (Ctrl-C) cancels what it interrupts; closing the client
cancels what other threads wait for: they get a RuntimeError.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from serve_app.client_answers import Answer, CallTrace, Messages
from serve_app.client_application import AsyncApplication
from serve_app.client_async import AsyncJustitia, AsyncSubmitted
from serve_app.client_loop import Loop

if TYPE_CHECKING:
    import openai


class Justitia:
    """A client of one service; a context manager, or to be closed with `close_connections`. See `AsyncJustitia`."""

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
        self._client = AsyncJustitia(
            base_url, api_key, model=model, timeout_s=timeout_s, max_retries=max_retries, http=http
        )
        self._loop = Loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_connections()

    def close_connections(self) -> None:
        """End the client; idempotent. Applications that are under way go on without it, what is asked is cancelled."""
        self._loop.stop(self._client.aclose())

    def application(
        self,
        application_type: str,
        *,
        application_id: str | None = None,
        weight: float = 1.0,
        deadline_s: float | None = None,
    ) -> Application:
        """An application whose calls come one by one; to be entered with `with`."""
        inner = self._client.application(
            application_type, application_id=application_id, weight=weight, deadline_s=deadline_s
        )
        return Application(inner, self._loop)

    def submit(self, document: Mapping[str, Any]) -> Submitted:
        """Start a whole application. Raises JustitiaError."""
        return Submitted(self._loop.run(self._client.submit(document)), self._loop)

    def get(self, application_id: str) -> dict[str, Any]:
        """Status and results. Raises JustitiaError, 404 for one that is unknown; so do the others below."""
        return self._loop.run(self._client.get(application_id))

    def list(self) -> list[dict[str, Any]]:
        """This tenant's applications, without their calls."""
        return self._loop.run(self._client.list())

    def cancel(self, application_id: str) -> dict[str, Any]:
        """Stop an application; its status."""
        return self._loop.run(self._client.cancel(application_id))

    def close(self, application_id: str) -> dict[str, Any]:
        """Say that an open application will send no more calls; its status."""
        return self._loop.run(self._client.close(application_id))

    def explain(self, application_id: str) -> dict[str, Any]:
        """Why it waits, who is ahead of it, its tag and costs."""
        return self._loop.run(self._client.explain(application_id))

    def scheduler(self) -> dict[str, Any]:
        """The scheduler's state in a few numbers."""
        return self._loop.run(self._client.scheduler())

    def events(self, application_id: str, after: int = 0) -> Generator[dict[str, Any]]:
        """Events of an application from number `after` + 1 on; a lost connection is taken up where it broke."""
        return self._loop.iterate(self._client.events(application_id, after))


class Application:
    """One open application; see `AsyncApplication`."""

    def __init__(self, inner: AsyncApplication, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def id(self) -> str:
        """Its name at the service; a sub-agent has that of its root."""
        return self._inner.id

    @property
    def calls(self) -> list[CallTrace]:
        """What ran, in order of ending."""
        return self._inner.calls

    def child(self, application_type: str | None = None) -> Application:
        """A sub-agent of this application; lengths of its calls are learnt by its own type."""
        return Application(self._inner.child(application_type), self._loop)

    def __enter__(self) -> Self:
        self._loop.run(self._inner.begin())
        self._inner.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.leave()
        self._loop.run(self._inner.end(cancelled=error is not None))

    def chat(
        self,
        messages: Messages,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        n: int = 1,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> Answer:
        """One chat; a text stands for a user's message. Raises JustitiaError."""
        return self._loop.run(
            self._inner.chat(messages, stage=stage, max_tokens=max_tokens, n=n, after=after, **sampling)
        )

    def complete(
        self,
        prompt: str,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        n: int = 1,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> Answer:
        """One completion of a text. Raises JustitiaError."""
        return self._loop.run(
            self._inner.complete(prompt, stage=stage, max_tokens=max_tokens, n=n, after=after, **sampling)
        )

    def stream(
        self,
        messages: Messages,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> Generator[str]:
        """The text of one chat, piece by piece. Raises JustitiaError."""
        return self._loop.iterate(
            self._inner.stream(messages, stage=stage, max_tokens=max_tokens, after=after, **sampling)
        )

    def openai(self) -> openai.OpenAI:
        """OpenAI's client, with this application's name on every request. Raises ImportError without that package."""
        from openai import OpenAI

        return OpenAI(**self._inner.openai_settings())


class Submitted:
    """An application that was submitted whole; see `AsyncSubmitted`."""

    def __init__(self, inner: AsyncSubmitted, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def id(self) -> str:
        """Its name at the service."""
        return self._inner.id

    def events(self, after: int = 0) -> Generator[dict[str, Any]]:
        """What happens to it, from event number `after` + 1 on, until all is known. Raises JustitiaError."""
        return self._loop.iterate(self._inner.events(after))

    def wait(self) -> dict[str, Any]:
        """Its status with all outputs, once it has ended: `finished`, `failed` or `cancelled`."""
        return self._loop.run(self._inner.wait())

    def status(self) -> dict[str, Any]:
        """Its status, with the outputs of the calls that have ended. Raises JustitiaError; so do the others."""
        return self._loop.run(self._inner.status())

    def cancel(self) -> dict[str, Any]:
        """Stop it; its status."""
        return self._loop.run(self._inner.cancel())

    def explain(self) -> dict[str, Any]:
        """Why it waits, who is ahead of it, its tag and costs."""
        return self._loop.run(self._inner.explain())
