"""Finished applications to learn from: a workload file, or a log of what the service has finished.

A workload file is JSON Lines, gzip or not, in any order. The service's log is a directory of such files, or one of
them, named `LOG_FILES` and read from the oldest on; a last line that was cut off when its writer stopped is passed over
there. A line holds `application_type`, `prompt` (absent from a log that keeps no prompts), and either `calls` (`name`,
`prompt_tokens`, `output_tokens`, optionally `sequences`: the cost is theirs) or `true_cost` in token-iterations, or
both; optionally `tenant`, and `outcome`, of which only "finished" teaches anything. Other fields are ignored. Every
fault is a `TrainingDataError` that names the line.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

from predictors.models import Asked
from predictors.output_length import FinishedCall
from scheduler.cost import memory_cost

GZIP_MAGIC = b"\x1f\x8b"
MAX_COUNT = 2**40
LOG_FILES = "finished-*.jsonl*"


class TrainingDataError(ValueError):
    """A file that nothing can be learnt from."""


@dataclass(frozen=True, slots=True)
class FinishedApplication:
    """What it was asked, what it cost (token-iterations), and its calls where they are known."""

    asked: Asked
    cost: float
    calls: tuple[FinishedCall, ...]


def read_finished(path: Path, limit_per_type: int | None = None) -> list[FinishedApplication]:
    """The file's applications that finished, the first `limit_per_type` of each type. Raises TrainingDataError."""
    found: list[FinishedApplication] = []
    counts: dict[str, int] = {}
    for application in (one for file in _files(path) for one in _applications(file)):
        name = application.asked.application_type
        counts[name] = counts.get(name, 0) + 1
        if limit_per_type is None or counts[name] <= limit_per_type:
            found.append(application)
    if not found:
        raise TrainingDataError(f"{path}: no finished application in it")
    return found


def without_prompts(applications: Sequence[FinishedApplication]) -> bool:
    """Is there no prompt in any of them, so that only types can be told apart?"""
    return not any(one.asked.prompt for one in applications)


def parse_finished(document: Any) -> FinishedApplication | None:
    """The application in a line that was parsed; None for one that did not finish.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    return _application(document) if _finished(document) else None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob(LOG_FILES))
    if not files:
        raise TrainingDataError(f"{path}: a directory without a log of finished applications ({LOG_FILES})")
    return files


def _applications(path: Path) -> Iterator[FinishedApplication]:
    number = 0
    is_log = fnmatch(path.name, LOG_FILES)
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007  # the handlers below name the line
                document = None if not line.strip() or (is_log and _is_cut_off(line)) else json.loads(line)
                application = None if document is None else parse_finished(document)
                if application is not None:
                    yield application
    except OSError as error:
        raise TrainingDataError(f"{path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, OverflowError, EOFError, zlib.error, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TrainingDataError(f"{path}, line {max(1, number)}: {what}") from error


def _is_cut_off(line: str) -> bool:
    """Did its writer stop in the middle of it?"""
    if line.endswith("\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _opened(path: Path) -> TextIO:
    file = path.open("rb")
    packed = file.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC  # a pipe can be read once only
    return io.TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, encoding="utf-8-sig")


def _finished(document: Any) -> bool:
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return bool(document.get("outcome", "finished") == "finished")


def _application(document: dict[str, Any]) -> FinishedApplication:
    kind, prompt = str(document["application_type"]), document.get("prompt") or ""
    kind.encode()  # a lone surrogate can be neither shown nor kept
    if not isinstance(prompt, str):
        raise TypeError("prompt must be a text")
    tenant = str(document.get("tenant", "default"))
    calls, cost = [], 0.0
    for call in document.get("calls") or ():
        prompt_tokens, output_tokens = _count(call, "prompt_tokens"), _count(call, "output_tokens")
        sequences = _count({"sequences": 1, **call}, "sequences")
        cost += sequences * memory_cost(prompt_tokens, (output_tokens,))
        calls.append(FinishedCall(kind, str(call["name"]), prompt_tokens, output_tokens, tenant))
    if "true_cost" in document:
        cost = float(document["true_cost"])
    elif not calls:
        raise KeyError("calls")
    return FinishedApplication(Asked(kind, prompt), cost, tuple(calls))


def _count(document: Any, name: str) -> int:
    if not isinstance(document, dict):
        raise TypeError("a call must be an object")
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} must be a count, got {value!r}")
    return value
