"""Model files: what comes back is what went in, and what is no model is refused with a reason."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from predictors.features import LENGTH_FEATURES
from predictors.models import PerTypeCostModel
from predictors.output_length import FinishedCall, OutputLengthModel
from predictors.store import (
    ARRAYS,
    DOCUMENT,
    ModelFileError,
    TrainedPredictor,
    document_digest,
    fingerprint,
    load,
    save,
)
from predictors.text_regressors import KernelTextRegressor, NetworkTextRegressor
from tests.predicting import made_up


def trained(kind: str) -> TrainedPredictor:
    asked, costs = made_up(15, seed=1)
    regressor = KernelTextRegressor() if kind == "default" else NetworkTextRegressor(max_iter=10)
    return TrainedPredictor(
        kind=kind,
        costs=PerTypeCostModel(regressor).fit(asked, costs),
        lengths=OutputLengthModel().fit([FinishedCall("report", "map1", 100, 50), FinishedCall("b", "c", 9, 9)]),
        fingerprint=fingerprint((*one, cost) for one, cost in zip(asked, costs, strict=True)),
        applications={"question": 15, "report": 15},
    )


@pytest.fixture(params=["default", "mlp"])
def predictor(request: pytest.FixtureRequest) -> TrainedPredictor:
    return trained(request.param)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(trained("default"), tmp_path)
    return tmp_path


def test_what_is_loaded_predicts_as_what_was_saved(predictor: TrainedPredictor, tmp_path: Path) -> None:
    save(predictor, tmp_path / "deep" / "model")
    again = load(tmp_path / "deep" / "model")
    asked = [*made_up(5, seed=2)[0], ("unseen", "river"), ("report", "")]
    assert_allclose(again.costs.predict(asked), predictor.costs.predict(asked), rtol=1e-9)
    assert_allclose(again.costs.predict_quantile(asked, 0.9), predictor.costs.predict_quantile(asked, 0.9), rtol=1e-9)
    assert again.lengths.predict("report", "map2", 100, 999) == predictor.lengths.predict("report", "map2", 100, 999)
    assert (again.kind, again.fingerprint, again.applications) == (
        predictor.kind,
        predictor.fingerprint,
        predictor.applications,
    )


def test_a_loaded_model_learns_on(saved: Path) -> None:
    model = load(saved).costs
    before = model.predict_one("report", "river " * 20).cost
    model.partial_fit([("report", "river " * 20)] * 3, [before * 3] * 3)
    assert model.predict_one("report", "river " * 20).cost > before * 1.5


def test_a_loaded_model_remembers_as_much_as_the_one_that_was_saved(tmp_path: Path) -> None:
    learning = PerTypeCostModel().fit(*made_up(40, seed=1))
    save(replace(trained("default"), costs=learning), tmp_path)
    loaded = load(tmp_path).costs
    more = made_up(60, seed=2)
    for model in (learning, loaded):
        model.partial_fit(*more)
    assert len(loaded.types_["report"].regressor_.rows_) == 100, "none is forgotten"
    asked = made_up(10, seed=3)[0]
    assert_allclose(loaded.predict(asked), learning.predict(asked), rtol=1e-9)


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(trained("default"), tmp_path / name)
    for file in (DOCUMENT, ARRAYS):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_model_says_where_it_comes_from(saved: Path) -> None:
    document = json.loads((saved / DOCUMENT).read_text())
    assert document["kind"] == "default"
    assert document["applications"] == {"question": 15, "report": 15}
    assert len(document["fingerprint"]) == 64
    assert set(document["versions"]) == {"python", "numpy", "scipy", "scikit-learn"}
    assert b"pickle" not in (saved / ARRAYS).read_bytes()


def test_other_data_have_another_fingerprint() -> None:
    rows = [("a", "b", 1.0), ("a", "c", 2.0)]
    assert len({fingerprint(rows), fingerprint(rows[::-1]), fingerprint(rows[:1])}) == 3


def test_a_model_replaces_the_one_before_and_leaves_nothing_half_written(saved: Path) -> None:
    save(trained("mlp"), saved)
    assert load(saved).kind == "mlp"
    assert sorted(path.name for path in saved.iterdir()) == [ARRAYS, DOCUMENT]


Spoil = Callable[[Path], Any]


def seal(directory: Path, document: dict[str, Any]) -> None:
    """Write a document as whoever means it would, so that what it says must be looked at."""
    sealed = json.dumps(document | {"sha256": document_digest(document)})
    (directory / DOCUMENT).write_text(sealed)


def rewrite(**changes: Any) -> Spoil:
    def spoil(directory: Path) -> None:
        seal(directory, json.loads((directory / DOCUMENT).read_text()) | changes)

    return spoil


def drop(name: str) -> Spoil:
    def spoil(directory: Path) -> None:
        document = json.loads((directory / DOCUMENT).read_text())
        del document[name]
        seal(directory, document)

    return spoil


def flip_a_byte(directory: Path) -> None:
    packed = bytearray((directory / ARRAYS).read_bytes())
    packed[len(packed) // 2] ^= 0xFF
    (directory / ARRAYS).write_bytes(packed)


def cut(name: str) -> Spoil:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:1000])


def replace_arrays(packed: bytes) -> Spoil:
    """With the right checksum, so that the arrays themselves must be looked at."""

    def spoil(directory: Path) -> None:
        (directory / ARRAYS).write_bytes(packed)
        rewrite(arrays_sha256=hashlib.sha256(packed).hexdigest())(directory)

    return spoil


def with_array(name: str, array: np.ndarray) -> Spoil:
    def spoil(directory: Path) -> None:
        arrays = dict(np.load(directory / ARRAYS)) | {name: array}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        replace_arrays(buffer.getvalue())(directory)

    return spoil


def objects() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([{"run": "me"}], dtype=object))
    return buffer.getvalue()


def archived(member: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", member)
    return buffer.getvalue()


def with_header(header: bytes) -> bytes:
    """An array of which there is a header alone."""
    return archived(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def damaged_deflate() -> bytes:
    """An archive with its directory whole and its compressed bytes broken."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(range(256)) * 40)
    packed = bytearray(buffer.getvalue())
    packed[40:60] = b"\xff" * 20
    return bytes(packed)


MORE_THAN_MEMORY_HOLDS = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }\n"
BROKEN_HEADER = b"{'descr': '<f8', 'shape': (3,\n"


def encrypted() -> bytes:
    """As an archive that says that its member is."""
    packed = bytearray(archived(b"not an array"))
    packed[6] |= 1
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(packed)


def no_number(directory: Path) -> None:
    text = (directory / DOCUMENT).read_text()
    (directory / DOCUMENT).write_text(re.sub(r'"global_scale": [0-9.e-]+', '"global_scale": NaN', text))


def fewer_rows_than_there_are(directory: Path) -> None:
    text = (directory / DOCUMENT).read_text()
    seal(directory, json.loads(re.sub(r'"max_rows": [0-9]+', '"max_rows": 3', text)))


def another_number(directory: Path) -> None:
    text = (directory / DOCUMENT).read_text()
    (directory / DOCUMENT).write_text(re.sub(r'"global_scale": [0-9.e-]+', '"global_scale": 7.5', text))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (replace_arrays(damaged_deflate()), "no arrays can be read"),
        (replace_arrays(with_header(MORE_THAN_MEMORY_HOLDS)), "no arrays can be read"),
        (replace_arrays(with_header(BROKEN_HEADER)), "no arrays can be read"),
        (replace_arrays(encrypted()), "no arrays can be read"),
        (no_number, "NaN is no number"),
        (another_number, "damaged, or edited"),
        (lambda directory: (directory / DOCUMENT).unlink(), "No such file"),
        (lambda directory: (directory / ARRAYS).unlink(), "No such file"),
        (cut(DOCUMENT), "not JSON"),
        (cut(ARRAYS), "damaged"),
        (flip_a_byte, "damaged"),
        (lambda directory: (directory / DOCUMENT).write_text("[1, 2]"), "not a predictor"),
        (lambda directory: (directory / DOCUMENT).write_bytes(b"\xff\xfe"), "not JSON"),
        (lambda directory: (directory / DOCUMENT).write_text("[" * 100_000), "not JSON"),
        (rewrite(format="something else"), "not a predictor"),
        (rewrite(format_version=99), "format version 99"),
        (rewrite(kind="oracle"), "kind 'oracle'"),
        (rewrite(kind=["default"]), "kind"),
        (rewrite(kind="mlp"), "do not fit together"),
        (rewrite(state={}), "do not fit together"),
        (rewrite(state=None), "do not fit together"),
        (rewrite(applications=7), "do not fit together"),
        (drop("state"), "'state' is missing"),
        (drop("arrays_sha256"), "damaged"),
        (replace_arrays(b"PK but no archive"), "no arrays can be read"),
        (replace_arrays(archived(b"not an array")), "no arrays can be read"),
        (replace_arrays(objects()), "no arrays can be read"),
        (with_array("costs/quantiles", np.zeros((1, 1))), "do not fit together"),
        (with_array("costs/global/regressor/targets", np.array([np.nan])), "no finite number"),
        (with_array("costs/global/regressor/term_rows", np.array([1e6])), "do not fit together"),
        (with_array("costs/type0/features/scale", np.zeros(len(LENGTH_FEATURES))), "must be positive"),
        (with_array("costs/type0/features/scale", np.zeros(3)), "do not fit together"),
        (fewer_rows_than_there_are, "rows where at most 3 are kept"),
        (with_array("lengths/types", np.array(["a"])), "no finite number"),
    ],
)
def test_what_is_no_model_is_refused_with_a_reason(saved: Path, spoil: Spoil, reason: str) -> None:
    spoil(saved)
    with pytest.raises(ModelFileError, match=reason):
        load(saved)


@pytest.mark.parametrize("place", ["", "no/such/folder"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        load(tmp_path / place)
