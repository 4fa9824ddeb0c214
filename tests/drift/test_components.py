import json
from pathlib import Path

import numpy as np
import pytest

from warpgauge.drift.components import (
    FACTS_FILE,
    TENSORS_FILE,
    Reference,
    component_variance_change,
    distances,
    fit_reference,
    mean_shifts,
    mean_statistic,
    measure_mean,
    measure_variance,
    variance_changes,
)
from warpgauge.errors import ModelFileError, WindowError

CASE = "18-pca-component-swap"
DEVIATIONS = np.array([5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3])


def draw(random: np.random.Generator, count: int, deviations=DEVIATIONS) -> np.ndarray:
    return random.normal(size=(count, len(deviations))) * deviations


@pytest.fixture(scope="module")
def reference() -> Reference:
    return fit_reference(draw(np.random.default_rng(0), 1000), encoder_id="minilm@1", axes=12, seed=0)


@pytest.fixture
def embeddings(cases: Path) -> dict[str, np.ndarray]:
    return {
        path.stem: np.loadtxt(path, delimiter=",", skiprows=1)
        for path in sorted((cases / CASE).glob("*.csv"))
    }


def test_axes_of_the_reference_keep_their_meaning(cases: Path, embeddings: dict[str, np.ndarray]):
    expected = json.loads((cases / CASE / "expected.json").read_text())
    fitted = fit_reference(embeddings["reference"], encoder_id="e")
    assert fitted.axis_count == 6
    for name, wanted in expected.items():
        ratios = 1 + variance_changes(fitted, embeddings[name])[:4]
        assert ratios == pytest.approx(wanted["fixed_axes_ratio"], abs=1e-3), name
        assert component_variance_change(embeddings["reference"], embeddings[name], 3) == pytest.approx(
            wanted["fixed_axes_ratio"][2] - 1, abs=1e-3
        )


@pytest.mark.parametrize("seed", range(5))
def test_axis_3_trips_for_b_and_e_alone(embeddings: dict[str, np.ndarray], seed: int):
    fitted = fit_reference(embeddings["reference"], encoder_id="e", seed=seed)
    tripped = {
        name: measure_variance(fitted, window, "e").is_tripped
        for name, window in embeddings.items()
        if name != "reference"
    }
    assert {name for name, is_tripped in tripped.items() if is_tripped} == {"b_axis3_up50", "e_axis3_up120"}
    assert len(tripped) == 6


def test_growth_along_another_axis_stays_visible(embeddings: dict[str, np.ndarray]):
    fitted = fit_reference(embeddings["reference"], encoder_id="e")
    c = measure_variance(fitted, embeddings["c_other_axis_up"], "e")
    assert c.details["variance_changes"][3] == pytest.approx(3.667 - 1, abs=1e-3)
    d = measure_variance(fitted, embeddings["d_swap"], "e")
    assert d.details["variance_changes"][2:4] == pytest.approx([0.4 - 1, 2.5 - 1], abs=1e-3)


def test_a_shift_of_the_mean_is_told_apart_from_variance(embeddings: dict[str, np.ndarray]):
    fitted = fit_reference(embeddings["reference"], encoder_id="e")
    f = embeddings["f_mean_shift_only"]
    assert np.abs(mean_shifts(fitted, f)) == pytest.approx([0, 0, 5, 0, 0, 0], abs=1e-3)
    assert measure_mean(fitted, f, "e").is_tripped
    assert not measure_variance(fitted, f, "e").is_tripped
    others = [name for name in embeddings if name != "f_mean_shift_only"]
    assert not any(measure_mean(fitted, embeddings[name], "e").is_tripped for name in others)


def test_the_sign_of_an_axis_changes_no_verdict(embeddings: dict[str, np.ndarray]):
    fitted = fit_reference(embeddings["reference"], encoder_id="e")
    signs = np.array([-1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    flipped = Reference(**{**vars(fitted), "axes": fitted.axes * signs[:, None]})
    for window in embeddings.values():
        assert variance_changes(flipped, window) == pytest.approx(variance_changes(fitted, window), abs=1e-12)
        assert mean_statistic(flipped, window) == pytest.approx(mean_statistic(fitted, window), abs=1e-9)


def test_the_axes_are_those_of_scikit_learn(embeddings: dict[str, np.ndarray]):
    from sklearn.decomposition import PCA

    pca = PCA(svd_solver="full").fit(embeddings["reference"])
    fitted = fit_reference(embeddings["reference"], encoder_id="e")
    assert fitted.variances == pytest.approx(pca.explained_variance_, rel=1e-9)
    assert np.abs(np.sum(fitted.axes * pca.components_, axis=1)) == pytest.approx(np.ones(6), abs=1e-9)


def test_unchanged_windows_trip_about_as_often_as_stated():
    random = np.random.default_rng(3)
    shifts = variances = plain = windows = 0
    for seed in range(6):
        fitted = fit_reference(draw(random, 400), encoder_id="e", axes=12, seed=seed, false_alarm_ratio=0.02)
        for _ in range(80):
            window = draw(random, 50)
            variance = measure_variance(fitted, window, "e")
            shifts += measure_mean(fitted, window, "e").is_tripped
            variances += variance.is_tripped
            plain += variance.value > 0.40
            windows += 1
    assert shifts / windows <= 0.045
    assert variances / windows <= 0.02
    assert plain > variances  # the 40 % rule alone trips by chance


def test_a_fifth_of_the_documents_on_another_topic_is_a_shift(reference: Reference):
    random = np.random.default_rng(4)
    window = draw(random, 200)
    window[:40, 2] += 12.0
    shift = measure_mean(reference, window, "minilm@1")
    assert shift.is_tripped
    assert shift.lower > shift.limit


def test_a_small_window_needs_a_larger_growth_than_a_large_one(reference: Reference):
    random = np.random.default_rng(5)
    small = measure_variance(reference, draw(random, 50), "minilm@1")
    large = measure_variance(reference, draw(random, 800), "minilm@1")
    assert small.limit > 0.5
    assert large.limit == 0.40
    assert small.upper - small.lower > large.upper - large.lower


def test_a_text_that_occurs_several_times_counts_once(reference: Reference):
    window = draw(np.random.default_rng(6), 60)
    once = measure_mean(reference, window, "minilm@1")
    thrice = measure_mean(reference, np.vstack([window, window, window]), "minilm@1")
    assert thrice.value == pytest.approx(once.value)
    assert (thrice.sample_count, thrice.details["row_count"]) == (60, 180)


def cause_of(reference: Reference | None, window, encoder_id="minilm@1") -> set[str | None]:
    return {m(reference, window, encoder_id).cause for m in (measure_mean, measure_variance)}


def test_what_cannot_be_compared_says_why_and_never_no_drift(reference: Reference):
    window = draw(np.random.default_rng(7), 60)
    assert cause_of(None, window) == {"no champion"}
    assert cause_of(reference, window, "other@2") == {"encoder changed"}
    assert cause_of(reference, window[:, :5]) == {"encoder changed"}
    assert cause_of(reference, np.empty((0, 12))) == {"no samples"}
    assert cause_of(reference, []) == {"no samples"}
    assert cause_of(reference, window[:49]) == {"too few"}
    assert cause_of(reference, np.repeat(window[:3], 40, axis=0)) == {"too few"}
    assert cause_of(reference, np.ones((60, 12))) == {"degenerate"}
    broken = window.copy()
    broken[17, 2] = np.nan
    assert cause_of(reference, broken) == {"degenerate"}
    assert "row 17" in measure_mean(reference, broken, "minilm@1").reason


def test_a_window_without_variance_along_the_axis_is_a_fall_of_100_percent(reference: Reference):
    window = draw(np.random.default_rng(8), 60)
    scores = (window - reference.mean) @ reference.axes.T
    scores[:, 2] = 0.0
    m = measure_variance(reference, scores @ reference.axes + reference.mean, "minilm@1")
    assert m.value == pytest.approx(-1.0)
    assert not m.is_tripped


def test_a_reference_that_cannot_serve_is_refused():
    random = np.random.default_rng(9)
    with pytest.raises(WindowError, match="40 are needed"):
        fit_reference(draw(random, 39), encoder_id="e")
    with pytest.raises(WindowError, match="40 are needed"):
        fit_reference(np.repeat(draw(random, 2), 50, axis=0), encoder_id="e")
    with pytest.raises(WindowError, match="shape"):
        fit_reference(np.zeros(100), encoder_id="e")
    broken = draw(random, 60)
    broken[3, 0] = np.inf
    with pytest.raises(WindowError, match="row 3"):
        fit_reference(broken, encoder_id="e")
    with pytest.raises(WindowError, match="encoder_id"):
        fit_reference(draw(random, 60), encoder_id="")
    with pytest.raises(WindowError, match="false_alarm_ratio"):
        fit_reference(draw(random, 60), encoder_id="e", false_alarm_ratio=0.0)


def test_windows_that_cannot_be_compared_raise(reference: Reference):
    window = draw(np.random.default_rng(10), 60)
    with pytest.raises(WindowError, match="dimensions"):
        variance_changes(reference, window[:, :4])
    with pytest.raises(WindowError, match="axis 13"):
        measure_variance(reference, window, "minilm@1", axis=13)
    with pytest.raises(WindowError, match="axis 0"):
        component_variance_change(window, window, 0)
    with pytest.raises(WindowError, match="needs 2"):
        component_variance_change(window, window[:1], 1)


def test_a_wide_embedding_of_few_documents_keeps_axes_that_a_half_can_bear():
    random = np.random.default_rng(11)
    fitted = fit_reference(random.normal(size=(60, 384)), encoder_id="e")
    assert fitted.axis_count == 15
    assert (fitted.held_out_variances < fitted.variances).all()


def test_a_document_of_another_topic_is_the_farthest(reference: Reference):
    window = draw(np.random.default_rng(14), 60)
    window[21, 8] += 9.0
    away = distances(reference, window)
    assert away.argmax() == 21
    assert np.median(away) == pytest.approx(np.sqrt(12), rel=0.1)
    assert distances(reference, reference.mean[None]) == pytest.approx([0.0])
    with pytest.raises(WindowError, match="dimensions"):
        distances(reference, window[:, :3])


def test_files_give_the_same_reference_back(reference: Reference):
    again = Reference.from_files(reference.to_files())
    window = draw(np.random.default_rng(12), 80)
    assert measure_mean(again, window, "minilm@1") == measure_mean(reference, window, "minilm@1")
    assert measure_variance(again, window, "minilm@1") == measure_variance(reference, window, "minilm@1")
    assert again.versions == reference.versions


def test_the_order_of_the_rows_changes_nothing():
    rows = draw(np.random.default_rng(13), 200)
    first = fit_reference(rows, encoder_id="e", axes=5)
    second = fit_reference(rows[::-1], encoder_id="e", axes=5)
    assert first.to_files() == second.to_files()


@pytest.mark.parametrize("name", [TENSORS_FILE, FACTS_FILE])
def test_a_damaged_file_of_the_reference_is_refused(reference: Reference, name: str):
    files = reference.to_files()
    content = files[name]
    with pytest.raises(ModelFileError, match="missing"):
        Reference.from_files({key: value for key, value in files.items() if key != name})
    for damaged in (content[:-20], b"", content[: len(content) // 2], b"[]"):
        with pytest.raises(ModelFileError, match=name):
            Reference.from_files({**files, name: damaged})
    with pytest.raises(ModelFileError):
        Reference.from_files(
            {**files, FACTS_FILE: files[FACTS_FILE].replace(b'"axis_count": 12', b'"axis_count": 9')}
        )
