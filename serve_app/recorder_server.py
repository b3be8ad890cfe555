"""The recording proxy as a server of its own, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import uvicorn

from serve_app.recorder import Recorder
from serve_app.recorder_proxy import RecordingProxy

STOP_S = 5


async def serve_recorder(recorder: Recorder, upstream: str, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; requests that are under way have `STOP_S` seconds then, or until a second signal.

    Raises OSError when nothing can listen there.
    """
    began_s = monotonic()
    proxy = RecordingProxy(upstream, recorder, lambda: monotonic() - began_s)
    server = _Server(
        uvicorn.Config(proxy, host=host, port=port, log_level="error", lifespan="off", timeout_graceful_shutdown=STOP_S)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    try:
        await server.serve()
    except SystemExit:
        raise OSError(f"cannot listen on {host}:{port}") from None
    finally:
        await proxy.aclose()


class _Server(uvicorn.Server):
    """Stopped by whoever holds it: uvicorn's own handlers raise a signal again when all is done."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.force_exit, self.should_exit = self.should_exit, True
