"""Known answers of the specification itself."""

import numpy as np
import pytest

from infra.kernels.specification import scale_features, top_k

NAN, INF = np.nan, np.inf


def floats(values) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_scaling_by_hand() -> None:
    scaled = scale_features(floats([[1, 10, 7], [3, NAN, 7]]), floats([1, 0, 5]), floats([2, 5, 0]))
    np.testing.assert_array_equal(scaled, floats([[0, 2, 2], [1, NAN, 2]]))
    assert scaled.dtype == np.float32


def test_scaling_agrees_with_scikit_learn() -> None:
    from sklearn.preprocessing import StandardScaler

    matrix = np.random.default_rng(0).normal(5, 3, size=(50, 4)).astype(np.float32)
    matrix[:, 2] = 7.0
    scaler = StandardScaler().fit(matrix)
    scaled = scale_features(matrix, floats(scaler.mean_), floats(np.sqrt(scaler.var_)))
    np.testing.assert_allclose(scaled, scaler.transform(matrix), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("row", "k", "values", "indices"),
    [
        ([3, 1, 2], 2, [3, 2], [0, 2]),
        ([5, 5, 5], 2, [5, 5], [0, 1]),
        ([0.0, -0.0, 0.0], 3, [0, 0, 0], [0, 1, 2]),
        ([NAN, 1, NAN, 2], 3, [2, 1, NAN], [3, 1, 0]),
        ([NAN, -INF], 1, [-INF], [1]),
        ([INF, 1, INF], 2, [INF, INF], [0, 2]),
        ([1e-45, 0, -1e-45], 3, [1e-45, 0, -1e-45], [0, 1, 2]),
        ([7], 3, [7, NAN, NAN], [0, -1, -1]),
        ([], 2, [NAN, NAN], [-1, -1]),
        ([1, 2], 0, [], []),
    ],
)
def test_top_k_by_hand(row, k, values, indices) -> None:
    found_values, found_indices = top_k(floats([row]), k)
    np.testing.assert_array_equal(found_values, floats([values]))
    assert found_indices.tolist() == [indices]


def test_no_rows_have_no_answers() -> None:
    values, indices = top_k(np.empty((0, 4), dtype=np.float32), 2)
    assert values.shape == indices.shape == (0, 2)
    assert scale_features(np.empty((0, 4), dtype=np.float32), np.ones(4), np.ones(4)).shape == (0, 4)
