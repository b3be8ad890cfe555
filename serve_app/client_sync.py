"""The same client for programs that are not asynchronous.

Every method is that of `AsyncJustitia` and its kin, run on an event loop in a thread of the client's own; it may be
called from any thread that runs no event loop. An interrupt (Ctrl-C) cancels what it interrupts; closing the client
cancels what other threads wait for: they get a RuntimeError.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from serve_app.client_answers import Answer, CallTrace, Messages
from serve_app.client_application import END_S, AsyncApplication
from serve_app.client_async import AsyncJustitia, AsyncSubmitted

if TYPE_CHECKING:
    import openai

T = TypeVar("T")


class _Closed(RuntimeError):
    """The client was closed before this, or while it ran."""


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="justitia-client", daemon=True)
        self._thread.start()
        self._door = threading.Lock()
        self._is_shut = False
        self._under_way: set[Coroutine[Any, Any, Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; whatever interrupts the wait cancels it. Raises RuntimeError after `stop`."""
        try:
            return self._submit(work).result()
        except CancelledError:
            raise _Closed("the client is closed") from None
        except BaseException:
            with suppress(RuntimeError):  # the loop may be closed
                self._loop.call_soon_threadsafe(_cancel, {work})  # there may be no future yet
            raise

    def iterate(self, source: AsyncGenerator[T]) -> Generator[T]:
        """What `source` yields; leaving early closes it."""
        turn = asyncio.Lock()
        try:
            while True:
                try:
                    yield self.run(_next(source, turn))
                except StopAsyncIteration:
                    return
        finally:
            with suppress(_Closed):
                self.run(_close(source, turn))

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """End all that runs, then `last`, then the loop. Idempotent."""
        try:
            result = self._submit(_end_all(self._under_way, last), shut=True)
        except _Closed:
            last.close()
            return
        try:
            result.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T], shut: bool = False) -> Future[T]:
        """Start it on the loop; with `shut` as the last one, so that nothing is left on a loop that has stopped."""
        with self._door:
            if self._is_shut:
                work.close()
                raise _Closed("the client is closed")
            self._is_shut = shut
            self._under_way.add(work)
            result = asyncio.run_coroutine_threadsafe(work, self._loop)
        result.add_done_callback(lambda _: self._under_way.discard(work))
        return result


def _cancel(works: Set[Coroutine[Any, Any, Any]]) -> set[asyncio.Task[Any]]:
    """Cancel the tasks of these but for this one, each once: a second time would cut short what it has to say.

    The tasks that they started in turn are theirs to end.
    """
    tasks = {task for task in asyncio.all_tasks() if task.get_coro() in works and task is not asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    return tasks


async def _next(source: AsyncGenerator[T], turn: asyncio.Lock) -> T:
    async with turn:
        return await anext(source)


async def _close(source: AsyncGenerator[T], turn: asyncio.Lock) -> None:
    """Close it after its last step, which may have been cancelled and still have things to put away."""
    async with turn:
        await source.aclose()


async def _end_all(works: Set[Coroutine[Any, Any, Any]], last: Coroutine[Any, Any, None]) -> None:
    """Cancel these, let them tell the service, then do the last thing."""
    if others := _cancel(works):
        await asyncio.wait(others, timeout=END_S + 1.0)  # an ending has END_S; who waits for one that is left hangs
    await last


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
        self._loop = _Loop()

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
        return self._loop.run(self._client.get(application_id))

    def list(self) -> list[dict[str, Any]]:
        return self._loop.run(self._client.list())

    def cancel(self, application_id: str) -> dict[str, Any]:
        return self._loop.run(self._client.cancel(application_id))

    def close(self, application_id: str) -> dict[str, Any]:
        return self._loop.run(self._client.close(application_id))

    def explain(self, application_id: str) -> dict[str, Any]:
        return self._loop.run(self._client.explain(application_id))

    def scheduler(self) -> dict[str, Any]:
        return self._loop.run(self._client.scheduler())

    def events(self, application_id: str, after: int = 0) -> Generator[dict[str, Any]]:
        return self._loop.iterate(self._client.events(application_id, after))


class Application:
    """One open application; see `AsyncApplication`."""

    def __init__(self, inner: AsyncApplication, loop: _Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def calls(self) -> list[CallTrace]:
        return self._inner.calls

    def child(self, application_type: str | None = None) -> Application:
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

    def __init__(self, inner: AsyncSubmitted, loop: _Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def id(self) -> str:
        return self._inner.id

    def events(self, after: int = 0) -> Generator[dict[str, Any]]:
        return self._loop.iterate(self._inner.events(after))

    def wait(self) -> dict[str, Any]:
        return self._loop.run(self._inner.wait())

    def status(self) -> dict[str, Any]:
        return self._loop.run(self._inner.status())

    def cancel(self) -> dict[str, Any]:
        return self._loop.run(self._inner.cancel())

    def explain(self) -> dict[str, Any]:
        return self._loop.run(self._inner.explain())
