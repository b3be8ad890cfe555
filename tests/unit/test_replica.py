"""The shell around an engine: what was begun is ended, whatever became of its start."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.benchmark_replica import MeasuredReplica
from cluster.replica import Replica


class _Noting:
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def stop(self) -> None:
        self.seen.append(self.name)

    close = stop


@pytest.mark.parametrize("begun", [[], ["engine"], ["_agent", "engine"]])
@pytest.mark.parametrize("kind", [Replica, MeasuredReplica])
async def test_a_replica_that_failed_to_start_ends_what_it_had_begun(kind: type[Any], begun: list[str]) -> None:
    class Half(kind):  # type: ignore[misc]
        """Serve awaits `__del__`; the interpreter, which cannot, finds nothing to do."""

        def __del__(self) -> None:
            pass

    seen: list[str] = []
    replica = Half.__new__(Half)
    with pytest.raises(ValidationError):
        await replica.__init__({"kind": "no such engine"})
    for name in begun:
        setattr(replica, name, _Noting(name, seen))
    await kind.__del__(replica)
    assert seen == begun
