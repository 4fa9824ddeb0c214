"""The random cases are the same ones everywhere and hold what they claim to."""

import numpy as np

from infra.kernels.cases import VALUES, make_cases
from infra.kernels.check import CASE_COUNT, SEED


def test_a_case_depends_on_seed_and_number_alone() -> None:
    first, again = list(make_cases(20, 3)), list(make_cases(40, 3))[:20]
    for one, other in zip(first, again, strict=True):
        assert one.k == other.k
        assert one.matrix.tobytes() == other.matrix.tobytes()
        assert one.scale.tobytes() == other.scale.tobytes()
    assert any(
        one.matrix.tobytes() != other.matrix.tobytes()
        for one, other in zip(first, make_cases(20, 4), strict=True)
    )


def test_the_cases_reach_every_corner() -> None:
    cases = list(make_cases(CASE_COUNT, SEED))
    shapes = {case.matrix.shape for case in cases}
    assert {(1, 1), (0, 0)} <= shapes
    assert any(rows == 0 < columns for rows, columns in shapes)
    assert any(columns == 0 < rows for rows, columns in shapes)
    assert max(rows for rows, _ in shapes) > 1000
    assert max(columns for _, columns in shapes) > 2000
    assert {case.values for case in cases} == set(VALUES)
    assert any(case.k == 0 for case in cases)
    assert any(0 < case.matrix.shape[1] == case.k for case in cases)
    assert any(case.k > case.matrix.shape[1] for case in cases)
    assert any((case.scale == 0).any() for case in cases)
    cells = np.concatenate([case.matrix.ravel() for case in cases])
    assert np.isnan(cells).any()
    assert np.isposinf(cells).any()
    assert np.isneginf(cells).any()
    tiny = np.finfo(np.float32).tiny
    assert ((cells != 0) & (np.abs(cells) < tiny)).any()
    assert (np.signbit(cells) & (cells == 0)).any()
    sparse = [c.matrix for c in cases if c.values == "very sparse" and c.matrix.size > 1000]
    assert max(float((matrix == 0).mean()) for matrix in sparse) > 0.99
