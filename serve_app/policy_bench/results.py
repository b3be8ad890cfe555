"""Results in a directory: one file for the settings, one for the calibration, one a policy.

Laws: a file is whole or absent (it is written aside and renamed); results of other settings are never mixed in: a
directory that holds some is refused, naming what differs; what does not say what it should, in type or in range, or is
of other applications, is refused too, by name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from serve_app.policy_bench.calibration import Calibration
from serve_app.policy_bench.pace import Paces
from serve_app.policy_bench.replay import Outcome

SETTINGS, CALIBRATION = "settings.json", "calibration.json"


class ResultsError(Exception):
    """A directory that cannot be used, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy's run on the live service.

    `kv_used` is the mean share of the pool in use while the engine ran. `pace` is how long its iterations took over
    what the calibration says of the same iterations: 1.2 means that the machine was a fifth slower than then;
    `paces` has it for each window of `serve_app.policy_bench.pace`. Raises ValueError for numbers out of range.
    """

    policy: str
    outcomes: tuple[Outcome, ...]
    iterations: int
    preemptions: int
    kv_used: float
    pace: float
    paces: tuple[float, ...]

    def __post_init__(self) -> None:
        for windows in ((self.pace,), self.paces):
            Paces(windows)
        if min(self.iterations, self.preemptions, self.kv_used) < 0:
            found = (self.iterations, self.preemptions, self.kv_used)
            raise ValueError(f"iterations, preemptions and kv_used must not be negative, got {found}")

    @property
    def errors(self) -> dict[str, str]:
        """What went wrong, by application."""
        return {one.application_id: one.error for one in self.outcomes if one.error is not None}


_CALIBRATION = TypeAdapter(Calibration)
_RUN = TypeAdapter(PolicyRun)


class Results:
    """The directory. `open` makes it, or finds it made with the same settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def open(cls, directory: Path, settings: Mapping[str, Any]) -> Results:
        """Raises ResultsError when the directory holds other results, or cannot be written."""
        results = cls(directory)
        wanted = json.loads(json.dumps(settings))
        found = results._read(SETTINGS)
        if found is None:
            results._write(SETTINGS, wanted)
        elif found != wanted:
            different = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise ResultsError(
                f"{directory} has results of other settings ({', '.join(different)} differ): name another directory"
            )
        return results

    def calibration(self) -> Calibration | None:
        """The calibration, where it was made."""
        document = self._read(CALIBRATION)
        with _naming(self.directory / CALIBRATION):
            return None if document is None else _CALIBRATION.validate_json(json.dumps(document), strict=True)

    def keep_calibration(self, calibration: Calibration) -> None:
        self._write(CALIBRATION, asdict(calibration))

    def run_of(self, policy: str, application_ids: Collection[str]) -> PolicyRun | None:
        """A policy's run of these applications, where it was made."""
        document = self._read(_file_of(policy))
        with _naming(self.directory / _file_of(policy)):
            return None if document is None else _run_of(document, policy, application_ids)

    def keep_run(self, run: PolicyRun) -> None:
        self._write(_file_of(run.policy), asdict(run))

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            document = json.loads(path.read_text("utf-8"), parse_constant=_refuse)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise ResultsError(f"{path}: {error}") from error
        if not isinstance(document, dict):
            raise ResultsError(f"{path}: not an object")
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.directory / name
        aside = path.with_suffix(".part")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
            os.replace(aside, path)
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror or error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file that does not hold what it should."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ResultsError(f"{path}: {where}: {first['msg']}" if where else f"{path}: {first['msg']}") from error
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from error


def _file_of(policy: str) -> str:
    return f"policy-{policy}.json"


def _run_of(document: dict[str, Any], policy: str, application_ids: Collection[str]) -> PolicyRun:
    run = _RUN.validate_json(json.dumps(document), strict=True)
    if run.policy != policy:
        raise ValueError(f"it is a run of {run.policy}")
    if sorted(one.application_id for one in run.outcomes) != sorted(application_ids):
        raise ValueError("its applications are not those of the workload")
    return run


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of the files of a directory, each with its place there and its length. Raises OSError."""
    whole = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        content = file.read_bytes()
        place = file.name if file == path else file.relative_to(path).as_posix()
        whole.update(f"{place}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()
