"""Regressors of one application type: prompts in, the mean and the standard deviation of log costs out.

What a `TextRegressor` promises: `fit` takes prompts, log costs and the log cost to lean on while there is little
(`prior`); `predict_one` equals `predict` on that prompt alone; `scores_` holds what conformal calibration needs: for
each row, how many predicted deviations the truth lay from what was predicted without that row's prompt and, where a
model tells prompts that it knows from others, also without that row alone. `partial_fit` is for rows that come one by
one, between fits, and may do nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.utils.validation import check_is_fitted

from predictors.features import LENGTH_FEATURES, MAX_TERMS, SIZE_COLUMNS, TextFeatures
from predictors.kernel_regressor import KernelRegressor

Array = NDArray[np.float64]
State = tuple[dict[str, Any], dict[str, Array]]

LEAN_ON = 4.0
"""The prior's worth in observations, for regressors without a prior of their own."""
USUAL_DEVIATION = 0.7
"""Of log costs within a type, before anything is known."""
WIDENING = 1.08
"""A kernel's scores come out small, as its scales saw the rows that were left out; so much, by cross-validation."""


class TextRegressor(Protocol):
    """See the module."""

    scores_: Array

    def fit(self, texts: Sequence[str], logs: Array, prior: float) -> Self: ...

    def partial_fit(self, texts: Sequence[str], logs: Array) -> Self: ...

    def predict(self, texts: Sequence[str]) -> tuple[Array, Array]: ...

    def predict_one(self, text: str) -> tuple[float, float]: ...

    def knows(self, text: str) -> bool: ...

    def state(self) -> State: ...


class RestorableRegressor(TextRegressor, Protocol):
    """One that can be made again from what `state` said."""

    @classmethod
    def from_state(cls, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self: ...


class KernelTextRegressor(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Length and term features into a `KernelRegressor`: the default model."""

    kind = "default"

    def __init__(self, max_terms: int = MAX_TERMS, max_rows: int = 400, level_sd: float = 1.5) -> None:
        self.max_terms = max_terms
        self.max_rows = max_rows
        self.level_sd = level_sd

    def fit(self, texts: Sequence[str], logs: Array, prior: float) -> Self:
        texts, logs = list(texts)[-self.max_rows :], np.asarray(logs)[-self.max_rows :]
        self.features_ = TextFeatures(self.max_terms).fit(texts)
        self.regressor_ = KernelRegressor(len(LENGTH_FEATURES), SIZE_COLUMNS, prior, self.level_sd, self.max_rows)
        self.regressor_.fit(self.features_.transform(texts), logs)
        self.scores_ = WIDENING * np.concatenate([self.scores_by(texts), self.scores_by(range(len(texts)))])
        return self

    def partial_fit(self, texts: Sequence[str], logs: Array) -> Self:
        """Learn from further rows at once; vocabulary and scales stay until the next `fit`."""
        self.regressor_.partial_fit(self.features_.transform(texts), logs)
        return self

    def scores_by(self, groups: Sequence[Hashable]) -> Array:
        """Scores of rows that are predicted without the rows of their group."""
        means, deviations = self.regressor_.left_out(groups)
        scores: Array = (self.regressor_.targets_ - means) / deviations
        return scores

    def predict(self, texts: Sequence[str]) -> tuple[Array, Array]:
        means, deviations = self.regressor_.predict(self.features_.transform(texts), return_std=True)
        return means, deviations

    def predict_one(self, text: str) -> tuple[float, float]:
        return self.regressor_.predict_one(*self.features_.transform_one(text))

    def knows(self, text: str) -> bool:
        """Whether it holds a term that stood in what was learnt from."""
        return self.features_.knows(text)

    def state(self) -> State:
        return joined(features=self.features_.state(), regressor=self.regressor_.state())

    @classmethod
    def from_state(cls, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        model = cls(max_rows=int(document["regressor"]["max_rows"]), level_sd=float(document["regressor"]["level_sd"]))
        model.features_ = TextFeatures.from_state(document["features"], under("features", arrays))
        model.regressor_ = KernelRegressor.from_state(document["regressor"], under("regressor", arrays))
        if model.regressor_.n_features_in_ != len(LENGTH_FEATURES) + len(model.features_.terms_):
            raise ValueError("features and regressor have different widths")
        model.scores_ = np.zeros(0)
        return model


class NetworkTextRegressor(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Term weights into a multi-layer perceptron of four layers (Justitia, arXiv:2510.17015, section 4).

    Three hidden layers and the output, on standardized targets: costs as they are make the weights overflow. With
    fewer than MIN_ROWS rows it answers with their mean, shrunk towards the prior. Deviations are those of rows left
    out of training, `FOLDS` parts in turn.
    """

    kind = "mlp"
    MIN_ROWS = 10
    FOLDS = 3

    def __init__(
        self,
        max_terms: int = MAX_TERMS,
        *,
        hidden_layer_sizes: tuple[int, ...] = (128, 64, 32),
        alpha: float = 1e-2,
        max_iter: int = 200,
        random_state: int = 0,
    ) -> None:
        self.max_terms = max_terms
        self.hidden_layer_sizes = hidden_layer_sizes
        self.alpha = alpha
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, texts: Sequence[str], logs: Array, prior: float) -> Self:
        logs = np.asarray(logs, dtype=float)
        self.center_ = float((logs.sum() + LEAN_ON * prior) / (len(logs) + LEAN_ON))
        self.spread_ = float(max(logs.std(), 1e-3))
        self.deviation_ = USUAL_DEVIATION
        self.features_ = TextFeatures(self.max_terms).fit(texts)
        rows = self.features_.transform(texts)[:, len(LENGTH_FEATURES) :]
        self.layers_: list[tuple[Array, Array]] = []
        self.scores_ = (logs - self.center_) / self.deviation_
        if len(logs) < self.MIN_ROWS or rows.shape[1] == 0:
            return self
        self.center_ = float(logs.mean())
        errors = self._errors_left_out(texts, rows, logs)
        self.deviation_ = float(max(np.sqrt(np.mean(errors**2)), 1e-3))
        self.scores_ = errors / self.deviation_
        self.layers_ = self._trained(rows, logs)
        return self

    def partial_fit(self, texts: Sequence[str], logs: Array) -> Self:
        """A network is trained whole: it waits for the next `fit`."""
        return self

    def predict(self, texts: Sequence[str]) -> tuple[Array, Array]:
        rows = self.features_.transform(texts)[:, len(LENGTH_FEATURES) :]
        return self._forward(rows, self.layers_), np.full(len(rows), self.deviation_)

    def predict_one(self, text: str) -> tuple[float, float]:
        _, columns, weights = self.features_.transform_one(text)
        if not self.layers_:
            return self.center_, self.deviation_
        first, offset = self.layers_[0]
        signal = weights @ first[columns] + offset
        for matrix, offset in self.layers_[1:]:
            signal = np.maximum(signal, 0) @ matrix + offset
        return float(self.center_ + self.spread_ * signal[0]), self.deviation_

    def knows(self, text: str) -> bool:
        return self.features_.knows(text)

    def state(self) -> State:
        check_is_fitted(self)
        document, arrays = joined(features=self.features_.state())
        numbers = {"center": self.center_, "spread": self.spread_, "deviation": self.deviation_}
        for place, (matrix, offset) in enumerate(self.layers_):
            arrays |= {f"layer{place}/matrix": matrix, f"layer{place}/offset": offset}
        return document | numbers | {"layers": len(self.layers_)}, arrays

    @classmethod
    def from_state(cls, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        model = cls()
        model.features_ = TextFeatures.from_state(document["features"], under("features", arrays))
        model.center_, model.spread_ = float(document["center"]), float(document["spread"])
        model.deviation_ = float(document["deviation"])
        model.layers_ = [
            (arrays[f"layer{place}/matrix"], arrays[f"layer{place}/offset"]) for place in range(document["layers"])
        ]
        model.scores_ = np.zeros(0)
        width = len(model.features_.terms_)
        for matrix, offset in model.layers_:
            if matrix.ndim != 2 or matrix.shape[0] != width or offset.shape != (matrix.shape[1],):
                raise ValueError("the network's layers do not fit together")
            width = matrix.shape[1]
        if model.layers_ and width != 1:
            raise ValueError("the network has not one output")
        return model

    def _forward(self, rows: Array, layers: Sequence[tuple[Array, Array]]) -> Array:
        signal = rows
        for place, (matrix, offset) in enumerate(layers):
            signal = (np.maximum(signal, 0) if place else signal) @ matrix + offset
        answers: Array = self.center_ + self.spread_ * signal[:, 0] if layers else np.full(len(rows), self.center_)
        return answers

    def _errors_left_out(self, texts: Sequence[str], rows: Array, logs: Array) -> Array:
        """Errors at rows whose prompts the network was not trained on; the vocabulary is everybody's."""
        prompts = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        part = np.array([prompts[text] % self.FOLDS for text in texts])
        errors = logs - self.center_
        for fold in range(self.FOLDS):
            held, used = part == fold, part != fold
            if held.any() and used.any():
                errors[held] = logs[held] - self._forward(rows[held], self._trained(rows[used], logs[used]))
        return errors

    def _trained(self, rows: Array, logs: Array) -> list[tuple[Array, Array]]:
        network = MLPRegressor(
            hidden_layer_sizes=self.hidden_layer_sizes,
            alpha=self.alpha,
            max_iter=self.max_iter,
            random_state=self.random_state,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # stopping early is meant: it regularizes
            network.fit(rows, (logs - self.center_) / self.spread_)
        return list(zip(network.coefs_, network.intercepts_, strict=True))


def joined(**states: State) -> State:
    """States side by side, each under its name."""
    document = {name: state[0] for name, state in states.items()}
    return document, {f"{name}/{key}": array for name, state in states.items() for key, array in state[1].items()}


def under(name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin with `name/`, without that."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
