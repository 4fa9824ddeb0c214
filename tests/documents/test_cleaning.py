"""Text cleaned without losing what CUDA writes between angle brackets and underscores."""

import json
from pathlib import Path

import pytest

from warpgauge.documents.cleaning import (
    clean_html,
    clean_markdown,
    code_blocks,
    mend_text,
    normalise_text,
    split_code,
)

CASE = "09-so-angle-brackets-and-underscores"


class TestHtml:
    def test_case_09_keeps_launches_templates_and_escaped_tags(self, cases: Path) -> None:
        item = json.loads((cases / CASE / "so_item.json").read_text())["items"][0]
        assert clean_html(item["title"]) == "Why does <<<1,256>>> hang?"
        text = clean_html(item["body"])
        for kept in ("<<<grid, block, 0, s>>>", "std::vector<float>", "3 < 5 and 7 > 2", "&lt;tag&gt;"):
            assert kept in text
        assert text.count("__syncthreads") == 3
        assert [block.language for block in code_blocks(text)] == ["cpp"]

    @pytest.mark.parametrize(
        ("html", "text"),
        [
            ("<p>a</p><p>b</p>", "a\n\nb"),
            ("a<br/>b", "a\nb"),
            ("<b>a</b><i>b</i>", "ab"),
            ("&amp;lt;", "&lt;"),
            ("&copy=1 &notit", "&copy=1 &notit"),
            ("<!-- <b>gone</b> -->a", "a"),
            ("<!-- open", "<!-- open"),
            ("<pre>x", "```\nx\n```"),
            ("</pre>x", "x"),
            ("<pre>```</pre>", "````\n```\n````"),
            ("<T>", "<T>"),
        ],
    )
    def test_forms(self, html: str, text: str) -> None:
        assert clean_html(html) == text


class TestMarkdown:
    def test_case_09_keeps_the_prose_and_the_code(self, cases: Path) -> None:
        text = clean_markdown((cases / CASE / "issue_body.md").read_text())
        assert "<<<1,256>>>" in text
        assert "`template<typename T>`" in text
        assert "r<float><<<dim3(4),dim3(256),4096>>>(p);" in text
        assert "log\na < b" in text
        assert "<details>" not in text

    @pytest.mark.parametrize(
        "text",
        [
            "__syncthreads__ and **p and snake_case_name",
            "k<<<b, t>>>(x) vector<a> map<b, i>",
            "`<b>&amp;</b>`",
            "```html\n<b>&amp;</b> <!-- kept -->\n```",
            "a < b and c > d",
        ],
    )
    def test_what_is_no_markup_stays(self, text: str) -> None:
        assert clean_markdown(text) == text

    def test_tags_comments_and_entities_outside_code_go(self) -> None:
        assert clean_markdown("<!-- template -->\n<b>x</b> &lt;y&gt; &amp;lt;") == "x <y> &lt;"


class TestCode:
    def test_prose_and_code_are_told_apart(self) -> None:
        prose, code = split_code("a\n\n```cuda\nx\n```\nb\n~~~\ny\n~~~\n")
        assert prose == "a\n\nb"
        assert code == "```cuda\nx\n```\n~~~\ny\n~~~"

    def test_an_open_fence_runs_to_the_end(self) -> None:
        [block] = code_blocks("```cuda\n__syncthreads();\n(unclosed fence)\r\n")
        assert block.code == "__syncthreads();\n(unclosed fence)"
        assert not block.is_closed

    def test_a_longer_fence_holds_a_shorter_one(self) -> None:
        [block] = code_blocks("````md\n```\nx\n```\n````")
        assert block.code == "```\nx\n```"

    def test_a_code_span_of_three_is_no_fence(self) -> None:
        assert code_blocks("```x``` is a span") == []

    @pytest.mark.parametrize(
        ("info", "language"), [("{.cpp}", "cpp"), ("Python title=x", "python"), ("", "")]
    )
    def test_the_language_is_the_first_word(self, info: str, language: str) -> None:
        assert code_blocks(f"```{info}\nx\n```")[0].language == language

    def test_pieces_lose_nothing(self) -> None:
        text = "a\n```\nb\n```\nc\n```\nd"
        prose, code = split_code(text)
        assert sorted((prose + code).replace("\n", "")) == sorted(text.replace("\n", ""))


def test_mended_text_can_be_stored_anywhere() -> None:
    assert mend_text("a\ud83d b\0 \U0001f680") == ("a\ufffd b \U0001f680", 1, 1)


def test_normalised_text_has_one_kind_of_line_end_and_no_trailing_blanks() -> None:
    assert normalise_text("\r\n a  \r\n\r\n\r\n\u00a0b\rc\n\n") == " a\n\n b\nc"


@pytest.mark.parametrize("unit", ["<", "<!--", "<pre>", "<a ", "&amp", "`", "```\n", "> ", "<b><i>", "\n"])
def test_a_hostile_text_of_a_megabyte_is_cleaned(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert len(clean_html(text)) <= 2 * len(text)
    assert len(clean_markdown(text)) <= len(text)
