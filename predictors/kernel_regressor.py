"""Regression by similarity: a Gaussian process over two blocks of columns, for targets in natural-log units.

    k(a, b) = c² + g²·⟨w, w'⟩/G + l²·⟨u, u'⟩/D + r²·exp(−|u − u'|² / 2s²) + t²·⟨v, v'⟩ + e²·[a = b],   noise n²

u: the first D columns (dense, standardized); w: the G of them that say how much there is (`size_columns`), which may
carry a trend of their own; v: the other columns (term weights). The last term is an effect that repeated rows share:
who asked the same before is known better than by resemblance. The scales g, l, r, t, e, n, s maximize the marginal
likelihood times log-normal priors around SCALES (Rasmussen and Williams, 2006, section 5.4.1), so that a
handful of rows gives the priors' answer and a hundred their own.

Laws: without rows alike, the mean falls back on the rows' common level, and with few rows that level on `prior_mean`
(shrinkage: c is how far the level may lie from it); the standard deviation is of a target, noise included, and never
below n. What rows left out would have been predicted follows in closed form (`left_out`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

Array = NDArray[np.float64]

SCALES = (0.3, 0.16, 0.19, 0.22, 0.15, 0.175, 4.26)
"""Centers of the priors: g, l, r, t, e, n (all in the targets' unit), and the length s. Found by cross-validation."""
SPREADS = (0.6, 0.6, 0.5, 0.6, 0.5, 0.3, 0.3)
"""Standard deviations of the priors of the scales' logarithms."""
MAX_TUNING_ROWS = 200
MIN_TUNING_ROWS = 8
SAME_ROW = 1e-6
NOISE = 5


class KernelRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """`n_dense` columns are u (None: all), `size_columns` of them w; `prior_mean` None means the targets' own mean.

    `max_rows`: of more, the last ones are kept. The cost of a fit grows with their cube.
    """

    def __init__(
        self,
        n_dense: int | None = None,
        size_columns: tuple[int, ...] = (),
        prior_mean: float | None = None,
        level_sd: float = 1.5,
        max_rows: int = 400,
    ) -> None:
        self.n_dense = n_dense
        self.size_columns = size_columns
        self.prior_mean = prior_mean
        self.level_sd = level_sd
        self.max_rows = max_rows

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803  # scikit-learn's name
        """Learn from rows and targets."""
        rows, targets = validate_data(self, X, y, dtype=float, y_numeric=True)
        self.rows_, self.targets_ = rows[-self.max_rows :], targets[-self.max_rows :].astype(float)
        self.center_ = float(self.targets_.mean() if self.prior_mean is None else self.prior_mean)
        self.scales_ = self._tuned_scales()
        return self._solved()

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803  # scikit-learn's name
        """Learn from further rows; the scales stay. The first call fits."""
        if not hasattr(self, "rows_"):
            return self.fit(X, y)
        rows, targets = validate_data(self, X, y, dtype=float, y_numeric=True, reset=False)
        self.rows_ = np.vstack([self.rows_, rows])[-self.max_rows :]
        self.targets_ = np.concatenate([self.targets_, targets])[-self.max_rows :]
        return self._solved()

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:  # noqa: N803  # scikit-learn's names
        """Means of the rows' targets; with `return_std` (as scikit-learn's processes have it) a pair with their sds."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=float, reset=False)
        similar = self._parts(rows, self.rows_).kernel(self.scales_, self.level_sd)
        means = self.center_ + similar @ self.weights_
        if not return_std:
            return means
        dense, terms = rows[:, : self._dense], rows[:, self._dense :]
        own = self._own_variance(_mean_square(dense[:, self._size]), _mean_square(dense), (terms**2).sum(axis=1))
        return means, self._deviation(own - np.einsum("ij,jk,ik->i", similar, self.inverse_, similar))

    def predict_one(self, dense: Array, columns: NDArray[np.intp], weights: Array) -> tuple[float, float]:
        """As `predict`, mean and standard deviation, for one row whose v is given by its columns that are not 0."""
        size, linear, radial, term, repeat, _, length = self._squares
        large = dense[self._size]
        products = self._rows_dense @ dense
        common = weights @ self._terms_by_column[columns]
        distances = self._dense_norms + dense @ dense - 2 * products
        all_distances = distances + self._term_norms + weights @ weights - 2 * common
        similar = (
            self.level_sd**2
            + size / max(1, len(large)) * (self._rows_size @ large)
            + linear / self._dense * products
            + radial * np.exp(-0.5 / length * distances)
            + term * common
            + repeat * (all_distances < SAME_ROW)
        )
        own = self._own_variance(large @ large / max(1, len(large)), dense @ dense / self._dense, weights @ weights)
        variance = own - similar @ self.inverse_ @ similar
        return float(self.center_ + similar @ self.weights_), float(self._deviation(variance))

    def left_out(self, groups: Sequence[Hashable]) -> tuple[Array, Array]:
        """Mean and sd predicted for each row by all rows of other groups (the scales are those of all rows)."""
        check_is_fitted(self)
        members: dict[Hashable, list[int]] = {}
        for row, group in enumerate(list(groups)[-self.max_rows :]):
            members.setdefault(group, []).append(row)
        means, variances = np.zeros(len(self.rows_)), np.zeros(len(self.rows_))
        for rows in members.values():
            covariance = np.linalg.inv(self.inverse_[np.ix_(rows, rows)])
            means[rows] = self.targets_[rows] - covariance @ self.weights_[rows]
            variances[rows] = np.diag(covariance)
        return means, self._deviation(variances)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What was learnt, as JSON and as arrays; the term columns' zeros are left out."""
        check_is_fitted(self)
        terms = self.rows_[:, self._dense :]
        places = np.nonzero(terms)
        document = {"center": self.center_, "level_sd": self.level_sd, "columns": terms.shape[1]}
        document["size_columns"] = list(self.size_columns)
        document["max_rows"] = self.max_rows
        return document, {
            "dense": self.rows_[:, : self._dense],
            "term_rows": places[0].astype(float),
            "term_columns": places[1].astype(float),
            "term_weights": terms[places],
            "targets": self.targets_,
            "scales": self.scales_,
        }

    @classmethod
    def from_state(cls, document: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """The inverse of `state`. Raises KeyError, TypeError or ValueError when they do not fit together."""
        dense = arrays["dense"]
        count, width = dense.shape
        terms = np.zeros((count, int(document["columns"])))
        terms[arrays["term_rows"].astype(np.intp), arrays["term_columns"].astype(np.intp)] = arrays["term_weights"]
        size_columns = tuple(int(column) for column in document["size_columns"])
        max_rows = int(document["max_rows"])
        regressor = cls(width, size_columns, level_sd=float(document["level_sd"]), max_rows=max_rows)
        regressor.rows_, regressor.targets_ = np.hstack([dense, terms]), arrays["targets"]
        regressor.n_features_in_ = regressor.rows_.shape[1]
        regressor.center_, regressor.scales_ = float(document["center"]), arrays["scales"]
        if regressor.targets_.shape != (count,) or regressor.scales_.shape != (len(SCALES),):
            raise ValueError("targets or scales have another shape than the rows ask for")
        if not np.all(regressor.scales_ > 0):
            raise ValueError("the scales must be positive")
        if max_rows < count:
            raise ValueError(f"{count} rows where at most {max_rows} are kept")
        return regressor._solved()

    @property
    def _dense(self) -> int:
        return int(self.rows_.shape[1] if self.n_dense is None else self.n_dense)

    @property
    def _size(self) -> list[int]:
        return list(self.size_columns)

    def _parts(self, some: Array, others: Array) -> _Parts:
        return _Parts.between(some, others, self._dense, self._size)

    def _tuned_scales(self) -> Array:
        centers = np.log(SCALES)
        if len(self.rows_) < MIN_TUNING_ROWS:
            return np.array(SCALES)
        rows, targets = self.rows_[-MAX_TUNING_ROWS:], self.targets_[-MAX_TUNING_ROWS:] - self.center_
        parts = self._parts(rows, rows)

        def loss(logs: Array) -> float:
            kernel = parts.kernel(np.exp(logs), self.level_sd) + np.exp(2 * logs[NOISE]) * np.eye(len(rows))
            try:
                lower = np.linalg.cholesky(kernel)
            except np.linalg.LinAlgError:
                return 1e9
            half = np.linalg.solve(lower, targets)
            unlikely = 0.5 * half @ half + np.log(np.diag(lower)).sum()
            return float(unlikely + 0.5 * np.sum(((logs - centers) / SPREADS) ** 2))

        bounds = [(center - 4 * spread, center + 4 * spread) for center, spread in zip(centers, SPREADS, strict=True)]
        found = minimize(loss, centers, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40})
        scales: Array = np.exp(found.x)
        return scales

    def _solved(self) -> Self:
        kernel = self._parts(self.rows_, self.rows_).kernel(self.scales_, self.level_sd)
        inverse = np.linalg.inv(kernel + self.scales_[NOISE] ** 2 * np.eye(len(kernel)))
        self.inverse_ = (inverse + inverse.T) / 2
        self.weights_ = self.inverse_ @ (self.targets_ - self.center_)
        self._squares = [float(scale**2) for scale in self.scales_]
        self._rows_dense = np.ascontiguousarray(self.rows_[:, : self._dense])
        self._rows_size = np.ascontiguousarray(self.rows_[:, self._size])
        self._terms_by_column = np.ascontiguousarray(self.rows_[:, self._dense :].T)
        self._dense_norms = (self._rows_dense**2).sum(axis=1)
        self._term_norms = (self._terms_by_column**2).sum(axis=0)
        return self

    def _own_variance(self, size_square: Any, dense_square: Any, term_square: Any) -> Any:
        size, linear, radial, term, repeat, noise, _ = self._squares
        trend = size * size_square + linear * dense_square + term * term_square
        return self.level_sd**2 + trend + radial + repeat + noise

    def _deviation(self, variance: Any) -> Any:
        return np.sqrt(np.maximum(variance, self._squares[NOISE]))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The kernel's parts between two sets of rows, before scales are known."""

    size: Array
    linear: Array
    distances: Array
    common: Array
    same: Array

    @classmethod
    def between(cls, some: Array, others: Array, dense: int, size_columns: list[int]) -> _Parts:
        u, v = some[:, :dense], others[:, :dense]
        p, q = some[:, dense:], others[:, dense:]
        products, common = u @ v.T, p @ q.T
        distances = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1)[None, :] - 2 * products
        all_distances = distances + (p**2).sum(axis=1)[:, None] + (q**2).sum(axis=1)[None, :] - 2 * common
        size = u[:, size_columns] @ v[:, size_columns].T / max(1, len(size_columns))
        return cls(size, products / max(1, dense), distances, common, (all_distances < SAME_ROW).astype(float))

    def kernel(self, scales: Array, level_sd: float) -> Array:
        size, linear, radial, term, repeat, _, length = scales**2
        similar: Array = (
            level_sd**2
            + size * self.size
            + linear * self.linear
            + radial * np.exp(-0.5 / length * self.distances)
            + term * self.common
            + repeat * self.same
        )
        return similar


def _mean_square(rows: Array) -> Array:
    """By row; 0 for rows without columns."""
    squares: Array = (rows**2).sum(axis=1) / max(1, rows.shape[1])
    return squares
