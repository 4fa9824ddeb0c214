"""Labels from what later versions amended."""

from datetime import UTC, datetime

import polars as pl
import pytest

from warpgauge.documents.batch import documents_frame
from warpgauge.documents.cuda_headers import parse_headers
from warpgauge.documents.history import ANNOTATOR, amendment_kinds, label_amendments, version_key, wording
from warpgauge.errors import SchemaError
from warpgauge.tables import LABELS

ENTRY = """/**
 * \\brief Dims a lamp
 *
 * Since 1.2.3 the lamp is dimmed at once.
 * \\param lamp - which
 * \\return ::toyOk, ::cudaSuccess, ::cudaErrorNotReady
 * \\sa ::a, ::b
 */
int dim(int lamp, int percent);
"""
WRITTEN = {
    "1.2": datetime(2024, 1, 1, tzinfo=UTC),
    "1.10": datetime(2025, 1, 1, tzinfo=UTC),
    "2.0": datetime(2026, 1, 1, tzinfo=UTC),
}


def documents(**texts: str) -> pl.DataFrame:
    """Versions as `v1_2="header text"`."""
    frames = []
    for name, text in texts.items():
        version = name[1:].replace("_", ".")
        frames.append(parse_headers({"toy.h": text}, version, created_at=WRITTEN[version]).documents)
    return pl.concat(frames)


def labels_of(frame: pl.DataFrame) -> dict[str, dict[str, object]]:
    """Labels by version of the document."""
    joined = label_amendments(frame).join(frame.select("document_id", "product_version"), on="document_id")
    return {row["product_version"]: row for row in joined.iter_rows(named=True)}


class TestLabels:
    def test_a_text_that_stayed_is_no_defect_and_the_newest_has_no_label(self) -> None:
        labels = labels_of(documents(v1_2=ENTRY, v2_0=ENTRY))
        assert list(labels) == ["1.2"]
        assert labels["1.2"]["is_defect"] is False
        assert labels["1.2"]["kinds"] == []
        assert labels["1.2"]["nature"] is None

    def test_an_amended_text_was_a_defect(self) -> None:
        label = labels_of(documents(v1_2=ENTRY, v2_0=ENTRY.replace("at once", "within a second")))["1.2"]
        assert label["is_defect"] is True
        assert label["kinds"] == ["incorrect_content"]
        assert label["nature"] == "concept"
        assert label["label_source"] == "history"
        assert label["annotator"] == ANNOTATOR

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("Dims a lamp", "Dims  a\n * lamp."),
            ("1.2.3", "2.0.1"),
            ("::toyOk, ::cudaSuccess, ::cudaErrorNotReady", "::toyOk, ::cudaErrorNotReady, ::cudaSuccess"),
            ("::a, ::b", "::b, ::c, ::d"),
            ("Dims a lamp", "dims a Lamp"),
            ("the lamp is", "the \\p lamp is"),
        ],
    )
    def test_what_is_no_word_is_no_amendment(self, old: str, new: str) -> None:
        assert old in ENTRY
        assert labels_of(documents(v1_2=ENTRY, v2_0=ENTRY.replace(old, new)))["1.2"]["is_defect"] is False

    def test_a_changed_declaration_makes_it_a_matter_of_version(self) -> None:
        new = ENTRY.replace("at once", "later").replace("int percent", "float percent")
        assert labels_of(documents(v1_2=ENTRY, v2_0=new))["1.2"]["nature"] == "version"

    def test_an_announced_deprecation_makes_it_a_matter_of_version(self) -> None:
        new = ENTRY.replace("at once.", "at once.\n * \\deprecated This will go.")
        label = labels_of(documents(v1_2=ENTRY, v2_0=new))["1.2"]
        assert (label["kinds"], label["nature"]) == (["outdated_api"], "version")

    def test_versions_are_ordered_by_number(self) -> None:
        assert version_key("1.10") > version_key("1.9.5")
        new = ENTRY.replace("at once", "later")
        labels = labels_of(documents(v1_10=ENTRY, v2_0=new, v1_2=ENTRY))
        assert {version: label["is_defect"] for version, label in labels.items()} == {
            "1.2": True,
            "1.10": True,
        }

    def test_equal_texts_never_get_unequal_labels(self) -> None:
        new = ENTRY.replace("at once", "later")
        labels = labels_of(documents(v1_2=ENTRY, v1_10=new, v2_0=ENTRY))
        assert labels["1.2"]["is_defect"] is True
        assert labels["1.10"]["is_defect"] is True
        assert "2.0" not in labels

    def test_a_deleted_entry_has_no_label_from_that(self) -> None:
        other = ENTRY.replace("dim(", "glow(")
        assert label_amendments(documents(v1_2=ENTRY, v2_0=other)).is_empty()
        labels = labels_of(documents(v1_2=ENTRY, v1_10=ENTRY, v2_0=other))
        assert list(labels) == ["1.2"]
        assert labels["1.2"]["is_defect"] is False

    def test_the_time_is_the_amending_versions_and_the_label_the_same_twice(self) -> None:
        frame = documents(v1_2=ENTRY, v2_0=ENTRY.replace("at once", "later"))
        assert labels_of(frame)["1.2"]["labelled_at"] == WRITTEN["2.0"]
        assert label_amendments(frame).equals(label_amendments(frame.reverse()))

    def test_without_a_date_the_time_of_fetching_serves_and_then_null(self) -> None:
        frame = documents(v1_2=ENTRY, v2_0=ENTRY).with_columns(
            pl.lit(None, dtype=pl.Datetime("us", "UTC")).alias("created_at")
        )
        assert label_amendments(frame)["labelled_at"].to_list() == [None]
        fetched = frame.with_columns(pl.lit(WRITTEN["1.10"]).alias("fetched_at"))
        assert label_amendments(fetched)["labelled_at"].to_list() == [WRITTEN["1.10"]]

    def test_a_version_collected_later_wins_by_its_date(self) -> None:
        before = label_amendments(documents(v1_2=ENTRY, v1_10=ENTRY))
        after = label_amendments(documents(v1_2=ENTRY, v1_10=ENTRY, v2_0=ENTRY.replace("at once", "later")))
        first = after.filter(pl.col("document_id") == before["document_id"][0])
        assert before["is_defect"].to_list() == [False]
        assert first["is_defect"].to_list() == [True]
        assert first["annotator"][0] == before["annotator"][0]
        assert first["labelled_at"][0] > before["labelled_at"][0]

    def test_other_sources_and_no_documents_give_no_label(self) -> None:
        frame = documents(v1_2=ENTRY, v2_0=ENTRY).with_columns(pl.lit("elsewhere").alias("source"))
        assert label_amendments(frame).is_empty()
        assert label_amendments(documents_frame([])).schema == LABELS.schema

    def test_a_missing_column_and_a_version_without_order_are_refused(self) -> None:
        frame = documents(v1_2=ENTRY, v2_0=ENTRY)
        with pytest.raises(SchemaError, match="documents lack body"):
            label_amendments(frame.drop("body"))
        with pytest.raises(SchemaError, match="'latest' is not numbers"):
            label_amendments(frame.with_columns(pl.lit("latest").alias("product_version")))


class TestKinds:
    @pytest.mark.parametrize(
        ("old", "new", "kinds"),
        [
            (
                "\\param lamp - x",
                "\\param lamp - x\n\\param percent - x",
                ["missing_content", "missing_parameter"],
            ),
            ("\\param bulb - x", "\\param lamp - x", ["missing_parameter", "wrong_parameter"]),
            ("\\return cudaSuccess", "\\return cudaSuccess, cudaErrorNotReady", ["missing_content"]),
            ("\\return cudaSuccess, cudaErrorNotReady", "\\return cudaSuccess", ["incorrect_content"]),
            ("the lamp recieves light", "the lamp receives light", ["typo"]),
            ("the the lamp", "the lamp", ["typo"]),
            ("the lamp glows", "the lamp glows in the dark", ["missing_content"]),
            ("the lamp glows", "the lamp burns", ["incorrect_content"]),
            ("after 10 seconds", "after 16 seconds", ["incorrect_content"]),
            ("lamps glow first, then bells ring", "bells ring first, then lamps glow", ["unclear"]),
        ],
    )
    def test_what_an_amendment_mended(self, old: str, new: str, kinds: list[str]) -> None:
        assert amendment_kinds(wording(old), wording(new), frozenset({"lamp", "percent"})) == kinds
