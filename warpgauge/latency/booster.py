"""A LightGBM model that knows its own inputs: names, order, types and category tables.

LightGBM matches columns by position and takes category codes as they come: a frame in another order, or codes
counted anew in each batch, give silently wrong numbers. Here the frame is matched by name, the codes come
from a table that is stored with the trees, and whatever was never seen in training is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from warpgauge.accelerate import tie_breaking
from warpgauge.errors import ModelFileError, SchemaError, TrainingError
from warpgauge.latency.features import column_mismatch
from warpgauge.latency.predictor import Predictor
from warpgauge.latency.scheme import FloatArray
from warpgauge.latency.sealed_files import check_text_outline, seal, take, take_names, take_number, unseal
from warpgauge.latency.tree_text import read_forest

FORMAT = "warpgauge-booster-1"
MISSING = "missing"
# Beyond this a category is an identifier, not a kind: LightGBM's own advice is to treat it as a number.
LARGEST_CATEGORY_COUNT = 10_000
_THREADS = re.compile(r"\[num_threads: -?\d+\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class NumericFeature:
    """A number as the booster saw it in training.

    Attributes:
        name: Column name.
        has_missing: Whether training rows lacked it. If not, the trees have no branch for a missing value
            (LightGBM would read it as 0), so one is answered with the median and named as never seen.
        median: Median of the training rows.
        smallest, largest: Range of the training rows.
    """

    name: str
    has_missing: bool
    median: float
    smallest: float
    largest: float


@dataclass(frozen=True)
class CategoricalFeature:
    """A category as the booster saw it in training.

    Attributes:
        name: Column name.
        categories: Values in code order: the code of a value is its place here.
        has_missing: Whether training rows lacked it.
    """

    name: str
    categories: tuple[str, ...]
    has_missing: bool


@dataclass(frozen=True)
class FeatureTable:
    """The inputs of a booster, in its order: numeric ones first, then categorical ones."""

    numeric: tuple[NumericFeature, ...]
    categorical: tuple[CategoricalFeature, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names in the booster's order."""
        return tuple(f.name for f in self.numeric) + tuple(f.name for f in self.categorical)

    def check(self, frame: pl.DataFrame) -> None:
        """Stop unless the frame has exactly these columns, in any order, each of a type that fits.

        Raises:
            SchemaError: Naming the missing, unknown and ill-typed columns.
        """
        missing = [name for name in self.names if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in self.names]
        if missing or unknown:
            raise SchemaError(column_mismatch("features", missing, unknown))
        for feature in self.numeric:
            _check_numeric(frame, feature.name)
        for category in self.categorical:
            _check_categorical(frame, category.name)

    def encode(self, frame: pl.DataFrame) -> FloatArray:
        """The booster's matrix, shape (rows, features): NaN where missing, -1 where a category is unseen.

        Raises:
            SchemaError: See `check`.
        """
        self.check(frame)
        matrix = np.empty((frame.height, len(self.names)))
        for place, feature in enumerate(self.numeric):
            values = _numbers(frame, feature.name)
            matrix[:, place] = (
                values if feature.has_missing else np.where(np.isnan(values), feature.median, values)
            )
        for place, category in enumerate(self.categorical, start=len(self.numeric)):
            matrix[:, place] = _codes(frame, category)
        return matrix

    def never_seen(self, frame: pl.DataFrame) -> list[list[str]]:
        """For each row what training never showed: `gpu=B200`, or `gpu=missing` if it was never missing.

        Raises:
            SchemaError: See `check`.
        """
        self.check(frame)
        found: list[list[str]] = [[] for _ in range(frame.height)]
        for category in self.categorical:
            codes = _codes(frame, category)
            names = frame.get_column(category.name).cast(pl.String)
            for row in np.flatnonzero(codes < 0):
                found[row].append(f"{category.name}={names[int(row)]}")
            if not category.has_missing:
                for row in np.flatnonzero(np.isnan(codes)):
                    found[row].append(f"{category.name}={MISSING}")
        for feature in self.numeric:
            if not feature.has_missing:
                for row in np.flatnonzero(np.isnan(_numbers(frame, feature.name))):
                    found[row].append(f"{feature.name}={MISSING}")
        return found

    def to_document(self) -> dict[str, Any]:
        """As JSON values, in order."""
        return {
            "numeric": [
                {
                    "name": f.name,
                    "dtype": "Float64",
                    "has_missing": f.has_missing,
                    "median": f.median,
                    "smallest": f.smallest,
                    "largest": f.largest,
                }
                for f in self.numeric
            ],
            "categorical": [
                {
                    "name": f.name,
                    "dtype": "String",
                    "has_missing": f.has_missing,
                    "categories": list(f.categories),
                }
                for f in self.categorical
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FeatureTable:
        """Back from JSON values.

        Raises:
            ModelFileError: If a part is absent or of another kind.
        """
        numeric, categorical = [], []
        for entry in take(document, "numeric", list):
            numeric.append(
                NumericFeature(
                    take(entry, "name", str),
                    take(entry, "has_missing", bool),
                    take_number(entry, "median"),
                    take_number(entry, "smallest"),
                    take_number(entry, "largest"),
                )
            )
        for entry in take(document, "categorical", list):
            values = take_names(entry, "categories")
            if not values or len(set(values)) < len(values):
                raise ModelFileError(
                    f"the category table of {take(entry, 'name', str)} is empty or repeats a value; "
                    f"train a new version"
                )
            categorical.append(
                CategoricalFeature(take(entry, "name", str), values, take(entry, "has_missing", bool))
            )
        return cls(tuple(numeric), tuple(categorical))


class CategoricalBooster:
    """Trees and the table of their inputs, which are only ever used together."""

    def __init__(self, table: FeatureTable, text: str) -> None:
        """Take LightGBM's text after checking it against the table.

        Raises:
            ModelFileError: If the text is not whole or has other features.
        """
        check_text_outline(text, table.names)
        import lightgbm

        self.table = table
        self.text = text
        self._booster = lightgbm.Booster(model_str=text)
        self._predictor: Predictor | None = None

    def compile(self, cache_dir: Path | None = None) -> Predictor:
        """Answer from now on by the compiled form of the trees: the same numbers, many times faster.

        Worth it where a model answers again and again or many rows; making it takes up to half a second.

        Args:
            cache_dir: Where the compiled kernel is kept; None keeps it for this process alone.

        Returns:
            The predictor, which also answers single rows of `table.encode`; its `engine` and `reason` say what
            serves where nothing could be compiled.

        Raises:
            ModelFileError: If the trees are damaged.
            SettingsError: If others can write in the folder.
        """
        self._predictor = Predictor.compile(self.text, cache_dir=cache_dir)
        return self._predictor

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        target: FloatArray,
        numeric: Sequence[str],
        categorical: Sequence[str],
        params: Mapping[str, Any],
        *,
        rounds: int = 100,
        weight: FloatArray | None = None,
        validation: tuple[pl.DataFrame, FloatArray, FloatArray | None] | None = None,
        early_stopping_rounds: int = 50,
        text_limit_bytes: int | None = None,
        monotone: Mapping[str, int] | None = None,
        start: CategoricalBooster | None = None,
    ) -> CategoricalBooster:
        """Fit on the rows of a frame.

        Args:
            frame: Exactly the columns of `numeric` and `categorical`, in any order.
            target: One finite number a row.
            numeric: Columns taken as numbers (flags as 0 and 1).
            categorical: Columns of text; their table is taken from these rows and stored.
            params: LightGBM parameters.
            rounds: Most boosting rounds.
            weight: One positive weight a row, None for equal ones.
            validation: Held-out rows (frame, target, weight) that stop the boosting early, None for none.
            early_stopping_rounds: Rounds without a better RMSE on the held-out rows before it stops.
            text_limit_bytes: Later trees are left out until the text is at most this long, None for any.
            monotone: Feature -> 1 or -1 where the answer may only rise or fall with it.
            start: Trees to go on from; its table of inputs is kept, and its trees come first in the text.

        Raises:
            SchemaError: If columns do not fit.
            TrainingError: If the target is not finite, or LightGBM cannot train on this input or device.
        """
        import lightgbm

        if not np.all(np.isfinite(target)):
            raise TrainingError(
                f"{int((~np.isfinite(target)).sum())} of {len(target)} targets are not finite; drop these rows"
            )
        table = _read_table(frame, numeric, categorical) if start is None else start.table
        codes = [table.names.index(name) for name in categorical]
        params = {"feature_contri": tie_breaking(len(table.names)), **params}
        if monotone:
            params = {**params, "monotone_constraints": [monotone.get(name, 0) for name in table.names]}
        try:
            train = lightgbm.Dataset(
                table.encode(frame),
                target,
                weight=weight,
                feature_name=list(table.names),
                categorical_feature=codes,
                params={"verbosity": -1},
            )
            held_out: list[Any] = []
            callbacks: list[Callable[..., Any]] = []
            if validation is not None:
                rows, values, row_weight = validation
                held_out = [lightgbm.Dataset(table.encode(rows), values, weight=row_weight, reference=train)]
                callbacks = [lightgbm.early_stopping(early_stopping_rounds, verbose=False)]
            booster = lightgbm.train(
                {"objective": "regression", "metric": "rmse", "verbosity": -1, **params},
                train,
                rounds,
                valid_sets=held_out,
                callbacks=callbacks,
                init_model=None if start is None else start._booster,
            )
        except lightgbm.basic.LightGBMError as error:
            raise TrainingError(
                f"LightGBM cannot train on {frame.height} rows with {dict(params)}: {error}; "
                f"where the device is the cause, set latency_device to cpu"
            ) from error
        kept = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
        text = booster.model_to_string(num_iteration=kept)
        while text_limit_bytes is not None and len(text) > text_limit_bytes and kept > 1:
            kept = max(1, min(kept - 1, _trees_within(text, text_limit_bytes)))
            text = booster.model_to_string(num_iteration=kept)
        # The one line that tells the machine: the same rows give the same bytes on any number of threads.
        return cls(table, _THREADS.sub("[num_threads: 0]", text))

    @property
    def tree_count(self) -> int:
        """Boosting rounds kept."""
        return int(self._booster.num_trees())

    def predict(self, frame: pl.DataFrame) -> FloatArray:
        """One number a row. Column order does not matter; the names and types do.

        A category that training never saw is answered with the mean over the known ones, which is neither
        the answer for a missing value nor that of any one of them.

        Raises:
            SchemaError: If a column is missing, unknown, renamed or of another type.
        """
        if not frame.height:
            self.table.check(frame)
            return np.empty(0)
        return self._answer(self.table.encode(frame), self._predict)

    def contributions(self, frame: pl.DataFrame) -> FloatArray:
        """What each feature adds to each prediction: exact SHAP values of the trees, by LightGBM itself.

        LightGBM computes TreeSHAP (path-dependent: what is typical is read from the training rows that
        passed each node), so no further package is needed.

        Returns:
            Shape (rows, features + 1), in the unit of the target: one column a feature in the table's order,
            then the base value, the mean prediction over the training rows. Each row sums to `predict`.

        Raises:
            SchemaError: See `predict`.
        """
        if not frame.height:
            self.table.check(frame)
            return np.empty((0, len(self.table.names) + 1))
        return self._answer(self.table.encode(frame), self._contribute)

    def never_seen(self, frame: pl.DataFrame) -> list[list[str]]:
        """What training never showed, one list a row; see `FeatureTable.never_seen`."""
        return self.table.never_seen(frame)

    def importance(self) -> dict[str, float]:
        """Gain of each feature over all splits, largest first."""
        gains = self._booster.feature_importance(importance_type="gain")
        pairs = sorted(zip(self.table.names, gains, strict=True), key=lambda pair: (-pair[1], pair[0]))
        return {name: float(gain) for name, gain in pairs}

    def to_files(self) -> dict[str, bytes]:
        """`model.txt` and `model.json`; no pickle."""
        return seal({"format": FORMAT, "features": self.table.to_document()}, self.text)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> CategoricalBooster:
        """Back from `to_files`.

        Raises:
            ModelFileError: If a file is absent (a text without its category table too), truncated or altered.
        """
        document, text = unseal(files, FORMAT)
        read_forest(text)
        return cls(FeatureTable.from_document(take(document, "features", dict)), text)

    def _predict(self, matrix: FloatArray) -> FloatArray:
        if self._predictor is not None:
            return self._predictor.predict(matrix)
        # One thread: LightGBM's threads spin, and waking them costs more than a small batch.
        return np.asarray(self._booster.predict(matrix, num_threads=1), dtype=np.float64)

    def _contribute(self, matrix: FloatArray) -> FloatArray:
        return np.asarray(self._booster.predict(matrix, num_threads=1, pred_contrib=True), dtype=np.float64)

    def _answer(self, matrix: FloatArray, ask: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """What the trees say of each row; for an unseen category the mean over the known ones."""
        some = np.flatnonzero((matrix[:, len(self.table.numeric) :] < 0).any(axis=1))
        if not len(some):
            return ask(matrix)
        over = self._ask_over_categories(matrix[some], ask)
        answers = np.empty((len(matrix), *over.shape[1:]))
        answers[some] = over
        known = np.ones(len(matrix), dtype=bool)
        known[some] = False
        if known.any():
            answers[known] = ask(matrix[known])
        return answers

    def _ask_over_categories(self, matrix: FloatArray, ask: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Mean answer with each unseen code replaced by each known one in turn."""
        first = len(self.table.numeric)
        sizes = [len(feature.categories) for feature in self.table.categorical]
        unseen = matrix[:, first:] < 0
        used = [size for place, size in enumerate(sizes) if unseen[:, place].any()]
        total = np.zeros(())
        for turn in range(max(used)):
            filled = matrix.copy()
            for place, size in enumerate(sizes):
                filled[unseen[:, place], first + place] = turn % size
            total = total + ask(filled)
        return total / max(used)


def _trees_within(text: str, limit_bytes: int) -> int:
    """How many of the first trees leave a text of at most that length, all else in it unchanged."""
    found = re.search(r"^tree_sizes=(.*)$", text, flags=re.MULTILINE)
    sizes = np.cumsum([int(size) for size in found.group(1).split()] if found else [len(text)])
    rest = len(text) - int(sizes[-1])
    return int(np.searchsorted(sizes, limit_bytes - rest, side="right"))


def _read_table(frame: pl.DataFrame, numeric: Sequence[str], categorical: Sequence[str]) -> FeatureTable:
    """The table of inputs as these training rows show it."""
    names = [*numeric, *categorical]
    if not names:
        raise TrainingError("no feature to train on; give at least one column that varies")
    for name in names:
        if not _NAME.fullmatch(name):
            raise SchemaError(
                f"feature name {name!r} has a character other than letters, digits and _; rename it"
            )
    if len(set(names)) < len(names):
        raise SchemaError(f"a feature is named twice in {', '.join(names)}")
    missing = [name for name in names if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in names]
    if missing or unknown:
        raise SchemaError(column_mismatch("features", missing, unknown))
    if not frame.height:
        raise TrainingError("no row to train on")
    numbers = []
    for name in numeric:
        _check_numeric(frame, name)
        values = _numbers(frame, name)
        lacking = bool(np.isnan(values).any())
        some = values[np.isfinite(values)] if not np.isnan(values).all() else np.zeros(1)
        numbers.append(
            NumericFeature(name, lacking, float(np.median(some)), float(some.min()), float(some.max()))
        )
    kinds = []
    for name in categorical:
        _check_categorical(frame, name)
        column = frame.get_column(name).cast(pl.String)
        values_seen = column.drop_nulls().unique().sort().to_list()
        if not values_seen or len(values_seen) > LARGEST_CATEGORY_COUNT:
            raise TrainingError(
                f"categorical feature {name} has {len(values_seen)} different values, needed are 1 to "
                f"{LARGEST_CATEGORY_COUNT}"
            )
        kinds.append(CategoricalFeature(name, tuple(values_seen), column.null_count() > 0))
    return FeatureTable(tuple(numbers), tuple(kinds))


def _check_numeric(frame: pl.DataFrame, name: str) -> None:
    found = frame.schema[name]
    if not (found.is_numeric() or found in (pl.Boolean, pl.Null)):
        raise SchemaError(f"features: column {name} is {found}, needed is a number")


def _check_categorical(frame: pl.DataFrame, name: str) -> None:
    found = frame.schema[name]
    if found not in (pl.String, pl.Null) and not isinstance(found, pl.Categorical | pl.Enum):
        raise SchemaError(
            f"features: column {name} is {found}, needed is text (codes have no meaning outside their batch)"
        )


def _numbers(frame: pl.DataFrame, name: str) -> FloatArray:
    """The column as Float64, NaN where missing or not finite."""
    values = frame.get_column(name).cast(pl.Float64).to_numpy().astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _codes(frame: pl.DataFrame, category: CategoricalFeature) -> FloatArray:
    """Code of each row from the stored table: NaN where missing, -1 where the value is not in it."""
    values = frame.get_column(category.name).cast(pl.String)
    codes = values.replace_strict(
        list(category.categories),
        [float(code) for code in range(len(category.categories))],
        default=pl.lit(-1.0),
        return_dtype=pl.Float64,
    )
    return codes.set(values.is_null(), None).to_numpy().astype(np.float64)
