"""Epochs are handed out once, ever, and V never falls, whoever writes and whatever the wall clock says."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster import journal
from cluster.journal import Journal


@pytest.fixture(params=["runs", "stands still", "falls"])
def _wall_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter(range(10_000, 0, -1))
    if request.param == "stands still":
        monkeypatch.setattr(journal, "wall_s", lambda: 5.0)
    elif request.param == "falls":
        monkeypatch.setattr(journal, "wall_s", lambda: float(next(times_s)))


@pytest.mark.usefixtures("_wall_clock")
def test_every_opening_takes_a_higher_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(20):
        opened = Journal(tmp_path)
        epochs.append(opened.epoch)
        opened.close()
    assert epochs == sorted(set(epochs))


@pytest.mark.usefixtures("_wall_clock")
def test_journals_opened_at_once_in_threads_take_different_epochs(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: Journal(tmp_path), range(24)))
    assert len({each.epoch for each in opened}) == 24
    for each in opened:
        each.close()


def _open(directory: Path) -> int:
    opened = Journal(directory)
    opened.close()
    return opened.epoch


def test_journals_opened_at_once_in_processes_take_different_epochs(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as processes:
        epochs = processes.map(_open, [tmp_path] * 16)
    assert len(set(epochs)) == 16


def test_virtual_time_comes_back_and_never_falls(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    for virtual_time in (10.0, 30.0, 20.0):
        first.save(virtual_time)
    first.close()
    first.close()
    assert Journal(tmp_path).virtual_time == 30.0


def test_an_earlier_owner_no_longer_writes(tmp_path: Path) -> None:
    earlier = Journal(tmp_path)
    earlier.save(10.0)
    later = Journal(tmp_path)
    assert later.virtual_time == 10.0
    later.save(15.0)
    earlier.save(99.0)
    assert Journal(tmp_path).virtual_time == 15.0


def test_without_a_directory_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = Journal(None)
    opened.save(5.0)
    opened.close()
    assert opened.epoch > 0
    assert Journal(None).virtual_time == 0.0
    assert list(tmp_path.iterdir()) == []
