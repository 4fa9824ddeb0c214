"""Reports of a rehearsal: labelled, repeatable, of two areas that differ."""

import pytest

from warpgauge.documents.simulator import AREAS, simulate_reports
from warpgauge.errors import SettingsError
from warpgauge.tables import KINDS


def test_same_seed_gives_the_same_reports_and_another_seed_none_of_them() -> None:
    first, again, other = (simulate_reports(seed, 50, "runtime").documents for seed in (1, 1, 2))
    assert first.equals(again)
    assert not set(first["document_id"]) & set(other["document_id"])
    assert first["document_id"].n_unique() == 50


def test_about_a_third_are_defects_with_a_known_kind() -> None:
    batch = simulate_reports(0, 600, "runtime")
    assert 0.28 < batch.labels["is_defect"].mean() < 0.39
    kinds = {kind for row in batch.labels.filter("is_defect")["kinds"] for kind in row}
    assert kinds <= set(KINDS)
    assert len(kinds) == 6
    assert batch.labels["document_id"].to_list() == batch.documents["document_id"].to_list()


def test_areas_speak_of_different_things() -> None:
    texts = {area: " ".join(simulate_reports(0, 100, area).documents["body"]) for area in AREAS}
    assert "cudaMallocAsync" in texts["runtime"]
    assert "cudaMallocAsync" not in texts["training"]


@pytest.mark.parametrize(
    ("seed", "count", "area"), [(-1, 5, "runtime"), (0, 0, "runtime"), (0, 5, "cooking")]
)
def test_impossible_wishes_are_refused(seed: int, count: int, area: str) -> None:
    with pytest.raises(SettingsError, match="simulated reports"):
        simulate_reports(seed, count, area)
