"""Identity of documents."""

from warpgauge.documents.batch import content_sha256, document_id, documents_frame, labels_frame
from warpgauge.tables import DOCUMENTS, LABELS


def test_the_same_content_has_the_same_hash_everywhere() -> None:
    # Fixed here so that a change of the rule, which would store each document again, does not go unseen.
    assert content_sha256("t", None, "") == "ea88ac435a82300294ef8df88f467c1a4439aa03c670a6e24d5dc0041723999f"
    assert len(content_sha256(None, None, None)) == 64


def test_null_and_empty_and_moved_borders_differ() -> None:
    hashes = {
        content_sha256("a", "b", None),
        content_sha256("a", "b", ""),
        content_sha256("ab", None, None),
        content_sha256(None, "ab", None),
        content_sha256('a","b', None, None),
    }
    assert len(hashes) == 5


def test_source_version_and_content_make_the_identity() -> None:
    ids = {
        document_id("s", "i", "1", "c"),
        document_id("s", "i", "2", "c"),
        document_id("s", "i", None, "c"),
        document_id("s", "j", "1", "c"),
        document_id("t", "i", "1", "c"),
        document_id("s", "i", "1", "d"),
    }
    assert len(ids) == 6


def test_no_rows_make_empty_frames_of_the_tables() -> None:
    assert documents_frame([]).schema == DOCUMENTS.schema
    assert labels_frame([]).schema == LABELS.schema
