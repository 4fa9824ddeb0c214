"""Why the model answers as it does: per answer, along the size of a graph, and for flags that rarely matter.

Three questions, three answers that do not replace each other:

- `explain`: what made this one prediction what it is (SHAP, as factors on the latency and as microseconds).
- `partial_dependence`: how the predicted latency grows with the number of nodes, baseline included.
- `conditional_effects`: what a flag does where it is on. Gain importance says how much of the *whole* error a
  feature removed, so a saturated PCIe link that hits 2 % of launches and makes those 40 % slower ranks last,
  and SHAP shares a part of it out to other features; the effect given the flag does not depend on how often it
  is on, and needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import SchemaError
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.scheme import FloatArray
from warpgauge.tables import LAUNCHES

BoolArray = npt.NDArray[np.bool_]
PredictUs = Callable[[pl.DataFrame], FloatArray]
SetSize = Callable[[pl.DataFrame, int], pl.DataFrame]

BASELINE_LINE = "physics baseline"
AVERAGE_LINE = "average over the baseline"
OTHERS_LINE = "other features"
# Below this a contribution is the rounding of the sum over trees.
_LEAST_CONTRIBUTION = 1e-12

# The middle 80 % of the rows: what a size alone leaves open.
BAND_QUANTILES = (0.1, 0.9)
GRID_POINTS = 24
ROWS_A_GROUP = 200
# A row of 4 lines can have 4, 8, 12... nodes: it stands for a size that it misses by at most this.
SIZE_TOLERANCE_RATIO = 0.1

# With fewer on one side a median and its interval say little: the chance alone that 20 draws of the same
# noise lie on one side decides it.
LEAST_ROWS = 20
# The others of a stratum are compared with their median, which needs some.
LEAST_OFF_ROWS_A_STRATUM = 5
CONFIDENCE_RATIO = 0.95
RESAMPLES = 400
# More rows only take time and memory: under 10 % of noise the median of 2,000 is known to 0.3 %.
LARGEST_ON_ROWS = 5_000
LARGEST_OFF_ROWS_A_STRATUM = 2_000

EFFECT_SCHEMA = pl.Schema(
    {
        "flag": pl.String,
        "finding": pl.String,
        "reason": pl.String,
        "on_count": pl.Int64,
        "off_count": pl.Int64,
        "missing_count": pl.Int64,
        "on_ratio": pl.Float64,
        "compared_count": pl.Int64,
        "on_residual_log": pl.Float64,
        "off_residual_log": pl.Float64,
        "effect_percent": pl.Float64,
        "lower_percent": pl.Float64,
        "upper_percent": pl.Float64,
        "left_in_model_percent": pl.Float64,
        "gain_ratio": pl.Float64,
        "gain_rank": pl.Int64,
    }
)
DEPENDENCE_SCHEMA = pl.Schema(
    {
        "group": pl.String,
        "node_count": pl.Int64,
        "median_us": pl.Float64,
        "lower_us": pl.Float64,
        "upper_us": pl.Float64,
        "row_count": pl.Int64,
    }
)


def explain(
    booster: CategoricalBooster,
    features: pl.DataFrame,
    baseline_us: FloatArray,
    *,
    shown_count: int | None = 8,
) -> list[list[dict[str, Any]]]:
    """What made each prediction what it is.

    The prediction is baseline x exp(sum of contributions), so a contribution c is a factor exp(c) on the
    latency. Factors have no order; microseconds come from sharing out (prediction - baseline) in proportion
    to the contributions, which sums up exactly whatever the order (the logarithmic mean of both ends is the
    rate).

    Args:
        booster: Trees on the log ratio of latency to the baseline.
        features: The booster's columns, one row a launch.
        baseline_us: What the baseline says of the same rows, above 0.
        shown_count: Features named, by size of effect; the rest is one line. None for all that have any.

    Returns:
        For each row its lines, JSON values only, each `{feature, value, factor_percent, share_us}`:
        BASELINE_LINE first (value and share: its microseconds; no factor), then AVERAGE_LINE (by how much
        training launches lie off the baseline on average), then the features with the value that the row
        has (null if missing), OTHERS_LINE last. `factor_percent` is 100 x (exp(c) - 1): +40 is 1.4 times as
        long, 0 is no effect. `share_us` over all lines sums to the prediction.

    Raises:
        SchemaError: If columns do not fit, or the baseline is not one positive number a row.
    """
    baseline = _positive("baseline_us", baseline_us, features.height)
    contributions = booster.contributions(features)
    total = contributions.sum(axis=1)
    # The logarithmic mean (b - a) / ln(b / a) of baseline a and prediction b; a where both are equal.
    small = np.abs(total) < 1e-9
    mean = baseline * np.where(small, 1.0, np.expm1(total) / np.where(small, 1.0, total))
    names = booster.table.names
    values = features.select(names).rows()
    answers = []
    for row, (log_factors, rate) in enumerate(zip(contributions, mean, strict=True)):
        effects, average = log_factors[:-1], float(log_factors[-1])
        order = np.argsort(-np.abs(effects), kind="stable")
        order = order[np.abs(effects[order]) > _LEAST_CONTRIBUTION]
        shown = order if shown_count is None else order[:shown_count]
        lines = [
            {
                "feature": BASELINE_LINE,
                "value": float(baseline[row]),
                "factor_percent": None,
                "share_us": float(baseline[row]),
            },
            _line(AVERAGE_LINE, None, average, rate),
        ]
        lines += [_line(names[i], _plain(values[row][i]), float(effects[i]), rate) for i in shown]
        if len(shown) < len(order):
            lines.append(_line(OTHERS_LINE, None, float(np.sum(effects[order[len(shown) :]])), rate))
        answers.append(lines)
    return answers


def partial_dependence(
    predict_us: PredictUs,
    rows: pl.DataFrame,
    set_size: SetSize,
    grid: Sequence[int] | None = None,
    *,
    sizes: FloatArray | None = None,
    groups: Sequence[str] = ("topology", "line_count"),
    rows_a_group: int = ROWS_A_GROUP,
) -> pl.DataFrame:
    """Predicted latency by size: the same launches, each made longer or shorter.

    A curve for each group, because lines and mixed graphs are different populations: one curve over all
    would jump where one of them ends. A group is shown between the sizes that were seen of it, and a row
    stands for a size only if it can have that size to 10 % (4 lines have 4, 8, 12... nodes).

    Args:
        predict_us: `LatencyModel.predict_us`, or anything like it; baseline included.
        rows: Launches to vary, with what `predict_us` needs.
        set_size: Gives the rows another size, in `node_count`; `set_node_count` for launches.
        grid: Sizes to show, None for GRID_POINTS at equal ratio between those of the rows.
        sizes: Size of each row, None for the node count of launches.
        groups: Columns of the groups; null is a value.
        rows_a_group: Rows of a group at most, evenly spread over its order of size.

    Returns:
        DEPENDENCE_SCHEMA, sorted by group and size: median and middle 80 % of the predictions.

    Raises:
        SchemaError: If there is no row, a size is missing, or the grid holds something else than sizes.
    """
    if not rows.height:
        raise SchemaError("no row to vary the size of; give at least one")
    size = _positive("node_count", _node_counts(rows) if sizes is None else sizes, rows.height)
    points = size_grid(size) if grid is None else sorted(set(grid))
    if not points or points[0] < 1:
        raise SchemaError(f"sizes of the grid are whole numbers of at least 1, found {list(points)!r:.80}")
    names = [name for name in groups if name in rows.columns]
    label = _group_labels(rows, names)
    parts, places = [], []
    for name in sorted(set(label)):
        members = np.flatnonzero(label == name)
        members = members[np.argsort(size[members], kind="stable")]
        kept = members[
            np.unique(np.linspace(0, len(members) - 1, min(rows_a_group, len(members))).astype(int))
        ]
        seen = [point for point in points if size[members[0]] <= point <= size[members[-1]]]
        for point in seen:
            changed = set_size(rows[kept], point)
            reached = changed.get_column("node_count").cast(pl.Float64).to_numpy()
            stands = np.abs(reached / point - 1.0) <= SIZE_TOLERANCE_RATIO
            if stands.any():
                parts.append(changed.filter(pl.Series(stands)))
                places.append((name, point, int(stands.sum())))
    if not parts:
        return pl.DataFrame(schema=DEPENDENCE_SCHEMA)
    predicted = np.split(
        np.asarray(predict_us(pl.concat(parts))), np.cumsum([count for _, _, count in places])[:-1]
    )
    return pl.DataFrame(
        [
            {
                "group": name,
                "node_count": point,
                "median_us": float(np.median(values)),
                "lower_us": float(np.quantile(values, BAND_QUANTILES[0])),
                "upper_us": float(np.quantile(values, BAND_QUANTILES[1])),
                "row_count": count,
            }
            for (name, point, count), values in zip(places, predicted, strict=True)
        ],
        schema=DEPENDENCE_SCHEMA,
    )


def size_grid(sizes: FloatArray, points: int = GRID_POINTS) -> list[int]:
    """Whole sizes at equal ratio from the smallest to the largest, at most `points`."""
    low, high = float(np.min(sizes)), float(np.max(sizes))
    return sorted({round(value) for value in np.geomspace(low, high, points)})


def set_node_count(launches: pl.DataFrame, node_count: int) -> pl.DataFrame:
    """The same launches with (about) that many nodes: the same shape, longer or shorter.

    A graph of lines keeps the number of its lines and changes their length, so it takes the nearest number
    of nodes that such lines can have. Any other graph is repeated end to end or cut: nodes of each type,
    edges, depth, bytes and blocks change in proportion, width, roots, leaves and the launch configuration of its kernels
    stay. Whatever else is derived (nodes a line, shares, logarithm, the baseline) follows from these
    columns when the model reads them.

    Args:
        launches: Rows of the launches table; columns that are absent stay absent, nulls stay null.
        node_count: Wanted size, at least 1.

    Returns:
        The same rows and columns; `node_count` holds the size that each row got.
    """
    old = _node_counts(launches)
    lines, length = _column(launches, "line_count"), _column(launches, "line_length")
    is_line = np.isfinite(lines) & np.isfinite(length)
    # A fork or join beside the lines is a node that does not grow with them.
    beside = np.where(is_line, np.maximum(old - lines * length, 0.0), 0.0)
    count = np.where(is_line, lines, 1.0)
    new_length = np.where(is_line, np.maximum(np.round((node_count - beside) / count), 1.0), np.nan)
    new = np.where(is_line, new_length * count + beside, float(node_count))
    ratio = new / old
    grown = np.where(is_line, new_length - length, np.nan)
    changed: dict[str, FloatArray] = {"node_count": new, "line_length": new_length}
    changed["edge_count"] = np.where(
        is_line,
        _column(launches, "edge_count") + count * grown,
        np.round(_column(launches, "edge_count") * ratio),
    )
    depth = _column(launches, "depth")
    changed["depth"] = np.where(is_line, depth + grown, np.clip(np.round(depth * ratio), 1.0, new))
    changed |= _scaled_kinds(launches, ratio)
    for name in _PROPORTIONAL:
        changed[name] = np.round(_column(launches, name) * ratio)
    return launches.with_columns(
        pl.Series(name, values).fill_nan(None).cast(LAUNCHES.schema[name])
        for name, values in changed.items()
        if name in launches.columns
    )


_KINDS = ("kernel_count", "memcpy_count", "memset_count", "other_node_count")
_PROPORTIONAL = (
    "memcpy_bytes",
    "memcpy_htod_bytes",
    "memcpy_dtoh_bytes",
    "memcpy_dtod_bytes",
    "memset_bytes",
    "block_count_total",
)


def conditional_effects(
    flags: pl.DataFrame,
    actual_us: FloatArray,
    expected_us: FloatArray,
    strata: pl.DataFrame,
    *,
    predicted_us: FloatArray | None = None,
    graphs: pl.Series | None = None,
    importance: Mapping[str, float] | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """What each flag does to the latency where it is on, whatever its share or its importance.

    The residual of a row is ln(actual / expected). Rows with the flag on are compared with the median of
    those with it off in the same stratum, and the median of these differences is the effect: a factor on
    the latency, given the flag, beside what `expected_us` already accounts for. The interval is a bootstrap
    over both sides (95 %). It says what goes with the flag, which is its cause only if nothing else does.

    Args:
        flags: One Boolean column a flag (or 0 and 1), null where not known.
        actual_us: Measured latency.
        expected_us: What is expected without knowledge of the flags: the physics baseline. A column that
            the baseline itself tells groups apart by has no effect left here.
        strata: Columns that rows must agree in to be compared: size band, GPU, topology; null is a value.
        predicted_us: What the model predicts, flags included: `left_in_model_percent` is then the part of
            the effect that it did not learn. Give predictions of held-out rows.
        graphs: Name of each row's graph: trials of one graph are not independent, so each graph counts once
            on each side, by its median, and the interval is over graphs.
        importance: Gain by feature name (`CategoricalBooster.importance`), to stand beside.
        seed: Of the bootstrap; the same rows and seed give the same interval.

    Returns:
        EFFECT_SCHEMA, one row a flag in the order given. `finding` is `slower`, `faster`, `no effect seen`
        (the interval holds 0) or `cannot say` with a reason (a side with under LEAST_ROWS rows, or none to
        compare with). `compared_count` are the rows (graphs, where given) with the flag on that the effect
        is the median of.

    Raises:
        SchemaError: If lengths differ, a latency is not positive, or a column is no flag.
    """
    count = flags.height
    if strata.height != count and strata.width:
        raise SchemaError(f"strata has {strata.height} rows, flags has {count}; give one row each")
    if graphs is not None and len(graphs) != count:
        raise SchemaError(f"graphs has {len(graphs)} rows, flags has {count}; give one value each")
    actual = _positive("actual_us", actual_us, count)
    residual = np.log(actual / _positive("expected_us", expected_us, count))
    left = None
    if predicted_us is not None:
        left = np.log(actual / _positive("predicted_us", predicted_us, count))
    stratum = _codes(strata.select(pl.all().cast(pl.String)), count)
    graph = None if graphs is None else _codes(graphs.alias("graph").to_frame(), count)
    gains = dict(importance or {})
    ranks = {name: place for place, name in enumerate(sorted(gains, key=lambda one: -gains[one]), start=1)}
    total_gain = sum(gains.values())
    found = []
    for name in flags.columns:
        value = _flag_values(flags, name)
        is_on, is_off = value == 1.0, value == 0.0
        entry: dict[str, Any] = {
            "flag": name,
            "on_count": int(is_on.sum()),
            "off_count": int(is_off.sum()),
            "missing_count": int(np.isnan(value).sum()),
            "on_ratio": float(is_on.sum() / max(is_on.sum() + is_off.sum(), 1)),
            "compared_count": 0,
            "on_residual_log": float(np.median(residual[is_on])) if is_on.any() else None,
            "off_residual_log": float(np.median(residual[is_off])) if is_off.any() else None,
            "gain_ratio": gains[name] / total_gain if name in gains and total_gain > 0 else None,
            "gain_rank": ranks.get(name),
        }
        entry |= _effect(residual, is_on, is_off, stratum, graph, seed)
        if entry["finding"] != CANNOT_SAY and left is not None:
            entry["left_in_model_percent"] = _effect(left, is_on, is_off, stratum, graph, seed)[
                "effect_percent"
            ]
        found.append(entry)
    return pl.DataFrame(found, schema=EFFECT_SCHEMA)


CANNOT_SAY = "cannot say"


def _effect(
    residual: FloatArray,
    is_on: BoolArray,
    is_off: BoolArray,
    stratum: npt.NDArray[np.int64],
    graph: npt.NDArray[np.int64] | None,
    seed: int,
) -> dict[str, Any]:
    """Finding, reason, compared_count and the effect with its interval, in percent."""
    on_values, on_strata = _units(residual, is_on, stratum, graph)
    off_values, off_strata = _units(residual, is_off, stratum, graph)
    what = "rows" if graph is None else "graphs"
    for side, values in (("on", on_values), ("off", off_values)):
        if len(values) < LEAST_ROWS:
            return _silent(f"{len(values)} {what} with the flag {side}, at least {LEAST_ROWS} are needed")
    random = np.random.default_rng(seed)
    differences, resampled, unmatched = [], [], 0
    for code in np.unique(on_strata):
        on = on_values[on_strata == code]
        off = off_values[off_strata == code]
        if len(off) < LEAST_OFF_ROWS_A_STRATUM:
            unmatched += len(on)
            continue
        share = max(1, round(LARGEST_ON_ROWS * len(on) / len(on_values)))
        on = random.permutation(on)[:share]
        off = random.permutation(off)[:LARGEST_OFF_ROWS_A_STRATUM]
        differences.append(on - np.median(off))
        off_medians = np.median(off[random.integers(0, len(off), (RESAMPLES, len(off)))], axis=1)
        resampled.append(on[random.integers(0, len(on), (RESAMPLES, len(on)))] - off_medians[:, None])
    compared = sum(map(len, differences))
    if compared < LEAST_ROWS:
        return _silent(
            f"{unmatched} of {len(on_values)} {what} with the flag on have too few with it off in their "
            f"stratum, {compared} can be compared, at least {LEAST_ROWS} are needed"
        ) | {"compared_count": compared}
    effect = float(np.median(np.concatenate(differences)))
    tail = (1.0 - CONFIDENCE_RATIO) / 2
    lower, upper = np.quantile(np.median(np.concatenate(resampled, axis=1), axis=1), [tail, 1.0 - tail])
    return {
        "finding": "slower" if lower > 0 else "faster" if upper < 0 else "no effect seen",
        "reason": f"{unmatched} {what} with the flag on have none to compare with" if unmatched else None,
        "compared_count": compared,
        "effect_percent": _percent(effect),
        "lower_percent": _percent(float(lower)),
        "upper_percent": _percent(float(upper)),
    }


def _silent(reason: str) -> dict[str, Any]:
    return {
        "finding": CANNOT_SAY,
        "reason": reason,
        "effect_percent": None,
        "lower_percent": None,
        "upper_percent": None,
    }


def _units(
    residual: FloatArray,
    chosen: BoolArray,
    stratum: npt.NDArray[np.int64],
    graph: npt.NDArray[np.int64] | None,
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Residual and stratum of each independent observation: a row, or the median of a graph's rows."""
    if graph is None:
        return residual[chosen], stratum[chosen]
    medians = (
        pl.DataFrame({"residual": residual[chosen], "stratum": stratum[chosen], "graph": graph[chosen]})
        .group_by("stratum", "graph", maintain_order=True)
        .agg(pl.col("residual").median())
    )
    return medians["residual"].to_numpy(), medians["stratum"].to_numpy()


def _flag_values(flags: pl.DataFrame, name: str) -> FloatArray:
    """1.0 on, 0.0 off, NaN not known."""
    column = flags.get_column(name)
    if column.dtype not in (pl.Boolean, pl.Null) and not column.dtype.is_numeric():
        raise SchemaError(f"flags: column {name} is {column.dtype}, needed is a flag (Boolean, or 0 and 1)")
    values = column.cast(pl.Float64).to_numpy().astype(np.float64)
    bad = np.flatnonzero(~np.isnan(values) & (values != 0.0) & (values != 1.0))
    if len(bad):
        raise SchemaError(
            f"flags: column {name} holds {values[bad[0]]:g} at row {bad[0]}, needed is a flag (Boolean, or 0 "
            f"and 1); cut a quantity at its threshold first"
        )
    return values


def _positive(name: str, values: FloatArray, count: int) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    if found.shape != (count,):
        raise SchemaError(f"{name} has shape {found.shape}, needed is one value for each of {count} rows")
    bad = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(bad):
        raise SchemaError(f"{name} is {found[bad[0]]:g} at row {bad[0]}, needed is a number above 0")
    return found


def _codes(frame: pl.DataFrame, count: int) -> npt.NDArray[np.int64]:
    """A number for each combination of values, null being a value."""
    if not frame.width:
        return np.zeros(count, dtype=np.int64)
    return frame.select(pl.struct(pl.all()).rank("dense").cast(pl.Int64)).to_series().to_numpy()


def _group_labels(rows: pl.DataFrame, names: Sequence[str]) -> npt.NDArray[np.str_]:
    if not names:
        return np.full(rows.height, "all")
    text = [pl.col(name).cast(pl.String) for name in names]
    label = rows.select(pl.concat_str(text, separator=" x ", ignore_nulls=True).alias("label"))
    return label.get_column("label").replace("", "unknown").to_numpy().astype(str)


def _column(launches: pl.DataFrame, name: str) -> FloatArray:
    """Values as floats, NaN where null or where the frame lacks the column."""
    if name not in launches.columns:
        return np.full(launches.height, np.nan)
    return launches.get_column(name).cast(pl.Float64).to_numpy().astype(np.float64)


def _node_counts(launches: pl.DataFrame) -> FloatArray:
    """As stated, else length x lines; NaN if neither is known."""
    stated = _column(launches, "node_count")
    by_lines = _column(launches, "line_length") * _column(launches, "line_count")
    return np.where(np.isnan(stated), by_lines, stated)


def _scaled_kinds(launches: pl.DataFrame, ratio: FloatArray) -> dict[str, FloatArray]:
    """Nodes of each type in proportion, whole, and their sum in proportion too."""
    changed: dict[str, FloatArray] = {}
    before, scaled_before = np.zeros(launches.height), np.zeros(launches.height)
    for name in _KINDS:
        count = _column(launches, name)
        # Rounding the running sum instead of each part keeps the parts adding up to the whole.
        upto = before + np.nan_to_num(count)
        scaled_upto = np.round(upto * ratio)
        changed[name] = np.where(np.isnan(count), np.nan, scaled_upto - scaled_before)
        before, scaled_before = upto, scaled_upto
    return changed


def _line(feature: str, value: float | str | None, log_factor: float, rate: float) -> dict[str, Any]:
    return {
        "feature": feature,
        "value": value,
        "factor_percent": _percent(log_factor),
        "share_us": float(rate * log_factor),
    }


def _percent(log_factor: float) -> float:
    return float(100.0 * np.expm1(log_factor))


def _plain(value: object) -> float | str | None:
    """A feature's value as JSON has it: a number, a name, or null where it is missing."""
    if value is None or isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    return number if np.isfinite(number) else None
