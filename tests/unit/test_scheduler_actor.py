"""The shell around the scheduler: settings that change in place, health, and an end that closes whatever happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster import scheduler_actor
from cluster.scheduler_actor import Scheduler
from cluster.scheduler_service import SchedulerBroken

SHELL: Any = Scheduler.func_or_class  # type: ignore[attr-defined]  # what Serve makes an actor of


class _Shell(SHELL):  # type: ignore[misc]
    """Serve awaits `__del__` at the end; the interpreter, which cannot, finds nothing to do."""

    def __del__(self) -> None:
        pass


async def _started(**settings: Any) -> Any:
    scheduler = _Shell.__new__(_Shell)
    await scheduler.__init__(settings)
    return scheduler


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Any]:
    scheduler = await _started(state_dir=str(tmp_path))
    yield scheduler
    await SHELL.__del__(scheduler)
    assert scheduler._service._journal._database is None


@pytest.mark.parametrize(
    ("wrong", "named"), [({"policy": "nonsense"}, "nonsense"), ({"clock_rate": 0}, "clock_rate"), ({"x": 1}, "x")]
)
async def test_wrong_settings_are_shown_and_the_old_ones_stay_until_right_ones_come(
    scheduler: Any, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any], named: str
) -> None:
    caplog.set_level("INFO", "ray.serve")
    await scheduler.reconfigure({"policy": "fcfs"})
    await scheduler.reconfigure(wrong)
    seen = await scheduler.overview()
    assert seen["policy"] == "fcfs"
    assert named in seen["settings_refused"]
    assert [getattr(record, "event", "") for record in caplog.records].count("settings_refused") == 1
    await scheduler.check_health()
    await scheduler.reconfigure({"policy": "justitia"})
    seen = await scheduler.overview()
    assert (seen["policy"], seen["settings_refused"]) == ("justitia", None)


async def test_where_its_state_lives_cannot_change_in_place(scheduler: Any, tmp_path: Path) -> None:
    await scheduler.reconfigure({"state_dir": str(tmp_path / "other")})
    assert "state_dir" in (await scheduler.overview())["settings_refused"]
    assert scheduler._service.settings.state_dir == tmp_path


async def test_a_scheduler_without_right_settings_does_not_start_and_has_nothing_to_close() -> None:
    scheduler = _Shell.__new__(_Shell)
    with pytest.raises(ValueError, match="policy"):
        await scheduler.__init__({"policy": "nonsense"})
    await SHELL.__del__(scheduler)


async def test_health_fails_with_the_core_and_the_end_closes_all_the_same(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_actor, "TICK_S", 0.001)
    monkeypatch.setattr(scheduler._service.core, "handle", None)
    await asyncio.wait([scheduler._ticking], timeout=10.0)
    assert scheduler._ticking.done()
    with pytest.raises(SchedulerBroken, match="TimePassed"):
        await scheduler.check_health()


async def test_health_fails_when_time_is_no_longer_looked_after(scheduler: Any) -> None:
    await scheduler.check_health()
    scheduler._ticking.cancel()
    await asyncio.wait([scheduler._ticking])
    with pytest.raises(RuntimeError, match="clock task"):
        await scheduler.check_health()
