"""A trained predictor in a directory: `model.json` and `arrays.npz`, never pickle.

The document names the format and its version, the kind of model, what it was trained on (a fingerprint and counts by
type), the versions of the libraries that made it, the SHA-256 of the arrays' file, and its own. The arrays are plain
float64.

Laws: the same model gives the same bytes; files are renamed into place, the document last, so that a model is read
whole or not at all: of a writer that died in between, what is left is refused; whatever is damaged, cut short, foreign
or of another version is refused with a `ModelFileError` that says what is wrong, before any of it is used; nothing that
is read is ever executed.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import platform
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
from numpy.typing import NDArray

from predictors.models import PerTypeCostModel
from predictors.output_length import OutputLengthModel
from predictors.text_regressors import (
    KernelTextRegressor,
    NetworkTextRegressor,
    RestorableRegressor,
    joined,
    under,
)

Array = NDArray[np.float64]

FORMAT = "justitia-predictor"
FORMAT_VERSION = 2
DOCUMENT, ARRAYS = "model.json", "arrays.npz"
MAX_BYTES = 2**30
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
KINDS = ("default", "mlp", "transformer")
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
    *(ValueError, SyntaxError, EOFError, OSError, RuntimeError, MemoryError),
)
"""What zipfile and numpy raise for archives that are damaged, encrypted, or promise more than memory can hold."""


class ModelFileError(Exception):
    """A directory that holds no usable predictor; the text says why."""


@dataclass(frozen=True, slots=True)
class TrainedPredictor:
    """Costs of applications, lengths of calls, and where both come from."""

    kind: str
    costs: PerTypeCostModel
    lengths: OutputLengthModel
    fingerprint: str
    applications: Mapping[str, int]


def fingerprint(rows: Iterable[tuple[str, str, float]]) -> str:
    """SHA-256 over (type, prompt, cost) in order: tells whether two models saw the same applications."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def check_replaceable(directory: Path) -> None:
    """Raises ModelFileError where a `model.json` stands that is no predictor of any version: it is somebody else's."""
    path = directory / DOCUMENT
    if not path.exists():
        return
    try:
        document = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelFileError(f"{path}: not a {FORMAT}, so that it is not replaced")


def save(predictor: TrainedPredictor, directory: Path) -> None:
    """Write it, replacing what is there. Raises OSError where nothing can be written."""
    state, arrays = joined(costs=predictor.costs.state(), lengths=predictor.lengths.state())
    packed = _packed(arrays)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": predictor.kind,
        "fingerprint": predictor.fingerprint,
        "applications": dict(predictor.applications),
        "versions": _versions(),
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
        "state": state,
    }
    document["sha256"] = document_digest(document)
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / ARRAYS, packed)
    _replace(directory / DOCUMENT, (json.dumps(document, indent=1) + "\n").encode())


def load(directory: Path) -> TrainedPredictor:
    """Read what `save` wrote. Raises ModelFileError for anything else."""
    document = _document(directory / DOCUMENT)
    kind = document.get("kind")
    if kind not in KINDS:
        raise ModelFileError(f"{directory}: a model of the kind {kind!r}; known: {', '.join(KINDS)}")
    packed = _bytes(directory / ARRAYS)
    if hashlib.sha256(packed).hexdigest() != document.get("arrays_sha256"):
        raise ModelFileError(f"{directory / ARRAYS}: damaged, or of another model than {DOCUMENT}")
    arrays = _unpacked(packed, directory / ARRAYS)
    try:
        state: Mapping[str, Any] = document["state"]
        costs = PerTypeCostModel.from_state(state["costs"], under("costs", arrays), _regressor_class(kind))
        lengths = OutputLengthModel.from_state(state["lengths"], under("lengths", arrays))
        applications = {str(name): int(count) for name, count in document["applications"].items()}
        return TrainedPredictor(kind, costs, lengths, str(document["fingerprint"]), applications)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
        ImportError,
        np.linalg.LinAlgError,
    ) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(f"{directory}: its parts do not fit together: {what}") from error


def _regressor_class(kind: str) -> type[RestorableRegressor]:
    match kind:
        case KernelTextRegressor.kind:
            return KernelTextRegressor
        case NetworkTextRegressor.kind:
            return NetworkTextRegressor
        case _:
            from predictors.transformer import EncoderTextRegressor  # torch takes seconds to import

            return EncoderTextRegressor


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_bytes(path), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelFileError(f"{path}: not a predictor of this program")
    if document.get("format_version") != FORMAT_VERSION:
        version = document.get("format_version")
        raise ModelFileError(f"{path}: format version {version!r}; this program reads {FORMAT_VERSION}")
    if document.get("sha256") != document_digest(document):
        raise ModelFileError(f"{path}: damaged, or edited")
    return document


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a model's document, without the field `sha256` that holds it."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _bytes(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{path}: not a file")
        if found.st_size > MAX_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error


def _packed(arrays: Mapping[str, Array]) -> bytes:
    """A compressed .npz whose bytes depend on nothing but the arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            content = io.BytesIO()
            np.save(content, np.ascontiguousarray(arrays[name], dtype="<f8"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE), content.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unpacked(packed: bytes, path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise ModelFileError(f"{path}: unpacks to more than {MAX_BYTES} bytes")
            arrays = {
                name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
            }
    except _UNREADABLE as error:
        raise ModelFileError(f"{path}: no arrays can be read ({error})") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float64 or not np.all(np.isfinite(array)):
            raise ModelFileError(f"{path}: {name} holds what is no finite number")
    return arrays


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }
