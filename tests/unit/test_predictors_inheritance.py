"""A newer model keeps the types that it has not seen itself, and nothing else of the one before."""

from __future__ import annotations

from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from predictors.inheritance import inheriting, sharing
from predictors.models import PerTypeCostModel, Source
from predictors.output_length import FinishedCall, OutputLengthModel
from predictors.store import TrainedPredictor, load, save
from predictors.text_regressors import NetworkTextRegressor
from tests.predicting import made_up

OLDER = ("garden", "question", "report")
NEWER = ("question", "story")


def trained(seed: int, kinds: tuple[str, ...], count: int = 12) -> TrainedPredictor:
    asked, costs = made_up(count, seed, kinds)
    calls = [FinishedCall(kind, "write", 100, 50 * seed) for kind in kinds]
    return TrainedPredictor(
        kind="default",
        costs=PerTypeCostModel().fit(asked, costs),
        lengths=OutputLengthModel().fit(calls),
        fingerprint=str(seed),
        applications=dict.fromkeys(kinds, count),
    )


@pytest.fixture(scope="module")
def older() -> TrainedPredictor:
    return trained(1, OLDER)


@pytest.fixture(scope="module")
def newer() -> TrainedPredictor:
    return trained(2, NEWER)


def test_types_that_rested_are_known_as_before(older: TrainedPredictor, newer: TrainedPredictor) -> None:
    merged = inheriting(newer, older)
    asked = [one for one in made_up(5, seed=3, kinds=OLDER)[0] if one.application_type != "question"]
    assert_allclose(merged.costs.predict(asked), older.costs.predict(asked))
    assert_allclose(merged.costs.predict_quantile(asked, 0.9), older.costs.predict_quantile(asked, 0.9))
    assert merged.costs.predict_one("report", "").source is Source.TYPE
    assert merged.lengths.predict("report", "write", 100, 999) == 50
    assert merged.applications == {"garden": 12, "question": 12, "report": 12, "story": 12}
    assert merged.fingerprint == newer.fingerprint


def test_what_the_newer_one_has_learnt_stays(older: TrainedPredictor, newer: TrainedPredictor) -> None:
    merged = inheriting(newer, older)
    asked = made_up(5, seed=4, kinds=NEWER)[0]
    assert_allclose(merged.costs.predict(asked), newer.costs.predict(asked))
    assert merged.lengths.predict("question", "write", 100, 999) == 100
    assert merged.costs.predict_one("never", "seen").source is Source.ALL_TYPES
    assert (set(newer.costs.types_), set(older.costs.types_)) == (set(NEWER), set(OLDER))


def test_a_type_that_was_hardly_seen_again_is_not_forgotten(older: TrainedPredictor) -> None:
    hardly = trained(2, ("question", "story"), 4)
    merged = inheriting(hardly, older)
    asked = [one for one in made_up(5, seed=6, kinds=OLDER)[0] if one.application_type == "question"]
    assert_allclose(merged.costs.predict(asked), older.costs.predict(asked))
    assert merged.lengths.predict("question", "write", 100, 999) == 50
    assert (merged.applications["question"], merged.applications["story"]) == (12, 4)
    assert inheriting(trained(3, ("question",), 5), older).applications["question"] == 5


def test_what_two_versions_have_in_common_is_in_memory_once(
    older: TrainedPredictor, newer: TrainedPredictor, tmp_path: Path
) -> None:
    save(inheriting(newer, older), tmp_path)
    loaded = load(tmp_path)
    shared = sharing(loaded, older)
    assert shared.costs.types_["report"] is older.costs.types_["report"]
    assert shared.costs.types_["question"] is loaded.costs.types_["question"] is not older.costs.types_["question"]
    assert loaded.costs.types_["report"] is not older.costs.types_["report"]
    asked = made_up(5, seed=7, kinds=OLDER)[0]
    assert_allclose(shared.costs.predict(asked), loaded.costs.predict(asked))


def test_a_model_file_holds_what_was_inherited(
    older: TrainedPredictor, newer: TrainedPredictor, tmp_path: Path
) -> None:
    merged = inheriting(newer, older)
    save(merged, tmp_path)
    asked = made_up(5, seed=5, kinds=(*OLDER, "story"))[0]
    assert_allclose(load(tmp_path).costs.predict(asked), merged.costs.predict(asked))


def test_beyond_the_limit_types_that_taught_least_are_left_behind(newer: TrainedPredictor) -> None:
    few, many = trained(1, ("few",), 5), trained(1, ("many",), 20)
    merged = inheriting(newer, inheriting(few, many), max_types=3)
    assert set(merged.applications) == set(merged.costs.types_) == {*NEWER, "many"}
    assert set(inheriting(newer, few, max_types=1).costs.types_) == set(NEWER)


def test_models_of_different_kinds_share_nothing(newer: TrainedPredictor) -> None:
    asked, costs = made_up(5, 1)
    network = PerTypeCostModel(NetworkTextRegressor(max_iter=5)).fit(asked, costs)
    other = TrainedPredictor("mlp", network, newer.lengths, "mlp", {"report": 5})
    assert inheriting(newer, other) is newer
