"""warpgauge/latency/folds.py: the side of a split that a shape is on, today and in a year."""

import hashlib

import polars as pl

from warpgauge.latency.folds import FOLD_COUNT, GATE_FOLD, LEAST_TRAINING_FOLDS, fold_numbers


def test_fold_of_a_shape_never_changes(make_scheme):
    rows = pl.DataFrame({"m": [32.0, 32.0, 2048.0], "n": [64.0, None, 1.5], "k": [128.0, 128.0, 7.0]})
    # First 8 hexadecimal digits of the SHA-256 of these texts, modulo 5.
    texts = ["32.0|64.0|128.0", "32.0||128.0", "2048.0|1.5|7.0"]
    expected = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 5 for text in texts]
    assert expected == [0, 2, 4]
    assert fold_numbers(make_scheme(), rows).tolist() == expected


def test_rows_of_one_shape_share_a_fold_whatever_measured_them(make_scheme, kernels):
    scheme = make_scheme()
    folds = kernels.with_columns(fold=pl.Series(fold_numbers(scheme, kernels)), shape=scheme.shapes(kernels))
    assert folds.group_by("shape").agg(pl.col("fold").n_unique())["fold"].unique().to_list() == [1]
    assert sorted(folds["fold"].unique()) == list(range(FOLD_COUNT))
    assert GATE_FOLD in folds["fold"]
    assert LEAST_TRAINING_FOLDS < FOLD_COUNT


def test_fold_depends_on_neither_order_nor_company(make_scheme, kernels):
    scheme = make_scheme()
    folds = dict(zip(kernels["row_id"], fold_numbers(scheme, kernels).tolist(), strict=True))
    some = kernels.sample(50, seed=3)
    assert fold_numbers(scheme, some).tolist() == [folds[name] for name in some["row_id"]]
    assert fold_numbers(scheme, kernels.head(0)).tolist() == []
