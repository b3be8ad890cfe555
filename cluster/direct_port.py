"""An engine's own HTTP application on a loopback port, past scheduler and leases. For benchmarks only.

What answers there is what `vllm serve` would answer with, in the process and on the engine that also serve leases,
so that both ways can be measured in one run.
"""

from __future__ import annotations

import asyncio
import uuid

import uvicorn

from cluster.engine import CURRENT_LEASE, ActiveLease, Engine, Receive, Scope, Send
from scheduler.types import MAX_SEQUENCES

START_S = 10.0


class DirectPort:
    """Serves one engine directly, from `open` to `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Start to listen; returns the port. Raises TimeoutError when the server does not start."""
        config = uvicorn.Config(
            self._answer, host="127.0.0.1", port=0, log_level="error", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the process is Ray's
        self._serving = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(START_S):
            while not self._server.started:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
        port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening; idempotent."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = f"direct-{uuid.uuid4().hex}"
        CURRENT_LEASE.set(ActiveLease(name, "direct", name, priority=0, sequences=MAX_SEQUENCES))
        await self._engine.asgi(scope, receive, send)
