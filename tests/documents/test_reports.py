"""Reports from JSON lines: what is read, what is refused, what is mended."""

import gzip
import json
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpgauge.documents.redaction import RedactionRules
from warpgauge.documents.reports import HISTORY_ANNOTATOR, parse_map, read_reports
from warpgauge.errors import NoDataError, SettingsError, SourceFileError, WarpgaugeError
from warpgauge.tables import DOCUMENTS, LABELS

# Without the time of day in it: the bytes are part of a test's name, and workers compare names.
compressed = partial(gzip.compress, mtime=0)

LIMIT_BYTES = 10_000_000
GOOD = {"source": "acme/docs", "source_id": "1", "title": "A title", "body": "A body"}


def write(path: Path, *records: object, end: str = "\n") -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def read(path: Path, mapping: str = "", **options: object):  # type: ignore[no-untyped-def]
    return read_reports(path, parse_map(mapping), size_limit_bytes=LIMIT_BYTES, **options)  # type: ignore[arg-type]


class TestMap:
    def test_pairs_become_a_map(self) -> None:
        assert parse_map(" body=text, source = repo ") == {"body": "text", "source": "repo"}
        assert parse_map("") == {}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("body", "'body' is not FIELD=NAME"),
            ("body=", "is not FIELD=NAME"),
            ("=text", "is not FIELD=NAME"),
            ("body=text,,title=t", "'' is not FIELD=NAME"),
            ("text=body", "unknown field 'text'; fields are source"),
            ("body=a,body=b", "body is given twice"),
        ],
    )
    def test_nonsense_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            parse_map(text)


class TestGoodFiles:
    def test_the_real_pull_requests_are_read_whole(self, bench_data: Path) -> None:
        path = bench_data / "documents" / "pull_requests_cudf.jsonl.gz"
        batch = read(path, "body=text,source=repo,source_id=commit,created_at=date")
        assert batch.documents.height == 1417
        assert batch.labels["is_defect"].sum() == 79
        assert batch.counts["labelled"] == 1417
        assert batch.counts["positive"] == 79
        assert batch.problems == ()
        assert set(batch.labels["label_source"]) == {"history"}
        assert batch.labels["labelled_at"].null_count() == 0
        assert batch.documents["created_at"].null_count() == 0

    def test_the_real_pull_requests_say_which_map_they_need(self, bench_data: Path) -> None:
        path = bench_data / "documents" / "pull_requests_cudf.jsonl.gz"
        with pytest.raises(SourceFileError) as refusal:
            read(path)
        assert "line 1 has no source, source_id, body" in str(refusal.value)
        assert "it has 'repo', 'commit', 'date', 'title', 'text', 'label'" in str(refusal.value)
        assert "--map source=repo,source_id=commit,body=text,created_at=date" in str(refusal.value)

    def test_a_row_has_all_that_the_line_says(self, tmp_path: Path) -> None:
        record = GOOD | {
            "source_id": 17,
            "body": "Prose with a launch k<<<1, 2>>>().\r\n\n```cuda\nk<<<1, 2>>>();\n```\n\nMore.",
            "url": "https://example.com/17",
            "product_version": "12.4",
            "created_at": "2026-01-31T12:00:00+02:00",
            "updated_at": 0,
        }
        batch = read(write(tmp_path / "a.jsonl", record))
        row = batch.documents.row(0, named=True)
        assert row["source_id"] == "17"
        assert row["body"] == "Prose with a launch k<<<1, 2>>>().\n\nMore."
        assert row["code"] == "```cuda\nk<<<1, 2>>>();\n```"
        assert row["family"] == "report"
        assert row["created_at"] == datetime(2026, 1, 31, 10, tzinfo=UTC)
        assert row["updated_at"] == datetime(1970, 1, 1, tzinfo=UTC)
        assert row["fetched_at"] is None
        assert batch.documents.schema == DOCUMENTS.schema
        assert batch.labels.schema == LABELS.schema

    @pytest.mark.parametrize(
        ("label", "is_defect", "label_source"),
        [
            ("defect", True, "human"),
            (True, True, "human"),
            ("true", True, "human"),
            ("doc_only", True, "history"),
            ("ok", False, "human"),
            (False, False, "human"),
            ("code_fix", False, "history"),
        ],
    )
    def test_the_labels_vocabulary(
        self, tmp_path: Path, label: object, is_defect: bool, label_source: str
    ) -> None:
        batch = read(write(tmp_path / "a.jsonl", GOOD | {"label": label, "kinds": ["typo"]}))
        [row] = batch.labels.rows(named=True)
        assert (row["is_defect"], row["label_source"]) == (is_defect, label_source)
        assert row["kinds"] == (["typo"] if is_defect else [])
        assert row["labelled_at"] is None

    def test_a_null_or_absent_label_is_unlabelled(self, tmp_path: Path) -> None:
        batch = read(write(tmp_path / "a.jsonl", GOOD, GOOD | {"source_id": "2", "label": None}))
        assert batch.labels.is_empty()
        assert batch.counts["documents"] == 2

    def test_a_label_from_history_has_the_documents_time(self, tmp_path: Path) -> None:
        batch = read(write(tmp_path / "a.jsonl", GOOD | {"label": "doc_only", "created_at": "2026-02-01"}))
        assert batch.labels["labelled_at"].to_list() == [datetime(2026, 2, 1, tzinfo=UTC)]
        assert batch.labels["annotator"].to_list() == [HISTORY_ANNOTATOR]

    def test_three_annotators_make_one_document_with_three_labels(self, tmp_path: Path) -> None:
        records = [GOOD | {"label": "defect", "annotator": name} for name in ("ann", "ben", "cho")]
        batch = read(write(tmp_path / "a.jsonl", *records), rules=RedactionRules(key=b"k" * 16))
        assert batch.documents.height == 1
        assert batch.labels.height == 3
        assert batch.labels["annotator"].n_unique() == 3
        assert "ann" not in {name.split(":")[1] for name in batch.labels["annotator"]}

    def test_plain_and_gzip_give_the_same_rows(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "a.jsonl", GOOD)
        packed = tmp_path / "b"
        packed.write_bytes(compressed(plain.read_bytes()))
        assert read(plain).documents.equals(read(packed).documents)

    def test_a_line_separator_inside_a_text_ends_no_line(self, tmp_path: Path) -> None:
        record = json.dumps(GOOD | {"body": "a\u2028b\x0bc\x85d"}, ensure_ascii=False)
        assert read(write(tmp_path / "a.jsonl", record)).documents.height == 1

    def test_a_byte_order_mark_and_missing_last_line_end_are_no_fault(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
        assert read(path).documents.height == 1


class TestMending:
    def test_lone_halves_and_nul_are_mended_and_counted(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.jsonl",
            GOOD | {"body": "\ud83d lone high half"},
            GOOD | {"source_id": "2", "body": "\ude80 lone low half", "title": "ok \U0001f680 文档"},
            GOOD | {"source_id": "3", "body": "zero \0 byte"},
        )
        batch = read(path)
        assert batch.documents["body"].to_list() == [
            "\ufffd lone high half",
            "\ufffd lone low half",
            "zero  byte",
        ]
        assert batch.documents["title"][1] == "ok \U0001f680 文档"
        assert batch.counts["surrogates_replaced"] == 2
        assert batch.counts["nuls_removed"] == 1
        batch.documents.write_parquet(tmp_path / "a.parquet")

    def test_null_title_or_body_is_kept_as_null(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", GOOD | {"title": None}, GOOD | {"source_id": "2", "body": None})
        batch = read(path)
        assert batch.documents["title"].to_list() == [None, "A title"]
        assert batch.documents["body"].to_list() == ["A body", None]
        assert batch.counts["null_bodies"] == 1

    def test_a_body_of_blanks_is_null(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "a.jsonl", GOOD | {"body": " \n\t "})).documents["body"].to_list() == [
            None
        ]

    def test_secrets_leave_before_the_frame_does(self, tmp_path: Path) -> None:
        secret = "ghp_" + "a1" * 18
        path = write(tmp_path / "a.jsonl", GOOD | {"body": f"token {secret}", "title": "by jo@example.com"})
        batch = read(path)
        assert batch.documents["redaction_count"].to_list() == [2]
        assert batch.counts["redactions"] == 2
        assert secret not in str(batch.documents.to_dicts())
        assert "jo@example.com" not in str(batch.documents.to_dicts())

    def test_secrets_in_names_and_versions_leave_too_and_keep_documents_apart(self, tmp_path: Path) -> None:
        rules = RedactionRules(
            customer_patterns=(r"CUST-\d{4}",), code_names=("Bluebird",), key=b"a key of the tests"
        )
        token = "ghp_" + "a1" * 18
        lines = [
            GOOD | {"source": "Bluebird/docs", "source_id": "CUST-0001", "product_version": "Bluebird 1.0"},
            GOOD | {"source": "jo@example.com", "source_id": token},
            GOOD | {"source": "jo@example.com", "source_id": token[:-1] + "2"},
        ]
        path = write(tmp_path / "a.jsonl", *lines)
        batch = read(path, rules=rules)
        assert batch.documents.height == 3
        assert batch.documents["redaction_count"].to_list() == [3, 2, 2]
        assert batch.documents["product_version"].to_list() == ["[code name] 1.0", None, None]
        assert batch.documents["source"].n_unique() == 2
        assert batch.documents["source_id"].n_unique() == 3
        for secret in ("Bluebird", "CUST-0001", "jo@example.com", "ghp_"):
            assert secret not in str(batch.documents.to_dicts())
        assert read(path, rules=rules).documents.equals(batch.documents)


BAD_LINES = [
    ("{", "not JSON"),
    ('{"a": 1}{"b": 2}', "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('{"source": ' + "9" * 5000 + "}", "not JSON"),
    ("[1]", "a JSON list, an object is needed"),
    ("", "the line is empty"),
    ({"source": "s", "source_id": "2", "title": "t"}, "no field body"),
    (GOOD | {"source_id": None}, "source_id is None"),
    (GOOD | {"source_id": True}, "source_id is True"),
    (GOOD | {"source_id": 1.5}, "source_id is 1.5"),
    (GOOD | {"source": " "}, "source is ' '"),
    (GOOD | {"body": 7}, "body is 7, text is needed"),
    (GOOD | {"title": ["t"]}, r"title is \['t'\], text is needed"),
    (GOOD | {"title": None, "body": " "}, "title and body are both empty"),
    (GOOD | {"label": "maybe"}, "unknown label 'maybe'; labels are defect, doc_only"),
    (GOOD | {"label": 1}, "unknown label 1"),
    (GOOD | {"label": ["ok"]}, r"unknown label \['ok'\]"),
    (GOOD | {"label": "ok", "kinds": ["typo", "spelling"]}, "unknown kind 'spelling'; kinds are broken_link"),
    (GOOD | {"kinds": 3}, "kinds is 3"),
    (GOOD | {"nature": "both"}, "unknown nature 'both'"),
    (GOOD | {"annotator": 4}, "annotator is 4"),
    (GOOD | {"created_at": "yesterday"}, "created_at is 'yesterday', a time like"),
    (GOOD | {"created_at": "0001-01-01"}, "a year from 1970"),
    (GOOD | {"created_at": 1e300}, "created_at is 1e"),
    (GOOD | {"created_at": True}, "created_at is True"),
    ('{"source": "s", "source_id": "2", "title": "t", "body": "b", "created_at": NaN}', "created_at is nan"),
    (GOOD, "repeats line 1: acme/docs 1 with the same text"),
]


class TestBadFiles:
    @pytest.mark.parametrize(("line", "reason"), BAD_LINES)
    def test_a_bad_line_refuses_the_file_and_is_named(
        self, tmp_path: Path, line: object, reason: str
    ) -> None:
        other = GOOD | {"source_id": "9"}
        path = write(tmp_path / "a.jsonl", GOOD, line, other)
        with pytest.raises(SourceFileError, match=rf"a\.jsonl: line 2: .*{reason}"):
            read(path)
        batch = read(path, keep_whole=True)
        assert batch.documents["source_id"].to_list() == ["1", "9"]
        assert batch.counts["bad_lines"] == 1
        assert "line 2 dropped" in batch.problems[0]

    def test_the_same_annotator_twice_is_a_repeat(self, tmp_path: Path) -> None:
        labelled = GOOD | {"label": "ok", "annotator": "ann"}
        with pytest.raises(SourceFileError, match="the same annotator"):
            read(write(tmp_path / "a.jsonl", labelled, labelled))

    def test_the_same_id_with_another_text_is_another_document(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "a.jsonl", GOOD, GOOD | {"body": "Other"})).documents.height == 2

    def test_a_cut_last_line_is_said_to_be_one(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFileError, match=r"line 2 \(the last line: the file may be cut\): not JSON"):
            read(write(tmp_path / "a.jsonl", GOOD, json.dumps(GOOD)[:30], end=""))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty"),
            (b"\n\n", "line 1 is not JSON"),
            (b"a,b\n1,2\n", r"line 1 is not JSON \(it begins with 'a,b'\)"),
            (b"[]", "line 1 holds a JSON list, one object a line is needed"),
            (b"{}", "line 1 has no source, source_id, title, body; it has no fields"),
            (b"\xff\xfe{\0}\0", "line 1 is not UTF-8"),
            (b'{"source": "s", "source_id": "\xff"}', "line 1 is not UTF-8"),
            (compressed(b"")[:10], "gzip"),
            (compressed(json.dumps(GOOD).encode() * 99)[:-9], "gzip"),
            (compressed(b" " * (LIMIT_BYTES + 1)), "more than 10,000,000 bytes"),
        ],
    )
    def test_another_kind_of_file_is_refused(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(content)
        with pytest.raises(SourceFileError, match=rf"a\.jsonl.*{message}"):
            read(path)

    def test_a_missing_file_and_a_folder_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFileError, match="no such file"):
            read(tmp_path / "none.jsonl")
        with pytest.raises(SourceFileError, match="directory"):
            read(tmp_path)

    def test_keeping_what_is_whole_of_nothing_is_no_data(self, tmp_path: Path) -> None:
        lines = [GOOD | {"body": 1}, GOOD | {"body": 2}]
        with pytest.raises(NoDataError, match="none of 2 lines is a report"):
            read(write(tmp_path / "a.jsonl", *lines), keep_whole=True)

    def test_a_line_that_is_not_utf8_is_dropped_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(json.dumps(GOOD).encode() + b'\n{"x": "\xff"}\n')
        with pytest.raises(SourceFileError, match="line 2 is not UTF-8"):
            read(path)
        assert read(path, keep_whole=True).counts["bad_lines"] == 1

    def test_a_cut_gzip_file_keeps_its_whole_lines_when_asked(self, tmp_path: Path) -> None:
        lines = [GOOD | {"source_id": str(i), "body": f"{i} " * 400} for i in range(400)]
        path = tmp_path / "a.jsonl.gz"
        content = "\n".join(json.dumps(line) for line in lines).encode()
        path.write_bytes(compressed(content)[:-2000])
        with pytest.raises(SourceFileError, match="incomplete"):
            read(path)
        batch = read(path, keep_whole=True)
        assert 0 < batch.documents.height < 400
        assert "incomplete" in batch.problems[0]

    def test_many_bad_lines_are_counted_and_not_all_named(self, tmp_path: Path) -> None:
        batch = read(
            write(tmp_path / "a.jsonl", GOOD, *["{"] * 100, GOOD | {"source_id": "2"}), keep_whole=True
        )
        assert batch.counts["bad_lines"] == 100
        assert len(batch.problems) == 21


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "source",
        "source_id",
        "title",
        "body",
        "code",
        "url",
        "label",
        "kinds",
        "nature",
        "annotator",
        "created_at",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(NAMES, VALUES, max_size=4), st.binary(max_size=4), st.integers(0, 200), st.booleans())
def test_a_mutated_line_ends_in_rows_or_a_refusal(
    changed: dict[str, object], noise: bytes, at: int, keep_whole: bool
) -> None:
    line = json.dumps(GOOD | changed).encode()
    content = json.dumps(GOOD | {"source_id": "0"}).encode() + b"\n" + line[:at] + noise + line[at:] + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        try:
            batch = read(path, keep_whole=keep_whole)
        except WarpgaugeError:
            return
    assert 1 <= batch.documents.height <= 2
    assert batch.documents.height + batch.counts["bad_lines"] >= 1
    for body in batch.documents["body"]:
        assert body is None or body.encode("utf-8")
