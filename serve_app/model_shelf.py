"""Trained models in a directory, one to a version: `v000002`, `v000003`, … each as `predictors.store` writes it.

Several ingresses may share the directory. Laws: no two trainings have one number, and one that was in use is not given
again; a version counts from the moment its `accepted.json` stands there, written whole, which says what its service
began with; one that was withdrawn never counts again; of those that count the newest `max_kept` stay, of others those
of the last MAX_STRAYS numbers, and whatever else stands there is left alone; what is damaged is passed over, with its
reason.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictors.store import TrainedPredictor

FIRST_NUMBER = 2
"""Version 1 is what an ingress begins with: its running means, or the model it was given."""
ACCEPTED, WITHDRAWN = "accepted.json", "withdrawn"
CONTEST = "champion"
"""A folder of a version for as long as its training lasts."""
MAX_STRAYS = 20
"""So many numbers may be in training, or withdrawn; what is older was left by an ingress that was killed."""


@dataclass(frozen=True, slots=True)
class ShelvedModel:
    """A version that was read."""

    number: int
    predictor: TrainedPredictor


class ModelShelf:
    """The versions in `directory`, which is made when the first of them is claimed."""

    def __init__(self, directory: Path, max_kept: int = 5) -> None:
        self.directory = directory
        self._max_kept = max_kept

    def claim(self, above: int = FIRST_NUMBER - 1) -> tuple[int, Path]:
        """A number above `above` that nobody had, and the empty directory of its version. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        number = max([above, FIRST_NUMBER - 1, *(number for number, _ in self._versions())]) + 1
        while True:
            path = self.directory / f"v{number:06d}"
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return number, path

    def accept(self, number: int, verdict: Mapping[str, Any]) -> None:
        """From here on the version counts. Raises OSError."""
        path = self._path(number)
        partial = path / f"{ACCEPTED}.{os.getpid()}.part"
        partial.write_text(json.dumps(dict(verdict)), "utf-8")
        partial.replace(path / ACCEPTED)
        shutil.rmtree(path / CONTEST, ignore_errors=True)
        versions = [(other, _counts(directory)) for other, directory in self._versions()]
        counting = [other for other, counts in versions if counts]
        strays = [other for other, counts in versions if not counts and other < number - MAX_STRAYS]
        for other in (*counting[: -self._max_kept], *strays):
            self.drop(other)

    def withdraw(self, number: int) -> None:
        """The version counts no more; nothing happens where there is none. Raises OSError."""
        with suppress(FileNotFoundError):
            (self._path(number) / WITHDRAWN).touch()

    def drop(self, number: int) -> None:
        """Take the version away."""
        shutil.rmtree(self._path(number), ignore_errors=True)

    def newest(self, began_with: str, on_refused: Callable[[str], object]) -> ShelvedModel | None:
        """The newest version that counts, can be read, and was learnt by a service that began with this predictor.

        `on_refused` hears why newer ones could not be read.
        """
        from predictors.store import ModelFileError, load  # imports scikit-learn, which takes seconds

        for number, directory in reversed(list(self._versions())):
            if _counts(directory) and _beginning(directory) == began_with:
                try:
                    return ShelvedModel(number, load(directory))
                except ModelFileError as error:
                    on_refused(str(error))
        return None

    def _path(self, number: int) -> Path:
        return self.directory / f"v{number:06d}"

    def _versions(self) -> Iterator[tuple[int, Path]]:
        for path in sorted(self.directory.glob("v[0-9][0-9][0-9][0-9][0-9][0-9]")):
            yield int(path.name[1:]), path


def _beginning(directory: Path) -> object:
    try:
        document = json.loads((directory / ACCEPTED).read_bytes())
    except (OSError, ValueError):
        return None
    return document.get("began_with") if isinstance(document, dict) else None


def _counts(directory: Path) -> bool:
    return (directory / ACCEPTED).is_file() and not (directory / WITHDRAWN).exists()
