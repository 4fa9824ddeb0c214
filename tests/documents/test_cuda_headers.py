"""Documented functions of headers, from wheels to documents."""

import os
import random
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpgauge.documents.checks import check_features
from warpgauge.documents.cuda_headers import (
    clean_comment,
    iterate_entries,
    parse_declaration,
    parse_entry,
    parse_headers,
    read_header_wheel,
    wheel_date,
)
from warpgauge.errors import NoDataError, SourceFileError, WarpgaugeError
from warpgauge.tables import DOCUMENTS, LABELS

TOY = (Path(__file__).parents[1] / "data" / "documents_toy_v1.h").read_text()
LIMIT_BYTES = 10_000_000


def make_wheel(
    path: Path, members: dict[str, str], stamp: tuple[int, ...] = (2024, 3, 15, 22, 49, 52)
) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in members.items():
            wheel.writestr(zipfile.ZipInfo(name, stamp), text)  # type: ignore[arg-type]
    return path


def one(text: str) -> tuple[object, str]:
    [(declaration, body)] = iterate_entries(text)
    return declaration, body


class TestHeaders:
    def test_each_documented_function_is_one_document(self) -> None:
        batch = parse_headers({"toy.h": TOY}, "1.0")
        assert batch.documents["source_id"].to_list() == [
            "toy.h:toyPaint",
            "toy.h:toyDim",
            "toy.h:toyBlink",
            "toy.h:toyBlink(int, void (*)(int step, int of))",
        ]
        assert batch.documents["title"].to_list() == ["toyPaint", "toyDim", "toyBlink", "toyBlink"]
        assert batch.counts == {"headers": 1, "documents": 4, "overloads": 1, "repeated": 0}
        assert batch.documents.schema == DOCUMENTS.schema
        assert batch.labels.schema == LABELS.schema
        assert batch.labels.is_empty()

    def test_a_document_holds_cleaned_prose_and_its_declaration(self) -> None:
        row = parse_headers({"toy.h": TOY}, "1.0").documents.row(0, named=True)
        assert row["code"] == "extern __host__ toyError_t TOYAPI toyPaint(void *first, size_t count);"
        assert row["body"].startswith("Paints a row of the toy's lamps\n\nPaints \\p count lamps")
        assert "\\param first - Lamp to begin with" in row["body"]
        assert "*/" not in row["body"]
        assert "::" not in row["body"]
        assert (row["family"], row["source"], row["product_version"]) == ("page", "cuda-headers", "1.0")
        assert row["url"] is None
        assert row["fetched_at"] is None

    def test_the_first_branch_of_a_condition_is_the_declaration(self) -> None:
        codes = parse_headers({"toy.h": TOY}, "1.0").documents["code"]
        assert "toyDim(toyLamp_t hLamp, float percent, toyStream_t stream);" in codes[1]

    def test_the_same_function_has_one_source_id_over_versions(self) -> None:
        first = parse_headers({"toy.h": TOY}, "1.0").documents
        second = parse_headers({"toy.h": TOY}, "2.0").documents
        assert first["source_id"].to_list() == second["source_id"].to_list()
        assert set(first["document_id"]).isdisjoint(second["document_id"])
        assert first["content_sha256"].to_list() == second["content_sha256"].to_list()

    def test_the_same_input_gives_the_same_documents(self) -> None:
        assert parse_headers({"toy.h": TOY}, "1.0").documents.equals(
            parse_headers({"toy.h": TOY}, "1.0").documents
        )

    def test_a_declaration_repeated_with_its_text_is_one_document(self) -> None:
        entry = "/** \\brief Rings */\nint toyRing(int bell);\n"
        batch = parse_headers(
            {"a.h": entry + entry + "/** \\brief Rings twice */\nint toyRing(int bell);\n"}, "1.0"
        )
        assert batch.documents["source_id"].to_list() == ["a.h:toyRing", "a.h:toyRing(int)"]
        assert batch.counts["repeated"] == 1

    def test_windows_line_ends_change_nothing(self) -> None:
        windows = parse_headers({"toy.h": TOY.replace("\n", "\r\n")}, "1.0").documents
        assert windows.equals(parse_headers({"toy.h": TOY}, "1.0").documents)

    def test_headers_without_a_documented_function_are_no_data(self) -> None:
        with pytest.raises(NoDataError, match="none of 1 headers"):
            parse_headers({"a.h": "int f(int);"}, "1.0")

    def test_a_version_that_is_none_is_refused(self) -> None:
        with pytest.raises(SourceFileError, match=r"'latest' is no product version"):
            parse_headers({"toy.h": TOY}, "latest")


class TestWhatIsNoEntry:
    @pytest.mark.parametrize(
        "text",
        [
            "/** \\brief A type */\ntypedef int (*callback)(void *data);",
            "/** \\brief A structure */\nstruct ALIGN_TO(8) lamp { int f(int); };",
            "/** \\brief A value */\nint lamp;\nint f(int);",
            "/** \\brief A pointer */\nvoid (*handler)(int);",
            "/** \\brief A macro */\n#define F(x) (x)\n",
            "/** Plain words without a command. */\nint f(int);",
            "/* \\brief No documentation comment */\nint f(int);",
            "/*** \\brief A banner ***/\nint f(int);",
            "int lamp; /**< \\brief A remark on the line before */\nint f(int);",
            '"/** \\brief In a string */ int f(int);"',
            "// /** \\brief In a line comment */ int f(int);",
            "/** \\brief Two comments */\n/** \\struct lamp */\nint f(int);",
            "/** \\brief Nothing follows */",
            "/** \\brief Never closed\nint f(int);",
            "/** \\brief Parameters never end */\nint f(int a, ",
            "/** \\brief An enumerator */\nLAMP_ON = SHIFT(3),\n",
        ],
    )
    def test_no_documented_function_is_found(self, text: str) -> None:
        assert iterate_entries(text) == []


class TestDeclarations:
    def test_names_types_and_return_type_are_told_apart(self) -> None:
        declaration = parse_declaration(
            "extern __host__ cudaError_t CUDARTAPI f(const void *const *list, struct lamp at[4], unsigned,"
            " void (CB *done)(int), enum mode how __dv(M(1, 2)), ...);"
        )
        assert declaration is not None
        assert declaration.name == "f"
        assert declaration.parameters == ("list", "at", None, "done", "how", None)
        assert declaration.types[0] == "const void *const *"
        assert declaration.types[1] == "struct lamp[4]"
        assert declaration.return_type == "cudaError_t"
        assert "__dv" not in declaration.text

    @pytest.mark.parametrize(
        ("text", "name", "parameters"),
        [
            ("int f(void);", "f", ()),
            ("int f();", "f", ()),
            ("__attribute__((pure)) int f(int a);", "f", ("a",)),
            ("TOY_DEPRECATED(in 2) int f(int a);", "f", ("a",)),
            ("template <class T, int N = 3> T f(T a, int b = g(1));", "f", ("a", "b")),
            ("lamp operator+(lamp a, lamp b);", "operator+", ("a", "b")),
            ("lamp &operator=(lamp a);", "operator=", ("a",)),
            ("int operator()(int a);", "operator()", ("a",)),
            ("lamp() = default;", "lamp", ()),
            (
                "QUALIFIER int f(const lamp *p, /* in */ int n // last\n) END_MACRO\nint g(int);",
                "f",
                ("p", "n"),
            ),
            ("int f(std::map<int, int> m, Args&&... rest);", "f", ("m", "rest")),
        ],
    )
    def test_forms_of_declarations(self, text: str, name: str, parameters: tuple[str, ...]) -> None:
        declaration = parse_declaration(text)
        assert declaration is not None
        assert (declaration.name, declaration.parameters) == (name, parameters)

    def test_the_declaration_of_a_document_parses_to_itself(self) -> None:
        for code in parse_headers({"toy.h": TOY}, "1.0").documents["code"]:
            declaration = parse_declaration(code)
            assert declaration is not None
            assert declaration.text == code


class TestComments:
    def test_internal_parts_and_other_formats_go_and_commands_are_spelled_one_way(self) -> None:
        text = clean_comment(
            "@brief Rings.\n\\ingroup BELLS\n@internal\nsecret\n@endinternal\n\\latexonly\ntwice\n\\endlatexonly\n"
            "\\param[in,out] bell the bell\n@returns ::toyOk\n\\see ::other"
        )
        assert text == "Rings.\n\n\\param bell the bell\n\\return toyOk\n\\sa other"

    def test_html_goes_and_launches_stay(self) -> None:
        assert clean_comment("a<br><b>bold</b> f<<<grid, block>>>(x) vector<float>") == (
            "a\nbold f<<<grid, block>>>(x) vector<float>"
        )

    def test_an_entry_is_taken_apart(self) -> None:
        entry = parse_entry(
            "Rings.\n\n\\code\nring(1);\n\\endcode\n\\param *bell - which\n\\param a, b - two at once\n\\tparam T type\n"
            "\\return\ncudaSuccess\n\nAfter that cudaErrorNotReady.\n\\note Loud.\n\\sa other"
        )
        assert entry.parameters == ("bell", "a", "b")
        assert entry.template_parameters == ("T",)
        assert entry.return_text is not None
        assert entry.return_text.strip() == "cudaSuccess"
        assert "After that" in entry.prose
        assert "Loud." in entry.prose
        assert "other" not in entry.prose
        assert entry.code_blocks == ("\nring(1);\n",)


class TestWheels:
    def test_headers_of_both_layouts_are_read(self, tmp_path: Path) -> None:
        old = make_wheel(
            tmp_path / "old.whl",
            {"nvidia/cuda_runtime/include/toy.h": TOY, "nvidia/cuda_runtime/lib/x.so": "", "LICENSE.h": "x"},
        )
        new = make_wheel(
            tmp_path / "new.whl",
            {"nvidia/cu13/include/toy.h": TOY, "nvidia/cu13/include/crt/b.h": "int f();"},
        )
        assert list(read_header_wheel([old], LIMIT_BYTES)) == ["toy.h"]
        assert list(read_header_wheel([new], LIMIT_BYTES)) == ["crt/b.h", "toy.h"]

    def test_the_date_is_the_archives_and_no_clock(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "a.whl", {"nvidia/cu13/include/toy.h": TOY})
        assert wheel_date([wheel]) == datetime(2024, 3, 15, 22, 49, 52, tzinfo=UTC)

    def test_wheels_that_disagree_are_refused(self, tmp_path: Path) -> None:
        a = make_wheel(tmp_path / "a.whl", {"nvidia/cu13/include/toy.h": TOY})
        b = make_wheel(tmp_path / "b.whl", {"nvidia/cu13/include/toy.h": "other"})
        with pytest.raises(SourceFileError, match=r"b\.whl: toy\.h differs"):
            read_header_wheel([a, b], LIMIT_BYTES)

    def test_a_wheel_without_headers_is_refused(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "a.whl", {"numpy/__init__.py": ""})
        with pytest.raises(SourceFileError, match="no CUDA header"):
            read_header_wheel([wheel], LIMIT_BYTES)

    def test_a_bomb_is_refused_before_it_is_unpacked(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "a.whl", {"nvidia/cu13/include/toy.h": "0" * 5_000_000})
        with pytest.raises(SourceFileError, match="more than 1,000,000 bytes"):
            read_header_wheel([wheel], 1_000_000)

    def test_the_limit_counts_all_wheels_together(self, tmp_path: Path) -> None:
        wheels = [
            make_wheel(tmp_path / f"{i}.whl", {f"nvidia/cu13/include/{i}.h": "0" * 600}) for i in range(2)
        ]
        with pytest.raises(SourceFileError, match=r"1\.whl: the headers hold more"):
            read_header_wheel(wheels, 1_000)

    @pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + b"\0" * 100])
    def test_a_file_that_is_no_wheel_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.whl").write_bytes(content)
        with pytest.raises(SourceFileError, match=r"a\.whl"):
            read_header_wheel([tmp_path / "a.whl"], LIMIT_BYTES)

    def test_a_missing_wheel_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFileError, match="no such file"):
            read_header_wheel([tmp_path / "a.whl"], LIMIT_BYTES)

    def test_every_truncation_and_flip_ends_in_headers_or_a_refusal(self, tmp_path: Path) -> None:
        whole = make_wheel(tmp_path / "a.whl", {"nvidia/cu13/include/toy.h": TOY}).read_bytes()
        broken = tmp_path / "b.whl"
        chance = random.Random(5)
        for _ in range(150):
            damaged = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.5 else whole)
            for _ in range(3):
                if damaged:
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            broken.write_bytes(bytes(damaged))
            message = f"{broken}: read"
            try:
                read_header_wheel([broken], LIMIT_BYTES)
            except SourceFileError as error:
                message = str(error)
            assert str(broken) in message


MUTATION = st.lists(
    st.tuples(st.integers(0, len(TOY)), st.integers(0, 40), st.text("/*\\@(){};#,<>'\"\n \0é", max_size=6)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(MUTATION)
def test_a_mutated_header_ends_in_documents_or_a_refusal(mutations: list[tuple[int, int, str]]) -> None:
    text = TOY
    for at, cut, new in mutations:
        text = text[:at] + new + text[at + cut :]
    try:
        batch = parse_headers({"toy.h": text}, "1.0")
    except WarpgaugeError:
        return
    assert batch.documents["document_id"].n_unique() == batch.documents.height
    assert check_features(batch.documents).height == batch.documents.height


@pytest.mark.parametrize(
    ("unit", "found"),
    [
        ("/*", False),
        ("/** \\brief x ", False),
        ("/** \\brief x */\n(", False),
        ("/** \\brief x */\nf(", False),
        ("'", False),
        ("/** \\brief x */\nint f(int a __dv(0));", True),
    ],
)
def test_a_hostile_header_of_a_megabyte_is_read_through(unit: str, found: bool) -> None:
    # Without a limit on a clock: a pattern that goes back and forth would not end in minutes.
    assert bool(iterate_entries(unit * (1_000_000 // len(unit)))) is found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "version", "documents", "disagreeing"),
    [("nvidia-cuda-runtime-cu12", "12.4.127", 1381, 25), ("nvidia-cuda-runtime", "13.5.37", 1555, 24)],
)
def test_the_real_headers_give_the_known_functions(
    tmp_path: Path, package: str, version: str, documents: int, disagreeing: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(tmp_path),
    ]
    command += ["--platform", "manylinux2014_x86_64", f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        pytest.skip(f"pip cannot fetch {package}=={version} here: {done.stderr[-200:]}")
    batch = parse_headers(read_header_wheel(sorted(tmp_path.glob("*.whl")), 100_000_000), version)
    assert batch.documents.height == documents
    assert batch.documents["source_id"].n_unique() == documents
    features = batch.documents.join(check_features(batch.documents), on="document_id")
    core = features.filter(
        pl.col("source_id").str.contains(r"^(cuda|cuda_runtime_api)\.h:")
        & (
            (
                pl.col("check_wrong_parameter_not_declared_count")
                + pl.col("check_missing_parameter_some_count")
            )
            > 0
        )
    )
    assert core.height == disagreeing
    assert {"cudaFreeAsync", "cudaGraphAddEventRecordNode"} <= set(core["title"])
