"""warpgauge/latency/table_scheme.py: how the rows of a described table are read."""

import copy
import json
from typing import Any

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import ModelFileError, SchemaError, SettingsError
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.folds import fold_numbers
from warpgauge.latency.model import scheme_from_document
from warpgauge.latency.table_scheme import (
    LARGEST_EXPRESSION_LENGTH,
    Devices,
    Roofline,
    TableScheme,
    parse_expression,
)
from warpgauge.latency.training import train_latency

ROWS = pl.DataFrame(
    {
        "m": [128.0, 256.0],
        "n": [128.0, 64.0],
        "k": [64.0, 64.0],
        "card": ["Card A", "Card B"],
        "kind": ["nn", "tn"],
    }
)


def value(text: str, **columns: Any) -> Any:
    """What an expression gives for one row."""
    frame = pl.DataFrame({name: [one] for name, one in columns.items()})
    return frame.select(parse_expression("x", text, list(columns)).cast(pl.Float64).alias("x")).item()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e9", 1e9),
        ("1E9", 1e9),
        ("1e+22", 1e22),
        ("2.5e-3", 0.0025),
        (".5e3", 500.0),
        ("1.e3", 1000.0),
        ("1e100", 1e100),
        ("99999999999999999999999", 99999999999999999999999.0),
        ("m * 2e3 / 1e3", 6.0),
        ("(1e3)", 1000.0),
        ("-1e3", -1000.0),
        ("a1e9 + 1", 8.0),
        ("1.0 + m1e2", 12.0),
    ],
)
def test_numbers_with_exponents_are_read_and_names_like_them_left_alone(text, expected):
    assert value(text, m=3.0, a1e9=7.0, m1e2=11.0) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["1e9", "x 1e9 y", "it's 1e9", "12345678901234567890123"])
def test_quoted_text_is_left_alone(kind):
    quoted = kind.replace("'", "''")
    assert value(f"CASE kind WHEN '{quoted}' THEN 1e1 ELSE 0.0 END", kind=kind) == 10.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("m / n", None), ("n / m", 0.0), ("sqrt(-m)", None), ("ln(n)", None), ("n / n", None), ("m + l", None)],
)
def test_value_that_is_no_number_becomes_null(make_scheme, text, expected):
    scheme = make_scheme(numeric=("m", "n", "l"), derived={"x": text}, shape=("m",), roofline=None)
    rows = pl.DataFrame({"m": [3.0], "n": [0.0], "l": [None], "card": ["Card A"], "kind": ["nn"]})
    assert scheme.features(rows)["x"].to_list() == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "sum(m)",
        "m - avg(m)",
        "count(*)",
        "count(m)",
        "first(m)",
        "median(m)",
        "stddev(m)",
        "quantile_cont(m, 0.5)",
        "row_number() OVER (ORDER BY m)",
        "rank() OVER (ORDER BY m)",
        "lag(m) OVER (ORDER BY m)",
        "avg(m) OVER (PARTITION BY kind)",
        "sum(m) OVER ()",
        "CASE WHEN m > 1e6 THEN sum(m) ELSE m END",
        "CASE WHEN kind = 'never' THEN max(m) OVER () ELSE m END",
        "CASE WHEN m > 1e6 THEN corr(m, n) ELSE m END",
        "(SELECT 1)",
        "unnest(m)",
        "COLUMNS('m')",
    ],
)
def test_expression_over_other_rows_is_refused(make_scheme, text):
    with pytest.raises(SettingsError, match=r"x = .* gives one row another value beside other rows"):
        make_scheme(derived={"x": text}, roofline=None)


@pytest.mark.parametrize(
    "text",
    [
        "m +",
        "",
        " ",
        "m; DROP TABLE m",
        "random()",
        "*",
        "m.*",
        "EXISTS (SELECT 1)",
        "m IN (SELECT n FROM t)",
        "(" * 400 + "m" + ")" * 400,
        "m\0",
        "now()",
        "lag(m)",
        "'open",
    ],
)
def test_text_that_is_no_expression_of_one_row_is_refused(make_scheme, text):
    with pytest.raises(SettingsError, match=r"^x = .*is no SQL expression"):
        make_scheme(derived={"x": text}, roofline=None)


@pytest.mark.parametrize("text", ["kind", "'abc'", "CAST(kind AS DOUBLE)", "regexp_like(kind, '(')"])
def test_expression_that_gives_no_number_is_refused(make_scheme, text):
    with pytest.raises(SettingsError, match=r"^x cannot be computed as a number"):
        make_scheme(derived={"x": text}, roofline=None)


def test_expression_that_would_end_the_process_is_refused(make_scheme):
    for text in ("m" + "+m" * 100_000, "m" + "||m" * LARGEST_EXPRESSION_LENGTH):
        with pytest.raises(SettingsError, match="signs, at most 1000 are read") as caught:
            make_scheme(derived={"x": text}, roofline=None)
        assert len(str(caught.value)) < 400
    assert value("m" + "+m" * 100, m=1.0) == 101.0


def test_feature_may_use_earlier_ones_but_not_later_ones(make_scheme):
    scheme = make_scheme(derived={"a": "m * 2", "b": "a + 1"}, roofline=None)
    assert scheme.features(ROWS)["b"].to_list() == [257.0, 513.0]
    with pytest.raises(SettingsError, match=r"b = 'a . 1' uses a, which is no column"):
        make_scheme(derived={"b": "a + 1", "a": "m * 2"}, roofline=None)


def test_roofline_is_the_longer_of_compute_and_memory(make_scheme):
    # 2 x 128 x 128 x 64 FLOP at 10 TFLOP/s: 0.210 us; 4 x (8192 + 8192 + 16384) bytes at 500 GB/s: 0.262 us.
    # 2 x 256 x 64 x 64 FLOP at 40 TFLOP/s: 0.052 us; 4 x (16384 + 4096 + 16384) bytes at 2 TB/s: 0.074 us.
    assert make_scheme().sizes(ROWS).tolist() == pytest.approx([0.262144, 0.073728])
    big = ROWS.with_columns(k=pl.lit(4096.0))
    # 2 x 128 x 128 x 4096 FLOP at 10 TFLOP/s: 13.4 us against 8.5 us for the bytes.
    assert make_scheme().sizes(big)[0] == pytest.approx(13.4217728)


def test_columns_and_features_may_be_called_like_the_parts_of_the_roofline(make_scheme):
    scheme = make_scheme(
        numeric=("flops", "bytes"),
        derived={"peak_flops_per_s": "flops + 1"},
        shape=("flops",),
        by=(),
        slices=(),
        devices=None,
        roofline=Roofline("flops * 2", "flops + bytes", "1e6", "1e6"),
    )
    rows = pl.DataFrame({"flops": [3.0, 3.0], "bytes": [1.0, 7.0], "card": ["a", "a"], "kind": ["b", "b"]})
    assert scheme.sizes(rows).tolist() == pytest.approx([6.0, 10.0])
    assert scheme.features(rows)["peak_flops_per_s"].to_list() == [4.0, 4.0]


def test_device_without_figures_is_named(make_scheme):
    rows = ROWS.with_columns(card=pl.Series(["Card A", "Card X"]))
    with pytest.raises(SchemaError, match=r"1 of 2 rows have no roofline \(first: row 1, .*card=Card X\)"):
        make_scheme().sizes(rows)
    assert make_scheme().features(rows)["peak_tflops"].to_list() == [10.0, None]


@pytest.mark.parametrize("peak", ["0", "-1", "m - m", "NULL"])
def test_peak_that_is_not_positive_gives_no_roofline(make_scheme, peak):
    with pytest.raises(SchemaError, match="no roofline"):
        make_scheme(roofline=Roofline("m", "m", peak, "1e9")).sizes(ROWS)


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("s", 1e6)])
def test_label_is_read_in_its_unit(make_scheme, unit, factor):
    rows = ROWS.with_columns(latency=pl.Series([2.0, 5.0]))
    assert make_scheme(unit=unit).latency_us(rows).tolist() == [2.0 * factor, 5.0 * factor]
    column = make_scheme(unit=unit).table.column("latency")
    assert (column.unit, column.required, column.minimum) == (unit, True, 0)


def test_rows_without_a_sane_label_or_size_are_not_usable(make_scheme):
    rows = pl.concat([ROWS.head(1)] * 9).with_columns(
        latency=pl.Series([1.0, None, float("nan"), float("inf"), 0.0, -1.0, 1e-4, 1e14, 2.0]),
        card=pl.Series(["Card A"] * 8 + ["Card X"]),
    )
    scheme = make_scheme()
    assert scheme.usable(rows)["latency"].to_list() == [1.0]
    assert scheme.label_hint(rows) == (
        "collect more, or mend the spec (is the unit us?); 1 rows have no roofline"
    )
    # 0.0001 s are 100 us, 2 s and 1 s no less; 1e14 s is more than there is.
    assert make_scheme(unit="s").usable(rows)["latency"].to_list() == [1.0, 1e-4]


def test_label_or_columns_that_do_not_fit_are_refused(make_scheme):
    scheme, rows = make_scheme(), ROWS.with_columns(latency=pl.Series([1.0, 2.0]))
    with pytest.raises(SchemaError, match="column latency is missing"):
        scheme.usable(ROWS)
    with pytest.raises(SchemaError, match=r"missing k \(renamed to kk\?\)"):
        scheme.usable(rows.rename({"k": "kk"}))
    with pytest.raises(SchemaError, match="latency is String, needed is Float64"):
        scheme.usable(rows.with_columns(pl.col("latency").cast(pl.String)))
    with pytest.raises(SchemaError, match="column m is String, needed is Float64"):
        scheme.check(ROWS.with_columns(pl.col("m").cast(pl.String)), is_training=False)
    with pytest.raises(SchemaError, match="column kind is Float64, needed is String"):
        scheme.check(ROWS.with_columns(kind=pl.lit(1.0)), is_training=False)
    with pytest.raises(SchemaError, match="unknown z"):
        scheme.check(ROWS.with_columns(z=pl.lit(1)), is_training=False)
    with pytest.raises(SchemaError, match="missing row_id, latency"):
        scheme.check(ROWS, is_training=True)


def test_types_of_other_frames_read_the_same(make_scheme):
    scheme = make_scheme(derived={"tiles": "m / 128", "volume": "m * n * k * 1000000"}, roofline=None)
    other = ROWS.with_columns(pl.col("m", "n", "k").cast(pl.Int32), pl.col("kind").cast(pl.Categorical))
    scheme.check(other, is_training=False)
    # Whole numbers would divide to whole ones, and 32 bits would overflow.
    assert scheme.features(other).equals(scheme.features(ROWS))
    assert scheme.features(ROWS)["volume"][0] == 128.0 * 128 * 64 * 1e6
    assert scheme.shapes(other).to_list() == scheme.shapes(ROWS).to_list()
    assert fold_numbers(scheme, other).tolist() == fold_numbers(scheme, ROWS).tolist()
    empty = ROWS.with_columns(kind=pl.lit(None), card=pl.lit(None))
    assert scheme.features(empty)["kind"].to_list() == [None, None]


def test_shape_decides_the_side_of_a_split_and_everything_else_the_group(make_scheme):
    rows = pl.concat([ROWS.head(1), ROWS.head(1).with_columns(kind=pl.lit("tn")), ROWS.tail(1)])
    scheme = make_scheme()
    assert scheme.shapes(rows).n_unique() == 2
    assert scheme.groups(rows).n_unique() == 3
    assert make_scheme(shape=("k",)).shapes(rows).n_unique() == 1


def test_size_bands_are_decades_of_the_roofline(make_scheme):
    scheme = make_scheme(roofline=Roofline("0", "m", "1", "1e6"), derived={})
    rows = pl.concat([ROWS] * 3).with_columns(m=pl.Series([0.02, 0.1, 1.0, 9.99, 10.0, 12345.0]))
    assert scheme.size_bands(rows).to_list() == [
        "roofline 0.01 to 0.1 us",
        "roofline 0.1 to 1 us",
        "roofline 1 to 10 us",
        "roofline 1 to 10 us",
        "roofline 10 to 100 us",
        "roofline 10000 to 100000 us",
    ]
    assert make_scheme(roofline=None).size_bands(ROWS).to_list() == ["all", "all"]
    assert scheme.size_bands(ROWS.head(0)).to_list() == []


def test_times_are_numbers_or_dates_and_nothing_else(make_scheme):
    scheme = make_scheme(time="when")
    texts = [
        "17",
        " 2.5 ",
        "1970-01-02",
        "1970-01-01T00:01:00Z",
        "1970-01-01 02:00:00+02:00",
        "1970-01-01T00:00:05",
    ]
    texts += ["yesterday", "", "nan", "inf", None]
    rows = pl.DataFrame({"when": texts})
    assert scheme.times(rows).to_list() == [17.0, 2.5, 86400.0, 60.0, 0.0, 5.0, None, None, None, None, None]
    assert make_scheme().times(rows).null_count() == len(texts)
    assert scheme.times(ROWS).to_list() == [None, None]


def test_levels_go_from_all_groups_to_none(make_scheme):
    scheme = make_scheme(by=("card", "kind"))
    assert scheme.levels == (("card", "kind"), ("card",), ())
    assert scheme.interval_levels == (("card", "kind"), ("card",))
    assert dict(scheme.stated_factors) == {"card": 3.0, "kind": 3.0}
    assert make_scheme(by=()).levels == (("card",), ())
    assert make_scheme(by=("kind",)).levels == (("kind", "card"), ("kind",), ())
    assert make_scheme(by=(), slices=(), devices=None, roofline=None).levels == ((),)


def test_constraint_under_l1_is_refused_before_lightgbm_refuses_it(make_scheme):
    with pytest.raises(SettingsError, match="monotone goes with the objective l2 alone"):
        make_scheme(monotone={"m": 1}, parameters={"objective": "l1"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"roofline": None},
        {"devices": None, "roofline": None},
        {"by": (), "slices": ()},
        {"time": "when", "unit": "s", "parameters": {"objective": "l1", "trees": 7}},
        {"parameters": {"trees": 7}, "monotone": {"m": 1}},
    ],
)
def test_document_brings_the_same_scheme_back(make_scheme, changes):
    scheme = make_scheme(**changes)
    document = json.loads(json.dumps(scheme.to_document(), allow_nan=False))
    again = scheme_from_document(document)
    assert isinstance(again, TableScheme)
    assert again == scheme
    assert again.to_document() == scheme.to_document()
    assert again.features(ROWS).equals(scheme.features(ROWS))
    assert again.sizes(ROWS).tolist() == scheme.sizes(ROWS).tolist()


def test_damaged_document_is_a_model_file_error_and_nothing_else(make_scheme):
    whole = make_scheme(time="when", monotone={"m": 1}).to_document()
    strange: list[Any] = [
        None,
        True,
        0,
        -1.5,
        "",
        "x",
        [],
        [1],
        ["x"],
        [[]],
        {},
        {"x": {}},
        {"x": "y"},
        10**400,
    ]
    accepted = set()
    for path in places(whole):
        for wrong in ["absent", *strange]:
            document = copy.deepcopy(whole)
            holder: Any = document
            for step in path[:-1]:
                holder = holder[step]
            if wrong == "absent":
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            try:
                scheme = scheme_from_document(document)
            except ModelFileError:
                continue
            accepted.add(path[0])
            try:
                scheme.features(ROWS)
            except SchemaError:
                accepted.add("refused later")
    # What another value is as good for, or an empty list.
    assert accepted <= {
        "name", "target", "time", "text", "categorical", "by", "slices", "derived", "shape", "devices", "roofline",
        "promise_us", "promise_ratio", "parameters", "monotone",
    }  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all parts of a document."""
    steps = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [deeper for step in steps for deeper in [(*path, step), *places(node[step], (*path, step))]]


@pytest.mark.parametrize("kind", ["other", "", "launch"])
def test_document_of_another_kind_is_refused(make_scheme, kind):
    with pytest.raises(ModelFileError, match="this version cannot"):
        scheme_from_document({**make_scheme().to_document(), "kind": kind})
    with pytest.raises(ModelFileError, match="lacks kind"):
        scheme_from_document({})
    with pytest.raises(ModelFileError, match="is not a label of launches"):
        scheme_from_document({"kind": "launches", "target": "latency"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Kernels"}, "name is 'Kernels'"),
        ({"unit": "m"}, "unit is 'm'"),
        ({"numeric": ("m", "n", "k", "card")}, "card is named twice"),
        ({"derived": {"latency": "m"}}, "latency is named twice"),
        ({"devices": Devices("card", {"A": {"x": float("nan")}})}, "device A: x is nan"),
        ({"devices": Devices("card", {"A": {"x": True}})}, "device A: x is True"),  # type: ignore[dict-item]
        ({"numeric": (), "categorical": (), "derived": {}, "shape": ("card",)}, "no feature"),
        ({"promise_ratio": 0.0}, "a positive share"),
        ({"parameters": {"trees": 10**400}}, "training.trees is"),
    ],
)
def test_scheme_that_cannot_be_is_refused(make_scheme, changes, message):
    with pytest.raises(SettingsError, match=message):
        make_scheme(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"by": (), "slices": ()},
        {"by": (), "slices": (), "roofline": None},
        {"roofline": None},
        {"shape": ("m",)},
        {"by": ("kind", "card"), "slices": ("kind",)},
    ],
)
def test_any_choice_of_groups_and_baseline_trains_and_answers(make_scheme, kernels, changes):
    scheme = make_scheme(**changes)
    boosting = Boosting(trees=10, learning_rate=0.2)
    training = train_latency(scheme, kernels, boosting, threads=1)
    answer = training.model.predict(kernels)
    assert answer["never_seen"].list.len().sum() == 0
    assert training.metrics["mape_ratio"] < 1.01 * training.metrics["curve_mape_ratio"]
    assert 0.8 <= training.metrics["coverage_ratio"] <= 1.0
    # Neither a second run nor the order of the rows changes a byte, with groups or without.
    again = train_latency(scheme, kernels.reverse(), boosting, threads=1)
    assert again.model.to_files() == training.model.to_files()
    assert np.isfinite(answer["upper_us"].to_numpy()).all()


def test_without_a_roofline_the_baseline_is_the_middle_of_each_group(make_scheme, kernels):
    scheme = make_scheme(roofline=None, derived={}, by=("card",))
    training = train_latency(scheme, kernels, Boosting(trees=5), threads=1)
    curve = training.model.baseline.predict(kernels).latency_us
    for card in ("Card A", "Card B"):
        is_card = (kernels["card"] == card).to_numpy()
        assert len(set(curve[is_card].tolist())) == 1
        taught = kernels.filter(pl.Series(is_card & (fold_numbers(scheme, kernels) != 0)))["latency"]
        assert curve[is_card][0] == pytest.approx(taught.median())
