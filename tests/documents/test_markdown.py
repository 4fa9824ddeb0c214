"""Pages at hand, cut into documents."""

import gzip
from functools import partial
from pathlib import Path

import pytest

from warpgauge.documents.markdown import read_page
from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.tables import DOCUMENTS

# Without the time of day in it: the bytes are part of a test's name, and workers compare names.
compressed = partial(gzip.compress, mtime=0)

TOY = Path(__file__).parents[1] / "data" / "documents_toy_v1.h"

MARKDOWN = """Before any heading.

# Launching

Use `k<<<1, 2>>>()`.

```cuda
# no heading
k<<<1, 2>>>();
```

Setext
------

| a | b |
|---|---|

## Empty

### Launching ##

Again.
"""

RST = """=====
Title
=====

Text with code::

    x = 1

.. code-block:: python
   :linenos:

   >>> y = 2

Section
-------

- item
"""


def page(tmp_path: Path, name: str, text: str) -> list[dict[str, object]]:
    (tmp_path / name).write_text(text)
    return read_page(tmp_path / name).documents.rows(named=True)


class TestMarkdown:
    def test_sections_are_documents(self, tmp_path: Path) -> None:
        rows = page(tmp_path, "a.md", MARKDOWN)
        assert [row["source_id"] for row in rows] == [
            "a.md:",
            "a.md:Launching",
            "a.md:Setext",
            "a.md:Launching#2",
        ]
        assert rows[1]["body"] == "Use `k<<<1, 2>>>()`."
        assert rows[1]["code"] == "```cuda\n# no heading\nk<<<1, 2>>>();\n```"
        assert rows[0]["title"] is None
        assert {row["family"] for row in rows} == {"page"}

    def test_the_frame_is_of_the_documents_table(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text(MARKDOWN)
        batch = read_page(tmp_path / "a.md")
        assert batch.documents.schema == DOCUMENTS.schema
        assert batch.labels.is_empty()
        assert batch.counts["documents"] == 4

    def test_a_secret_in_a_heading_stays_neither_in_the_title_nor_in_the_name(self, tmp_path: Path) -> None:
        text = "# Ask jo@example.com\n\nHere.\n\n# Ask al@example.com\n\nThere.\n"
        rows = page(tmp_path, "a.md", text)
        assert "example.com" not in str(rows)
        assert [row["redaction_count"] for row in rows] == [1, 1]
        assert len({row["source_id"] for row in rows}) == 2
        assert all(str(row["source_id"]).startswith("a.md:[heading:") for row in rows)
        assert page(tmp_path, "a.md", text) == rows

    def test_secrets_go_here_too(self, tmp_path: Path) -> None:
        [row] = page(tmp_path, "a.md", "write to jo@example.com")
        assert row["redaction_count"] == 1
        assert "jo@" not in str(row["body"])


class TestRst:
    def test_sections_and_code_directives(self, tmp_path: Path) -> None:
        rows = page(tmp_path, "a.rst", RST)
        assert [row["title"] for row in rows] == ["Title", "Section"]
        assert rows[0]["body"] == "Text with code:"
        assert rows[0]["code"] == "```\nx = 1\n```\n```python\n>>> y = 2\n```"
        assert rows[1]["body"] == "- item"


class TestOtherForms:
    def test_a_header_gives_its_functions(self, tmp_path: Path) -> None:
        packed = tmp_path / "toy.h.gz"
        packed.write_bytes(compressed(TOY.read_bytes()))
        for path in (TOY, packed):
            rows = read_page(path).documents.rows(named=True)
            assert [row["title"] for row in rows] == ["toyPaint", "toyDim", "toyBlink", "toyBlink"]
            assert rows[0]["source_id"] == f"{path.name}:toyPaint"

    @pytest.mark.parametrize("name", ["a.jsonl", "a.json", "input"])
    def test_json_lines_of_title_and_body(self, tmp_path: Path, name: str) -> None:
        rows = page(
            tmp_path,
            name,
            '{"title": "t", "body": "b\\n```\\nc\\n```"}\n{"title": null, "body": "x\\u0000", "family": "page"}\n',
        )
        assert [(row["title"], row["body"], row["family"]) for row in rows] == [
            ("t", "b", "report"),
            (None, "x", "page"),
        ]
        assert rows[0]["code"] == "```\nc\n```"

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "line 2 is not JSON"),
            ("[]", "line 2 is no object"),
            ('{"title": 1}', "line 2: title is no text"),
            ('{"title": " "}', "line 2 has neither title nor body; it has 'title'"),
            ('{"title": "t", "family": "book"}', "line 2: unknown family 'book'"),
            ('{"title": "t", "family": []}', None),
            ('{"title": "t", "family": [1]}', "line 2: unknown family"),
        ],
    )
    def test_bad_json_lines_are_named(self, tmp_path: Path, line: str, message: str | None) -> None:
        text = f'{{"title": "t", "body": "b"}}\n{line}\n'
        if message is None:
            assert len(page(tmp_path, "a.jsonl", text)) == 2
            return
        with pytest.raises(SourceFileError, match=rf"a\.jsonl: {message}"):
            page(tmp_path, "a.jsonl", text)


class TestRefusals:
    def test_a_page_without_text_is_no_data(self, tmp_path: Path) -> None:
        for name, text in (("a.md", "# Only\n## Headings\n"), ("a.h", "int f(int);\n")):
            with pytest.raises(NoDataError, match="holds no document"):
                page(tmp_path, name, text)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty"),
            (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
            (b"a\0b\0c\0", "NUL bytes"),
            (compressed(b"x" * 1000)[:-9], "incomplete"),
            (compressed(b"x" * 2_000_000), "more than 1,000,000 bytes"),
        ],
    )
    def test_what_is_no_page_is_refused(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "a.md").write_bytes(content)
        with pytest.raises(SourceFileError, match=rf"a\.md.*{message}"):
            read_page(tmp_path / "a.md", size_limit_bytes=1_000_000)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFileError, match="no such file"):
            read_page(tmp_path / "a.md")
