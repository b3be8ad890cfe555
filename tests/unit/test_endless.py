"""A loop that outlives the failures of what it does."""

from __future__ import annotations

import asyncio

import pytest

from cluster.endless import keep_trying


async def test_every_failure_is_logged_and_tried_again_until_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ray.serve")
    tries: list[int] = []
    enough = asyncio.Event()

    async def once() -> None:
        tries.append(len(tries))
        if len(tries) == 6:
            enough.set()
        if len(tries) % 2:
            raise ConnectionError
        await asyncio.sleep(0)

    loop = asyncio.create_task(keep_trying(once, 0.001, ingress_id="i"))
    async with asyncio.timeout(1.0):
        await enough.wait()
    loop.cancel()
    await asyncio.wait([loop])
    assert loop.cancelled()
    failures = [(record.event, record.ingress_id) for record in caplog.records if hasattr(record, "event")]
    assert failures == [("scheduler_unreachable", "i")] * 3
