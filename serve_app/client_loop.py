"""An event loop in a thread of its own: how a program that is not asynchronous runs what is.

Laws.
1. Whatever interrupts a wait cancels what was waited for.
2. After `stop` nothing of it runs: what was under way was cancelled, and had its time to tell the service so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Set
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from serve_app.client_application import END_S

T = TypeVar("T")


class Closed(RuntimeError):
    """The client was closed before this, or while it ran."""


class Loop:
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
            raise Closed("the client is closed") from None
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
            with suppress(Closed):
                self.run(_close(source, turn))

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """End all that runs, then `last`, then the loop. Idempotent."""
        try:
            result = self._submit(_end_all(self._under_way, last), shut=True)
        except Closed:
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
                raise Closed("the client is closed")
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
