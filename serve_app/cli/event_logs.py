"""Event logs of live schedulers as files: one an epoch, `events-EPOCH.jsonl`, in the scheduler's `state_dir`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.sim.twin import LogError, Recording
from scheduler.sim.workload import TraceApplication
from serve_app.cli.simulation_runs import CannotSimulate

NAME = re.compile(r"events-(\d+)\.jsonl")


def log_files(path: Path) -> list[Path]:
    """The log, or those of a directory in order of their epochs; CannotSimulate where there is none."""
    if not path.is_dir():
        return [path]
    epochs = {int(match[1]): file for file in path.iterdir() if (match := NAME.fullmatch(file.name))}
    if not epochs:
        raise CannotSimulate(
            f"{path}: no events-EPOCH.jsonl here; a scheduler writes them into its state_dir with `event_log: true`"
        )
    return [epochs[epoch] for epoch in sorted(epochs)]


@contextmanager
def mistakes_in_log(file: Path) -> Iterator[None]:
    """Name the file that is no event log, or cannot be read."""
    try:
        yield
    except OSError as error:
        raise CannotSimulate(f"{file}: {error.strerror or error}") from error
    except (LogError, UnicodeDecodeError) as error:
        raise CannotSimulate(f"{file}: {error}") from error


def read_log(file: Path) -> Iterator[str]:
    """Its lines."""
    with mistakes_in_log(file), file.open(encoding="utf-8") as lines:
        yield from lines


def recorded_traffic(path: Path) -> tuple[list[TraceApplication], Recording]:
    """What the logs at this path say that applications asked for, and what of it is left out."""
    recording = Recording()
    applications: list[TraceApplication] = []
    for file in log_files(path):
        with mistakes_in_log(file):
            applications += recording.traffic_of(read_log(file))
    return [*applications, *recording.take_rest()], recording
