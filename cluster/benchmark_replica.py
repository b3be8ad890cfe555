"""A replica whose engine can also be asked directly, for `justitia bench overhead`."""

from __future__ import annotations

from typing import Any

from cluster.direct_port import DirectPort
from cluster.replica import Replica, as_deployment


class MeasuredReplica(Replica):
    """A replica with a direct port beside its leases."""

    async def __init__(self, engine: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        await super().__init__(engine)
        self._direct = DirectPort(self.engine)

    async def open_direct_port(self) -> int:
        """Let the engine answer on a loopback port of its own; returns the port."""
        return await self._direct.open()

    async def __del__(self) -> None:
        if hasattr(self, "_direct"):
            await self._direct.close()
        await super().__del__()


BenchmarkReplica = as_deployment(MeasuredReplica)
