"""warpgauge/latency/table_spec.py: what a spec file may say, and what is refused by name."""

import contextlib
import json
from pathlib import Path

import polars as pl
import pytest

from warpgauge.errors import (
    CheckNotEvaluableError,
    NoDataError,
    SchemaError,
    SettingsError,
    SourceFileError,
    WarpgaugeError,
)
from warpgauge.latency.table_spec import SIZE_LIMIT_BYTES, TOP_LEVEL, TableSpec, read_table_spec
from warpgauge.source_file import read_source_file

EXAMPLES = Path(__file__).parents[2] / "docs" / "tables"
SPEC = """
name = "kernels"
files = ["*.csv"]
target = "latency"
unit = "us"
numeric = ["m", "n", "k"]
categorical = ["kind"]
text = ["card"]
shape = ["m", "n", "k"]

[features]
gflop = "2 * m * n * k / 1e9"

[devices]
column = "card"
[devices.figures."Card A"]
peak_tflops = 10
bandwidth_gb_per_s = 500.0

[baseline]
by = ["card"]
flops = "gflop * 1e9"
bytes = "4 * (m * k + k * n + m * n)"
peak_flops_per_s = "peak_tflops * 1e12"
peak_bytes_per_s = "bandwidth_gb_per_s * 1e9"
"""
ROWS = "m,n,k,card,kind,latency\n32,64,128,Card A,nn,2.5\n64,64,128,Card A,tn,3.5\n"


def write(folder: Path, *changes: tuple[str, str], before: str = "", after: str = "") -> Path:
    text = SPEC
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "kernels.toml"
    path.write_text(before + text + after)
    return path


def read_rows(spec: TableSpec, path: Path) -> tuple[pl.DataFrame, list[str]]:
    found = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    return spec.rows(found.rename(dict(spec.renamed), strict=False), read_source_file(path))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text(ROWS)
    return tmp_path


def test_spec_says_what_it_says(files):
    spec = read_table_spec(write(files))
    scheme = spec.scheme
    assert (scheme.name, scheme.target, scheme.unit) == ("kernels", "latency", "us")
    assert (scheme.numeric, scheme.text, scheme.categorical_names) == (
        ("m", "n", "k"),
        ("kind", "card"),
        ("kind",),
    )
    assert scheme.levels == (("card",), ())
    assert scheme.slice_columns == ("card",)
    assert scheme.devices is not None
    assert scheme.devices.figures == {"Card A": {"peak_tflops": 10.0, "bandwidth_gb_per_s": 500.0}}
    assert (scheme.promise_us, scheme.promise_ratio) == (0.0, 0.05)
    assert spec.files() == [files / "a.csv"]
    rows, notes = read_rows(spec, files / "a.csv")
    assert notes == []
    assert rows["latency"].to_list() == [2.5, 3.5]
    # 2 x 32 x 64 x 128 FLOP at 10 TFLOP/s are 0.052 us, 4 x (4096 + 8192 + 2048) bytes at 500 GB/s 0.115 us.
    assert scheme.sizes(rows)[0] == pytest.approx(0.114688)


@pytest.mark.parametrize("example", ["neusight", "h200_gemm"])
def test_example_specs_read_their_public_tables(bench_data, example):
    spec = read_table_spec(EXAMPLES / f"{example}.toml", bench_data / "latency_tables")
    assert len(spec.files()) == {"neusight": 7, "h200_gemm": 2}[example]
    assert spec.scheme.devices is not None
    expected = {
        "neusight": ("Tesla T4", "gflop_per_s", 8141.0),
        "h200_gemm": ("NVIDIA H200", "bf16_tflops", 989),
    }
    device, figure, value = expected[example]
    assert spec.scheme.devices.figures[device][figure] == value


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_misspelt_name_is_refused_by_name(tmp_path, name):
    with pytest.raises(SettingsError, match=rf"kernels\.toml: unknown {name}x; known: .*{name}"):
        read_table_spec(write(tmp_path, before=f"{name}x = 1\n"))


@pytest.mark.parametrize("name", ["name", "target", "unit"])
def test_missing_name_is_told(tmp_path, name):
    line = next(line for line in SPEC.splitlines() if line.startswith(f"{name} ="))
    with pytest.raises(SettingsError, match=f"{name} is missing"):
        read_table_spec(write(tmp_path, (line + "\n", "")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('unit = "us"', 'unit = "m"'), "unit is 'm'; known units: ns, us, ms, s"),
        (('unit = "us"', "unit = 5"), "unit is 5; a text is needed"),
        (('name = "kernels"', 'name = "Kernels"'), "name is 'Kernels'; a-z"),
        (('name = "kernels"', 'name = "../x"'), "name is '../x'"),
        (('name = "kernels"', f'name = "{"a" * 41}"'), "at most 40"),
        (('["m", "n", "k"]\ncategorical', '["m", "m"]\ncategorical'), "numeric names something twice"),
        (('["m", "n", "k"]\ncategorical', '["m", "n", "k", "kind"]\ncategorical'), "kind is named twice"),
        (
            ('["m", "n", "k"]\ncategorical', '["m", "n", "k", "latency"]\ncategorical'),
            "latency is named twice",
        ),
        (
            ('["m", "n", "k"]\ncategorical', '["m", "n", "k", "row_id"]\ncategorical'),
            "row_id is named twice .* or is reserved",
        ),
        (('["m", "n", "k"]\ncategorical', '["m", "n", "k", "a b"]\ncategorical'), "column 'a b' has a sign"),
        (
            ('["m", "n", "k"]\ncategorical', '["m", "n", "k", 5]\ncategorical'),
            "numeric is .*; a list of names",
        ),
        (('["m", "n", "k"]\ncategorical', '"m"\ncategorical'), "numeric is 'm'; a list is needed"),
        (('shape = ["m", "n", "k"]', "shape = []"), "shape is empty"),
        (('shape = ["m", "n", "k"]', 'shape = ["mm"]'), "shape: mm is no column"),
        (('files = ["*.csv"]', "files = []"), "files is empty"),
        (('files = ["*.csv"]', 'files = [""]'), "files is .*a list of names"),
        (('by = ["card"]', 'by = ["m"]'), "baseline.by: m is no text column"),
        (('column = "card"', 'column = "m"'), "devices.column: m is no text column"),
        (('column = "card"\n', ""), "devices.column is missing"),
        (('column = "card"', 'colum = "card"'), "unknown devices.colum"),
        (('flops = "gflop * 1e9"\n', ""), "baseline lacks flops; a roofline needs"),
        (('by = ["card"]', 'flop = "1"'), "unknown baseline.flop;"),
        (('flops = "gflop * 1e9"', 'flops = ["gflop"]'), "baseline.flops is"),
        (('flops = "gflop * 1e9"', "flops = inf"), "baseline.flops is inf; a finite number"),
        (("peak_tflops = 10\n", "peak_tflops = nan\n"), "peak_tflops is nan; a finite number"),
        (("peak_tflops = 10\n", f"peak_tflops = {10**400}\n"), "peak_tflops is 1000.*a finite number"),
        (("peak_tflops = 10\n", "peak_tflops = true\n"), "peak_tflops is True; a finite number"),
        (("peak_tflops = 10\n", "'a b' = 1\npeak_tflops = 10\n"), "device figure 'a b' has a sign"),
        (("peak_tflops = 10\n", "m = 1\npeak_tflops = 10\n"), "m is named twice among columns, figures"),
        (('[devices.figures."Card A"]\n', "[devices.figures]\n"), "devices.figures.peak_tflops is no table"),
        (("gflop = ", "m = "), "m is named twice"),
        (('gflop = "2 * m * n * k / 1e9"', "gflop = 5"), "features.gflop is 5; a name and an SQL"),
        (('gflop = "2 * m * n * k / 1e9"', '"a b" = "m"'), "features.a b is 'm'"),
        (('"2 * m * n * k / 1e9"', '"2 * m * latency"'), "uses latency, which is no column"),
        (('"2 * m * n * k / 1e9"', '"2 * z"'), "gflop = '2 . z' uses z, which is no column"),
        (('"peak_tflops * 1e12"', '"peak * 1e12"'), "baseline.peak_flops_per_s = .* uses peak,"),
    ],
)
def test_impossible_spec_is_refused_with_its_file_and_reason(tmp_path, change, message):
    with pytest.raises(SettingsError, match=rf"kernels\.toml: .*{message}"):
        read_table_spec(write(tmp_path, change))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[promise]\npercent = 5", "unknown promise.percent"),
        ("[promise]\nratio = 0", "promise is 0.0 us and 0.0"),
        ("[promise]\nratio = nan", "promise.ratio is nan"),
        ("[promise]\nus = -1", "promise is -1.0 us"),
        (f"[promise]\nus = {10**400}", "promise.us is 1000"),
        ("[promise]\nus = true", "promise.us is True"),
        ("[training]\nleafs = 3", "training.leafs is unknown; known: objective, trees"),
        ('[training]\nobjective = "l3"', "training.objective is 'l3'"),
        ("[training]\ntrees = 0", "training.trees is 0; 1 to 10000"),
        ("[training]\ntrees = 1.5", "training.trees is 1.5"),
        ("[training]\ntrees = true", "training.trees is True"),
        ("[training]\ntrees = inf", "training.trees is inf"),
        (f"[training]\ntrees = {10**400}", "training.trees is 1000"),
        ("[training]\nlearning_rate = 0", "training.learning_rate is 0"),
        ("[training]\nlearning_rate = nan", "training.learning_rate is nan"),
        ("[monotone]\nz = 1", "monotone.z is 1"),
        ("[monotone]\nkind = 1", "monotone.kind is 1"),
        ("[monotone]\nm = 2", "monotone.m is 2"),
        ("[monotone]\nm = 1.0", "monotone.m is 1.0"),
        ("[monotone]\nm = true", "monotone.m is True"),
        ('[rename]\nx = "y"', "rename.x is 'y', which is no column of the spec"),
        ('[rename]\nx = "row_id"', "rename.x is 'row_id'"),
        ("[rename]\nx = 5", "rename.x is 5"),
    ],
)
def test_impossible_section_is_refused(tmp_path, section, message):
    with pytest.raises(SettingsError, match=message):
        read_table_spec(write(tmp_path, after=section))


def test_whole_numbers_of_trees_may_be_written_as_floats(tmp_path):
    scheme = read_table_spec(write(tmp_path, after="[training]\ntrees = 380.0\nlearning_rate = 1\n")).scheme
    assert scheme.parameters == {"trees": 380, "learning_rate": 1.0}
    assert isinstance(scheme.parameters["trees"], int)


@pytest.mark.parametrize("number", ["1e22", "1e+22", "10_000_000_000_000_000_000_000", "1E22"])
def test_peak_may_be_a_number_of_any_size(files, number):
    spec = read_table_spec(write(files, ('"peak_tflops * 1e12"', number)))
    rows, _ = read_rows(spec, files / "a.csv")
    # No time for the FLOPs is left, the bytes are.
    assert spec.scheme.sizes(rows)[0] == pytest.approx(0.114688)


def test_half_a_roofline_is_none(tmp_path):
    spec = read_table_spec(
        write(
            tmp_path,
            *(
                (line + "\n", "")
                for line in SPEC.splitlines()
                if line.startswith(("flops", "bytes", "peak_f", "peak_b"))
            ),
        )
    )
    assert spec.scheme.roofline is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xff\xfen\x00", "UTF-16"),
        (b"name = '\xff'", "is not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00", "PNG"),
        (b'name = "ker', "not whole TOML"),
        (b"name = 1\nname = 2", "not whole TOML"),
        (b"x = " + b"[" * 100_000, "not whole TOML"),
        (b"x = " + b"1" * 5_000, "not whole TOML"),
        (b"# " + b"x" * SIZE_LIMIT_BYTES, "bytes, a table spec has at most 1,000,000"),
    ],
)
def test_hostile_file_is_refused_in_a_sentence(tmp_path, content, message):
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    with pytest.raises(WarpgaugeError, match=message) as caught:
        read_table_spec(path)
    assert str(path) in str(caught.value)


def test_absent_spec_and_folder_are_refused(tmp_path):
    with pytest.raises(SourceFileError, match="no such file"):
        read_table_spec(tmp_path / "absent.toml")
    with pytest.raises(SourceFileError, match="found a directory"):
        read_table_spec(tmp_path)


@pytest.mark.parametrize("cut", range(0, len(SPEC), 23))
def test_cut_spec_never_ends_in_a_traceback(files, cut):
    path = files / "cut.toml"
    path.write_text(SPEC[:cut])
    # The first half of the file lacks what every spec needs; the last third may be left out.
    if cut < SPEC.index("[features]"):
        with pytest.raises(WarpgaugeError, match=r"cut\.toml: "):
            read_table_spec(path)
    else:
        with contextlib.suppress(WarpgaugeError):
            assert read_table_spec(path).scheme.name == "kernels"


def test_pattern_that_matches_nothing_names_folder_and_pattern(tmp_path):
    spec = read_table_spec(write(tmp_path))
    with pytest.raises(SourceFileError, match=rf"no file in {tmp_path} matches \*\.csv"):
        spec.files()


@pytest.mark.parametrize("pattern", ["a\\u0000b", "x" * 5_000])
def test_pattern_that_is_no_path_is_refused(tmp_path, pattern):
    spec = read_table_spec(write(tmp_path, ('"*.csv"', f'"{pattern}"')))
    with pytest.raises(WarpgaugeError):
        spec.files()


def test_files_lie_beside_the_spec_or_in_the_folder_that_is_given(files, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = write(elsewhere)
    with pytest.raises(SourceFileError):
        read_table_spec(path).files()
    assert read_table_spec(path, files).files() == [files / "a.csv"]
    absolute = write(elsewhere, ('"*.csv"', f'"{files}/*.csv"'))
    assert read_table_spec(absolute).files() == [files / "a.csv"]


def test_folder_and_file_may_have_signs_of_a_pattern_in_their_names(tmp_path):
    folder = tmp_path / "run [1]"
    folder.mkdir()
    (folder / "a[1].csv").write_text(ROWS)
    (folder / "b.csv").write_text(ROWS)
    assert read_table_spec(write(folder)).files() == [folder / "a[1].csv", folder / "b.csv"]
    assert read_table_spec(write(folder, ('"*.csv"', '"a[1].csv"'))).files() == [folder / "a[1].csv"]


def test_same_file_by_two_patterns_counts_once(files):
    spec = read_table_spec(write(files, ('["*.csv"]', '["*.csv", "a.*", "./a.csv"]')))
    assert spec.files() == [files / "a.csv"]


def device_spec(folder: Path, **devices: object) -> Path:
    for name, content in devices.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    inline = '[devices.figures."Card A"]\npeak_tflops = 10\nbandwidth_gb_per_s = 500.0\n'
    given = 'key = "Name"\nfiles = ["*.json"]\nfields = {peak_tflops = "TF", bandwidth_gb_per_s = "BW"}\n'
    return write(folder, (inline, given))


def test_device_files_give_figures(tmp_path):
    path = device_spec(tmp_path, x={"Name": "Card A", "TF": 10, "BW": 500.0, "other": "text"})
    devices = read_table_spec(path).scheme.devices
    assert devices is not None
    assert devices.figures == {"Card A": {"peak_tflops": 10.0, "bandwidth_gb_per_s": 500.0}}


def test_figure_in_the_spec_stands_before_that_of_a_file(tmp_path):
    path = device_spec(tmp_path, x={"Name": "Card A", "TF": 10, "BW": 500.0})
    text = path.read_text().replace("[baseline]", '[devices.figures."Card A"]\npeak_tflops = 11\n[baseline]')
    path.write_text(text)
    devices = read_table_spec(path).scheme.devices
    assert devices is not None
    assert devices.figures == {"Card A": {"peak_tflops": 11.0, "bandwidth_gb_per_s": 500.0}}


def test_device_that_lacks_a_field_has_no_figure(tmp_path):
    path = device_spec(tmp_path, x={"Name": "Card A", "TF": 10, "BW": 500.0}, y={"Name": "Card B", "TF": 40})
    scheme = read_table_spec(path).scheme
    row = {"m": 32.0, "n": 64.0, "k": 128.0, "kind": "nn", "card": "Card B"}
    assert scheme.features(pl.DataFrame([row]))["bandwidth_gb_per_s"].to_list() == [None]
    with pytest.raises(SchemaError, match=r"1 of 1 rows have no roofline .*card=Card B"):
        scheme.sizes(pl.DataFrame([row]))


def test_of_device_files_that_disagree_the_one_named_like_the_device_is_meant(tmp_path):
    path = device_spec(
        tmp_path,
        Card={"Name": "Card A", "TF": 99, "BW": 1.0},
        Card_A={"Name": "Card A", "TF": 10, "BW": 500.0},
        Card_Z={"Name": "Card A", "TF": 98, "BW": 1.0},
    )
    devices = read_table_spec(path).scheme.devices
    assert devices is not None
    assert devices.figures["Card A"]["peak_tflops"] == 10.0


def test_device_files_that_disagree_and_are_named_otherwise_are_refused(tmp_path):
    path = device_spec(
        tmp_path, x={"Name": "Card A", "TF": 99, "BW": 1.0}, y={"Name": "Card A", "TF": 10, "BW": 1.0}
    )
    with pytest.raises(SettingsError, match=r"x\.json, y\.json disagree about Card A"):
        read_table_spec(path)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ('{"Name": "Card A", ', SourceFileError, "x.json: no whole JSON"),
        ("[" * 100_000, SourceFileError, "x.json: no whole JSON"),
        ('{"Name": ' + "1" * 5_000 + "}", SourceFileError, "x.json: no whole JSON"),
        ('["Card A"]', SourceFileError, "x.json: no JSON object with Name"),
        ('{"name": "Card A", "TF": 1, "BW": 1}', SourceFileError, "no JSON object with Name"),
        ('{"Name": 5, "TF": 1, "BW": 1}', SourceFileError, "no JSON object with Name"),
        ('{"Name": "Card A", "TF": "10", "BW": 1}', SettingsError, "TF is '10'; a finite number"),
        ('{"Name": "Card A", "TF": NaN, "BW": 1}', SettingsError, "TF is nan; a finite number"),
        ('{"Name": "Card A", "TF": null, "BW": 1}', SettingsError, "TF is None; a finite number"),
        ('{"Name": "Card A", "TF": 1}', SettingsError, "no device file has bandwidth_gb_per_s = 'BW'"),
    ],
)
def test_damaged_device_file_is_refused(tmp_path, content, error, message):
    with pytest.raises(error, match=message):
        read_table_spec(device_spec(tmp_path, x=content))


def test_device_files_need_to_be_there_and_fields_to_be_said(tmp_path):
    path = device_spec(tmp_path)
    with pytest.raises(SourceFileError, match=rf"no device file in {tmp_path} matches \*\.json"):
        read_table_spec(path)
    (tmp_path / "x.json").write_text('{"Name": "Card A", "TF": 10, "BW": 1}')
    whole = path.read_text()
    for old, new, message in (
        ('key = "Name"\n', "", "devices.key is missing"),
        ('fields = {peak_tflops = "TF", bandwidth_gb_per_s = "BW"}', "", "devices.fields is empty"),
        ('peak_tflops = "TF"', "peak_tflops = 5", "devices.fields.peak_tflops is 5"),
        ('files = ["*.json"]', "", "uses peak_tflops|neither files nor figures"),
    ):
        path.write_text(whole.replace(old, new))
        with pytest.raises(SettingsError, match=message):
            read_table_spec(path)


def test_columns_of_the_files_may_be_renamed(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS.replace("latency", "Time (us)").replace("card", "GPU"))
    spec = read_table_spec(write(tmp_path, after='[rename]\n"Time (us)" = "latency"\nGPU = "card"\n'))
    rows, _ = read_rows(spec, tmp_path / "a.csv")
    assert rows["latency"].to_list() == [2.5, 3.5]
    assert rows["card"].to_list() == ["Card A", "Card A"]


def test_column_in_no_file_is_named_with_its_likely_name(tmp_path):
    spec = read_table_spec(write(tmp_path))
    spec.require_columns(["m", "n", "k", "card", "kind", "latency", "more"])
    with pytest.raises(SchemaError, match=r"no file has the column latency \(latency_us\?\)"):
        spec.require_columns(["m", "n", "k", "card", "kind", "latency_us"])


def test_value_that_is_no_number_is_missing_and_counted_with_row_and_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(ROWS + "x,64,128,Card A,nn,2\n32,,128,Card A,nn,inf\n32,64,128,,nn,1e1\n")
    rows, notes = read_rows(read_table_spec(write(tmp_path)), path)
    assert rows["m"].to_list() == [32, 64, None, 32, 32]
    assert rows["n"].to_list() == [64, 64, 64, None, 64]
    assert rows["card"].to_list() == ["Card A"] * 4 + [None]
    assert rows["latency"].to_list() == [2.5, 3.5, 2.0, None, 10.0]
    assert len(notes) == 1
    assert notes[0].startswith("2 values are none of their column")
    assert "row 3, column m: 'x' is not a number" in notes[0]


def test_rows_of_files_with_different_columns_fit_one_table(files):
    other = files / "b.csv"
    other.write_text("latency,m,n,extra\n7,32,64,x\n")
    spec = read_table_spec(write(files))
    both = pl.concat([read_rows(spec, path)[0] for path in spec.files()])
    assert both.columns == [name for name in spec.scheme.table.column_names if name != "collected_at"]
    assert both["k"].to_list() == [128.0, 128.0, None]
    assert both["latency"].to_list() == [2.5, 3.5, 7.0]
    assert both["source_name"].to_list() == ["a.csv", "a.csv", "b.csv"]
    assert both["record_ordinal"].to_list() == [0, 1, 0]
    assert both["row_id"].n_unique() == 3


def test_same_content_has_the_same_ids_under_any_file_name(files):
    (files / "copy.csv").write_text(ROWS)
    (files / "other.csv").write_text(ROWS.replace("2.5", "2.6"))
    spec = read_table_spec(write(files))
    ids = {path.name: read_rows(spec, path)[0]["row_id"].to_list() for path in spec.files()}
    assert ids["a.csv"] == ids["copy.csv"]
    assert not set(ids["a.csv"]) & set(ids["other.csv"])
    renamed = read_table_spec(write(files, ('name = "kernels"', 'name = "kernels-2"')))
    assert not set(ids["a.csv"]) & set(read_rows(renamed, files / "a.csv")[0]["row_id"])


def test_file_cannot_bring_its_own_identity(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "row_id,source_sha256," + ROWS.replace("\n32", "\nmine,x,32").replace("\n64", "\nmine,x,64")
    )
    rows, _ = read_rows(read_table_spec(write(tmp_path)), path)
    assert rows["row_id"].str.len_chars().to_list() == [64, 64]
    assert rows["source_sha256"].unique().to_list() == [read_source_file(path).sha256]


def test_flags_and_times_of_a_typed_file_are_read(tmp_path):
    frame = pl.DataFrame(
        {
            "m": [True, False],
            "n": [64, 64],
            "k": [1.0, 2.0],
            "kind": [True, None],
            "card": ["Card A", "Card A"],
            "latency": [1.0, 2.0],
            "when": ["2026-01-01T10:00:00", None],
        }
    ).with_columns(pl.col("when").str.to_datetime())
    path = tmp_path / "a.parquet"
    frame.write_parquet(path)
    spec = read_table_spec(write(tmp_path, ('unit = "us"', 'unit = "us"\ntime = "when"')))
    rows, notes = read_rows(spec, path)
    assert notes == []
    assert rows["m"].to_list() == [1.0, 0.0]
    assert rows["kind"].to_list() == ["true", None]
    # Seconds from 1970 to the first of January 2026, 10 o'clock.
    assert spec.scheme.times(rows).to_list() == [1767261600.0, None]


def test_file_without_rows_or_without_the_label_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    spec = read_table_spec(write(tmp_path))
    path.write_text(ROWS.splitlines()[0] + "\n")
    with pytest.raises(NoDataError, match=r"0 rows from a\.csv"):
        read_rows(spec, path)
    path.write_text("m,n\n1,2\n")
    with pytest.raises(CheckNotEvaluableError, match="column latency is missing"):
        read_rows(spec, path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(CheckNotEvaluableError, match="column latency is missing"):
        read_rows(spec, path)
