"""The two-sample test: exact on small samples, calibrated without drift, sharp where the topic changes."""

import numpy as np
import pytest

from warpgauge.drift.components import fit_reference, measure_embeddings, measure_shift
from warpgauge.drift.kernel_shift import KEPT_ROWS, fit_kernel_reference

DEVIATIONS = 1 / np.sqrt(np.arange(1, 31))


def draw(random: np.random.Generator, count: int, degrees: float | None = None) -> np.ndarray:
    rows = random.normal(size=(count, len(DEVIATIONS))) * DEVIATIONS
    return rows if degrees is None else rows / np.sqrt(random.chisquare(degrees, count) / degrees)[:, None]


def test_statistic_is_the_unbiased_squared_mmd_by_its_definition() -> None:
    random = np.random.default_rng(0)
    rows, window = draw(random, 12), draw(random, 7) + 0.3
    fitted = fit_kernel_reference(rows, seed=0)
    kept = fitted.rows.astype(float)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-((a - b) ** 2).sum() / fitted.squared_width))

    def within(sample: np.ndarray) -> float:
        count = len(sample)
        pairs = [kernel(sample[i], sample[j]) for i in range(count) for j in range(count) if i != j]
        return float(np.mean(pairs))

    across = np.mean([kernel(a, b) for a in window for b in kept])
    value, error = fitted.discrepancy(window)
    assert value == pytest.approx(within(window) + within(kept) - 2 * across, abs=1e-6)
    assert error > 0
    distances = [((kept[i] - kept[j]) ** 2).sum() for i in range(12) for j in range(i)]
    assert fitted.squared_width == pytest.approx(np.median(distances), rel=1e-6)


@pytest.mark.parametrize("degrees", [None, 3.0])
def test_unchanged_windows_trip_no_more_often_than_stated(degrees: float | None) -> None:
    fired = np.zeros(3)
    for number in range(6):
        random = np.random.default_rng(number)
        reference = fit_reference(
            draw(random, 500, degrees), encoder_id="e", seed=number, false_alarm_ratio=0.01
        )
        for _ in range(100):
            fired += [m.is_tripped for m in measure_embeddings(reference, draw(random, 100, degrees), "e")]
    # 6 are expected of 600 windows; windows of one reference share its luck, so three times as many are allowed.
    assert (fired <= 18).all()


def test_a_fifth_from_elsewhere_is_found_and_its_rows_are_named() -> None:
    random = np.random.default_rng(1)
    reference = fit_reference(draw(random, 700), encoder_id="e", seed=1)
    far = np.zeros(len(DEVIATIONS))
    far[9] = 1.5
    found = 0
    for _ in range(20):
        window = draw(random, 200)
        window[:40] = 0.3 * window[:40] + far
        found += measure_shift(reference, window, "e").is_tripped
        most = np.argsort(-reference.kernel.witness(window))[:30]
        assert (most < 40).mean() > 0.9
    assert found == 20


def test_many_rows_are_a_sample_that_the_seed_chooses() -> None:
    rows = draw(np.random.default_rng(2), KEPT_ROWS + 500)
    first, again, other = (fit_kernel_reference(rows, seed) for seed in (0, 0, 1))
    assert len(first.rows) == KEPT_ROWS
    assert np.array_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows, other.rows)


def test_rarer_alarms_have_a_higher_limit_and_so_have_smaller_windows() -> None:
    kernel = fit_kernel_reference(draw(np.random.default_rng(3), 300), 0)
    assert kernel.limit(200, 0.0001) > kernel.limit(200, 0.001) > kernel.limit(200, 0.01) > 0
    assert kernel.limit(50, 0.001) > kernel.limit(500, 0.001)


def test_rows_that_are_alike_in_single_precision_do_not_break_the_kernel() -> None:
    rows = np.ones((50, 4)) + 1e-12 * np.arange(50)[:, None]
    kernel = fit_kernel_reference(rows, 0)
    value, error = kernel.discrepancy(rows)
    assert np.isfinite([value, error, kernel.limit(50, 0.001)]).all()
