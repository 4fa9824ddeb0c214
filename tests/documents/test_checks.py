"""What the checks find, and what they leave alone."""

import json
from pathlib import Path

import polars as pl
import pytest

from warpgauge.documents.batch import document_row, documents_frame
from warpgauge.documents.checks import (
    CHECKS,
    FEATURES,
    check_document,
    check_features,
    error_handling,
    static_shared_memory_bytes,
)
from warpgauge.documents.cleaning import clean_html, clean_markdown, split_code
from warpgauge.documents.cuda_headers import parse_headers
from warpgauge.tables import KINDS, NATURES

TOY = (Path(__file__).parents[1] / "data" / "documents_toy_v1.h").read_text()
DECLARATION = "extern cudaError_t f(int lamp, float percent);"
WHOLE = (
    "Dims.\n\n\\param lamp - which\n\\param percent - how\n\\return\ncudaSuccess,\ncudaErrorInvalidValue\n"
)


def ids(body: str | None, code: str | None = DECLARATION, family: str = "page") -> list[str]:
    return [finding.check_id for finding in check_document("f", body, code, family)]


def features(title: str | None, body: str | None, code: str | None, family: str) -> dict[str, object]:
    row = document_row(source="s", source_id="i", family=family, title=title, body=body, code=code)
    return check_features(documents_frame([row])).row(0, named=True)


class TestHeaderEntries:
    def test_a_sound_entry_has_no_finding(self) -> None:
        assert ids(WHOLE) == []

    def test_a_parameter_that_is_not_declared_is_wrong(self) -> None:
        findings = check_document("f", WHOLE.replace("lamp", "bulb"), DECLARATION, "page")
        assert [(finding.check_id, finding.kind) for finding in findings] == [
            ("wrong_parameter_not_declared", "wrong_parameter"),
            ("missing_parameter_some", "missing_parameter"),
        ]
        assert "describes parameter bulb, the declaration has lamp, percent" in findings[0].evidence

    def test_a_declared_parameter_without_text_is_missing(self) -> None:
        assert ids(WHOLE.replace("\\param percent - how\n", "")) == ["missing_parameter_some"]

    def test_no_parameter_at_all_is_another_finding(self) -> None:
        assert ids("Dims.\n\\return cudaSuccess") == ["missing_parameter_all"]

    def test_a_star_before_a_name_is_the_same_name(self) -> None:
        assert ids(WHOLE.replace("\\param lamp", "\\param *lamp")) == []

    def test_a_code_in_the_text_that_is_not_listed_is_missing_content(self) -> None:
        findings = check_document("f", WHOLE + "\n\nElse cudaErrorNotReady.", DECLARATION, "page")
        assert [finding.check_id for finding in findings] == ["missing_content_return_code"]
        assert "cudaErrorNotReady" in findings[0].evidence

    def test_a_see_also_list_is_no_use_of_a_code(self) -> None:
        assert ids(WHOLE + "\\sa cudaErrorNotReady") == []

    def test_a_status_without_a_return_part_is_missing_content(self) -> None:
        assert ids(WHOLE.split("\\return", maxsplit=1)[0]) == ["missing_content_return_list"]

    def test_a_function_that_returns_no_status_needs_no_codes(self) -> None:
        assert ids(WHOLE.split("\\return", maxsplit=1)[0], "extern float f(int lamp, float percent);") == []

    def test_a_silent_deprecation_is_outdated(self) -> None:
        deprecated = "TOY_DEPRECATED " + DECLARATION
        assert ids(WHOLE, deprecated) == ["outdated_api_deprecation"]
        assert ids(WHOLE + "\\deprecated Use g.", deprecated) == []

    def test_an_unnamed_parameter_leaves_the_names_undecided(self) -> None:
        assert ids(WHOLE, "extern cudaError_t f(int, float percent);") == []

    def test_a_doubled_word_is_a_typo_and_english_doubles_are_not(self) -> None:
        assert ids(WHOLE + "\\note the\nthe lamp") == ["typo_repeated_word"]
        assert ids(WHOLE + "\\note all that that lamp had had") == []

    def test_the_toy_header_has_its_known_faults(self) -> None:
        documents = parse_headers({"toy.h": TOY}, "1.0").documents
        counts = documents.select("title").hstack(check_features(documents).drop("document_id"))
        dim = counts.filter(pl.col("title") == "toyDim").row(0, named=True)
        assert dim["check_wrong_parameter_not_declared_count"] == 1  # lamp
        assert dim["check_missing_parameter_some_count"] == 2  # hLamp, stream
        assert dim["check_missing_content_return_code_count"] == 1  # cudaErrorNotReady
        paint = counts.filter(pl.col("title") == "toyPaint").row(0, named=True)
        assert paint["check_wrong_parameter_not_declared_count"] == 0
        assert paint["is_header_entry"] is True


class TestPages:
    @pytest.mark.parametrize(
        ("block", "found"),
        [
            ("```python\nx = 1\n```", []),
            ("```python\n>>> x = f(\n...     1)\n2\n```", []),
            ("```py\n%time x\n!pip install y\n```", []),
            ("```python\n    indented = True\n```", []),
            ("```python\nprint 'x'\n```", ["broken_example_python"]),
            ("```python\nx = (\n```", ["broken_example_python"]),
            ("```python\n" + "-" * 90_000 + "1\n```", ["broken_example_python"]),
            ("```text\nx = (\n```", []),
            ("```python\nx = 1\n", ["rendering_open_fence"]),
            ("```cuda\ncudaMalloc(&p, 4);\nk<<<1, 2>>>(p);\n```", ["missing_error_handling_example"]),
            ("```cuda\nCHECK(cudaMalloc(&p, 4));\nk<<<1, 2>>>(p);\n```", []),
            ("```bash\nnvcc cudaMalloc(x)\n```", []),
        ],
    )
    def test_examples(self, block: str, found: list[str]) -> None:
        assert ids("Prose.", block) == found

    def test_a_report_is_no_page(self) -> None:
        assert ids("the the", "```python\nx = (\n", family="report") == []


class TestFeatures:
    def test_columns_follow_the_checks_and_their_kinds(self) -> None:
        assert check_features(documents_frame([])).columns == list(FEATURES)
        for check in CHECKS:
            assert check.kind in KINDS
            assert check.nature in NATURES
            assert check.check_id.startswith(check.kind)
            assert f"check_{check.check_id}_count" in FEATURES

    def test_a_check_that_does_not_apply_is_null_and_not_zero(self) -> None:
        report = features("t", "text", None, "report")
        assert {report[f"check_{check.check_id}_count"] for check in CHECKS} == {None}
        page = features("t", "text", None, "page")
        assert page["check_typo_repeated_word_count"] == 0
        assert page["check_missing_parameter_all_count"] is None

    def test_densities_count_words_of_title_body_and_code(self) -> None:
        body = "word " * 46 + "__syncthreads(); __shfl_down_sync(m, v, 1)"
        row = features("title", body, None, "report")
        assert row["word_count"] == 51
        assert row["syncthreads_per_100_words"] == pytest.approx(100 / 51)
        assert row["warp_intrinsics_per_100_words"] == pytest.approx(100 / 51)

    def test_no_call_gives_no_error_handling_ratio(self) -> None:
        assert features("t", "text", None, "page")["error_handling_ratio"] is None

    def test_nulls_everywhere_are_no_error(self) -> None:
        assert features(None, None, None, "page")["word_count"] == 0
        assert features(None, None, None, "page")["syncthreads_per_100_words"] is None

    def test_html_of_case_09(self, cases: Path) -> None:
        item = json.loads((cases / "09-so-angle-brackets-and-underscores" / "so_item.json").read_text())[
            "items"
        ][0]
        body, code = split_code(clean_html(item["body"]))
        row = features(clean_html(item["title"]), body, code, "report")
        words = row["word_count"]
        assert isinstance(words, int)
        assert row["syncthreads_per_100_words"] == pytest.approx(100 * 3 / words)
        assert row["launch_configuration_count"] == 1
        assert row["shared_memory_static_bytes"] == 4224

    def test_markdown_of_case_09(self, cases: Path) -> None:
        text = (cases / "09-so-angle-brackets-and-underscores" / "issue_body.md").read_text()
        body, code = split_code(clean_markdown(text))
        row = features("t", body, code, "report")
        words = row["word_count"]
        assert isinstance(words, int)
        assert row["syncthreads_per_100_words"] == pytest.approx(100 * 2 / words)
        assert row["launch_configuration_count"] == 1
        assert row["shared_memory_static_bytes"] is None


class TestSharedMemory:
    @pytest.mark.parametrize(
        ("code", "size_bytes"),
        [
            ("int x;", 0),
            ("__shared__ float a[32][33];", 4224),
            ("__shared__ int a[4], b;", 20),
            ("#define N 16\n__shared__ double a[N * 2 + 1];", 264),
            ("constexpr int N = 8;\n__shared__ unsigned char a[N];", 8),
            ("extern __shared__ char a[];", 0),
            ("__shared__ T a[256];", None),
            ("__shared__ float a[n];", None),
            ("__shared__ float a[];", None),
            ("__shared__ float a[4]; __shared__ T b;", None),
            ("__shared__ float a[999999999][999999999];", None),
        ],
    )
    def test_static_bytes(self, code: str, size_bytes: int | None) -> None:
        assert static_shared_memory_bytes(code) == size_bytes


class TestErrorHandling:
    @pytest.mark.parametrize(
        ("code", "counts"),
        [
            ("int x = 3;", (0, 0)),
            ("cudaMalloc(&p, 4);", (1, 0)),
            ("cudaError_t e = cudaMalloc(&p, 4);", (1, 1)),
            ("if (cudaMalloc(&p, 4) != cudaSuccess) return;", (1, 1)),
            ("checkCudaErrors(cudaMalloc(&p, 4));", (1, 1)),
            ("k<<<1, 2>>>(p); cudaMemcpy(a, b, 4, x);", (2, 0)),
            ("k<<<1, 2>>>(p); cudaError_t e = cudaGetLastError();", (1, 1)),
            ("// cudaMalloc(&p, 4);", (0, 0)),
        ],
    )
    def test_calls_and_looked_at_results(self, code: str, counts: tuple[int, int]) -> None:
        assert error_handling(code) == counts
