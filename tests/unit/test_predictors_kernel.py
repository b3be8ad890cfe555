"""The regression by similarity against textbook formulas, and against scikit-learn's rules for estimators."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

from predictors.kernel_regressor import NOISE, KernelRegressor


def rows_and_targets(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    dense = draw.normal(size=(count, 3))
    terms = np.abs(draw.normal(size=(count, 4))) * (draw.random((count, 4)) < 0.5)
    return np.hstack([dense, terms]), 10 + 0.5 * dense[:, 0] + 0.1 * draw.normal(size=count)


def fitted(**parameters: object) -> KernelRegressor:
    return KernelRegressor(n_dense=3, size_columns=(0,), **parameters).fit(*rows_and_targets())


def kernel(regressor: KernelRegressor, some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The formula of the module, entry by entry."""
    size, linear, radial, term, repeat, _, length = regressor.scales_**2
    found = np.zeros((len(some), len(others)))
    for i, a in enumerate(some):
        for j, b in enumerate(others):
            apart = np.sum((a[:3] - b[:3]) ** 2)
            found[i, j] = (
                regressor.level_sd**2
                + size * a[0] * b[0]
                + linear * (a[:3] @ b[:3]) / 3
                + radial * np.exp(-apart / (2 * length))
                + term * (a[3:] @ b[3:])
                + repeat * np.array_equal(a, b)
            )
    return found


def test_it_keeps_scikit_learns_rules() -> None:
    failed = [
        (check["check_name"], check["exception"])
        for check in check_estimator(KernelRegressor(), on_fail=None, on_skip=None)
        if check["status"] == "failed"
    ]
    assert failed == []


def test_means_and_deviations_are_those_of_the_textbook() -> None:
    rows, targets = rows_and_targets()
    regressor = fitted()
    asked = np.vstack([rows_and_targets(5, seed=1)[0], rows[:2]])
    noise = regressor.scales_[NOISE] ** 2
    similar = kernel(regressor, asked, rows)
    solve = np.linalg.solve(kernel(regressor, rows, rows) + noise * np.eye(len(rows)), np.eye(len(rows)))
    variances = np.diag(kernel(regressor, asked, asked)) + noise - np.diag(similar @ solve @ similar.T)
    means, deviations = regressor.predict(asked, return_std=True)
    assert_allclose(means, targets.mean() + similar @ solve @ (targets - targets.mean()), rtol=1e-9)
    assert_allclose(deviations, np.sqrt(variances), rtol=1e-7)


def test_one_at_a_time_is_the_same() -> None:
    regressor = fitted()
    asked, _ = rows_and_targets(6, seed=2)
    means, deviations = regressor.predict(asked, return_std=True)
    for row, mean, deviation in zip(asked, means, deviations, strict=True):
        columns = np.flatnonzero(row[3:])
        assert regressor.predict_one(row[:3], columns, row[3:][columns]) == pytest.approx((mean, deviation))


def test_rows_left_out_are_predicted_as_if_they_had_never_been() -> None:
    rows, targets = rows_and_targets()
    regressor = fitted(prior_mean=9.0)
    groups = [number // 4 for number in range(len(rows))]
    means, deviations = regressor.left_out(groups)
    kept = np.array(groups) != 2
    without = KernelRegressor(n_dense=3, size_columns=(0,), prior_mean=9.0)
    without.fit(rows[kept], targets[kept])
    without.scales_ = regressor.scales_
    expected, expected_deviations = without._solved().predict(rows[~kept], return_std=True)
    assert_allclose(means[~kept], expected, rtol=1e-6)
    assert_allclose(deviations[~kept], expected_deviations, rtol=1e-6)


def test_the_trend_is_found_and_the_deviation_is_that_of_the_noise() -> None:
    asked, truth = rows_and_targets(200, seed=3)
    means, deviations = fitted().predict(asked, return_std=True)
    errors = truth - means
    assert np.sqrt(np.mean(errors**2)) < 0.2
    assert 0.7 < np.mean(np.abs(errors / deviations) < 1.28) < 0.95


def test_few_rows_lean_on_the_prior_and_many_outgrow_it() -> None:
    rows, _ = rows_and_targets(50, seed=4)
    far = [
        KernelRegressor(n_dense=3, prior_mean=0.0, level_sd=0.5).fit(rows[:n], np.full(n, 10.0)).predict(rows[-1:])[0]
        for n in (1, 5, 40)
    ]
    assert far[0] < 9.0
    assert far[-1] == pytest.approx(10.0, abs=0.2)


def test_a_repeated_row_is_known_better_than_a_new_one() -> None:
    rows, targets = rows_and_targets()
    regressor = KernelRegressor(n_dense=3).fit(np.vstack([rows, rows[:1], rows[:1]]), [*targets, 12.0, 12.0])
    _, known = regressor.predict(rows[:1], return_std=True)
    _, new = regressor.predict(rows[:1] + 0.2, return_std=True)
    assert known[0] < new[0]


def test_further_rows_are_learnt_with_the_same_scales() -> None:
    rows, targets = rows_and_targets()
    regressor = KernelRegressor(n_dense=3).fit(rows[:30], targets[:30])
    scales = regressor.scales_
    regressor.partial_fit(rows[30:], targets[30:])
    assert_allclose(regressor.scales_, scales)
    assert len(regressor.rows_) == len(rows)
    assert KernelRegressor(n_dense=3).partial_fit(rows, targets).predict(rows[:1]) == pytest.approx(
        KernelRegressor(n_dense=3).fit(rows, targets).predict(rows[:1])
    )


def test_memory_is_bounded_and_the_last_rows_are_kept() -> None:
    rows, targets = rows_and_targets()
    regressor = KernelRegressor(n_dense=3, max_rows=10).fit(rows, targets)
    regressor.partial_fit(rows[:3], targets[:3])
    assert_allclose(regressor.targets_, [*targets[-7:], *targets[:3]])


def test_constant_targets_give_the_constant() -> None:
    rows, _ = rows_and_targets()
    means, deviations = KernelRegressor(n_dense=3).fit(rows, np.full(len(rows), 5.0)).predict(rows, return_std=True)
    assert_allclose(means, 5.0)
    assert np.all(deviations > 0)


def test_what_was_learnt_survives_its_state() -> None:
    asked, _ = rows_and_targets(4, seed=5)
    regressor = fitted()
    again = KernelRegressor.from_state(*regressor.state())
    assert_allclose(again.predict(asked), regressor.predict(asked), rtol=1e-12)


def test_a_state_of_negative_scales_is_refused() -> None:
    document, arrays = fitted().state()
    with pytest.raises(ValueError, match="scales"):
        KernelRegressor.from_state(document, arrays | {"scales": -arrays["scales"]})
