import numpy as np
import pytest

from warpgauge.docquality.calibration import fit_calibration, fit_group_calibration, softmax


def sample(slope, bias, count=20_000, seed=0):
    """Logits with spread and labels that follow softmax(slope * logits + bias)."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(count, len(bias))) * 2
    probabilities = softmax(slope * logits + np.array(bias))
    labels = (generator.random((count, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    return logits, labels.astype(np.int64)


@pytest.mark.parametrize("bias", [(0.0, -2.0), (0.0, 0.5, -1.0)])
def test_an_over_confident_head_gets_its_true_temperature_and_biases(bias):
    logits, labels = sample(0.25, bias)
    calibration = fit_calibration(logits, labels)
    assert calibration.temperature == pytest.approx(4.0, rel=0.1)
    assert calibration.bias == pytest.approx(bias, abs=0.1)


def test_probabilities_sum_to_one_and_mean_to_the_base_rate():
    logits, labels = sample(0.5, (0.0, -3.0))
    probabilities = fit_calibration(logits, labels).probabilities(logits)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert probabilities[:, 1].mean() == pytest.approx(labels.mean(), abs=0.002)


def test_ten_rows_without_error_do_not_become_certainty():
    logits = np.stack([np.zeros(10), np.repeat([-9.0, 9.0], 5)], axis=1)
    probabilities = fit_calibration(logits, np.repeat([0, 1], 5)).probabilities(logits)
    assert 0.8 < probabilities[-1, 1] < 0.99


def test_a_head_worse_than_a_guess_is_not_turned_around():
    logits, labels = sample(-1.0, (0.0, 0.0))
    probabilities = fit_calibration(logits, labels).probabilities(logits)[:, 1]
    assert probabilities == pytest.approx(np.full(len(labels), labels.mean()), abs=0.02)


def test_extreme_logits_stay_finite():
    logits = np.array([[0.0, 1e8], [0.0, -1e8], [0.0, 1e8], [0.0, -1e8]])
    assert np.isfinite(fit_calibration(logits, np.array([1, 0, 1, 0])).probabilities(logits)).all()


def test_groups_with_labels_enough_are_calibrated_apart():
    common, rare = sample(1.0, (0.0, 0.0), 2000), sample(1.0, (0.0, -3.0), 2000, seed=1)
    logits, labels = np.concatenate([common[0], rare[0]]), np.concatenate([common[1], rare[1]])
    groups = np.repeat(["report", "page"], 2000)
    calibration = fit_group_calibration(logits, labels, groups)
    assert set(calibration.by_group) == {"page", "report"}
    probabilities = calibration.probabilities(logits, groups)[:, 1]
    for name in ("page", "report"):
        assert probabilities[groups == name].mean() == pytest.approx(labels[groups == name].mean(), abs=0.01)


def test_a_group_with_few_labels_uses_the_calibration_of_all():
    logits, labels = sample(1.0, (0.0, 0.0), 500)
    groups = np.array(["report"] * 490 + ["page"] * 10)
    calibration = fit_group_calibration(logits, labels, groups)
    assert set(calibration.by_group) == {"report"}
    assert np.array_equal(
        calibration.probabilities(logits, groups)[490:], calibration.overall.probabilities(logits[490:])
    )
