"""The workloads of `justitia reproduce`: those of the shared folder, or generated ones where it is absent.

The folder is what the environment variable JUSTITIA_SHARED names, or `shared` beside the project; the workloads are
JSON Lines in its folder `workloads`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from scheduler.sim.experiments.laboratory import EVEN, SKEWED, TRAIN, Workloads
from scheduler.sim.generators import Load, generate
from scheduler.sim.workload import TraceApplication
from serve_app.cli.simulation_runs import load_workload

SHARED_VARIABLE = "JUSTITIA_SHARED"
PROJECT = Path(__file__).resolve().parents[2]
STAND_INS: Mapping[str, tuple[str, int]] = {EVEN: ("even", 300), SKEWED: ("skewed", 300), TRAIN: ("even", 900)}
"""For each workload the kind and number of the applications that are generated in its place."""


class SharedWorkloads:
    """Files of a folder, each read once."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.source = str(folder)
        self._folder = folder
        self._limit = limit
        self._read: dict[str, list[TraceApplication]] = {}

    def applications(self, name: str) -> Sequence[TraceApplication]:
        """The first `limit` of them; CannotSimulate for a file that is missing or faulty."""
        if name not in self._read:
            workload = load_workload(str(self._folder / f"{name}.jsonl"), 1.0, self._limit, 0)
            self._read[name] = list(workload.open())
        return self._read[name]


class GeneratedWorkloads:
    """Applications of the same types and mixes from a seed."""

    def __init__(self, seed: int, limit: int | None) -> None:
        self.source = f"generated, seed {seed}"
        self._seed = seed
        self._limit = limit

    def applications(self, name: str) -> Sequence[TraceApplication]:
        kind, count = STAND_INS[name]
        return list(islice(generate(kind, Load(applications=count), self._seed), self._limit))


def shared_folder() -> Path:
    """Where the shared workloads are looked for."""
    named = os.environ.get(SHARED_VARIABLE)
    return (Path(named) if named else PROJECT.parent / "shared") / "workloads"


def find_workloads(seed: int, limit: int | None) -> Workloads:
    """The shared ones if they are there."""
    folder = shared_folder()
    if all((folder / f"{name}.jsonl").is_file() for name in STAND_INS):
        return SharedWorkloads(folder, limit)
    return GeneratedWorkloads(seed, limit)
