"""A latency model: baseline x trees, with an interval, and a word for whatever it never saw.

The trees learn the log ratio of latency to the physics baseline, so that 3 us and 2 ms count alike and sizes
beyond the measured ones follow the baseline's slope.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import ModelFileError, SettingsError
from warpgauge.latency.baseline import Baseline, BaselineAnswer
from warpgauge.latency.booster import MISSING, CategoricalBooster, FeatureTable
from warpgauge.latency.explanations import explain
from warpgauge.latency.intervals import RANGE_WIDENING_RATIO, Intervals
from warpgauge.latency.launch_scheme import KIND as LAUNCHES_KIND
from warpgauge.latency.launch_scheme import LaunchScheme
from warpgauge.latency.scheme import FloatArray, RowScheme
from warpgauge.latency.sealed_files import seal, take, unseal
from warpgauge.latency.table_scheme import KIND as TABLE_KIND
from warpgauge.latency.table_scheme import TableScheme
from warpgauge.latency.tree_text import read_forest

FORMAT = "warpgauge-latency-2"
# exp(7) = 1100-fold: beyond it an interval says no more than "unknown", and exp would overflow far later.
LARGEST_HALF_WIDTH_LOG = 7.0


@dataclass(frozen=True)
class LatencyModel:
    """A trained latency model, of launches or of any other table.

    Attributes:
        baseline: Physics baseline; its scheme says how rows are read.
        booster: Trees on the log ratio, with their table of inputs.
        intervals: Calibrated widths.
        trained_on: Summary of the training rows, JSON values only; `is_simulated` says whether any of them
            was simulated.
    """

    baseline: Baseline
    booster: CategoricalBooster
    intervals: Intervals
    trained_on: Mapping[str, Any]

    @property
    def is_simulated(self) -> bool:
        """Whether any training row came from the simulator."""
        return bool(self.trained_on["is_simulated"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features in use, in the booster's order."""
        return self.booster.table.names

    @property
    def scheme(self) -> RowScheme:
        """How rows are read."""
        return self.baseline.scheme

    @property
    def target(self) -> str:
        """Label column that it predicts."""
        return self.scheme.target

    def assume_ordinary(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with what a caller leaves open taken as of the kind that the model learned from."""
        return self.scheme.assume_ordinary(rows, is_simulated=self.is_simulated)

    def predict(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Latency of each row.

        Args:
            rows: Columns of the table, in any order, null where a value is not known; identity and label
                columns may be absent. `scheme.conform` gives such a frame.

        Returns:
            Same rows in the same order: `predicted_latency_us`, `lower_us`, `upper_us` (positive, in this
            order lower <= predicted <= upper), `never_seen` (list of `column=value` that training never
            showed; the interval is widened for each) and `is_simulated` (the model learned from simulated
            rows).

        Raises:
            SchemaError: If a column is missing, unknown or renamed, or a size is missing.
        """
        answer, features = self._inputs(rows)
        predicted = answer.latency_us * np.exp(self.booster.predict(features))
        never_seen, widening = self._never_seen(rows, answer, features)
        half = self.intervals.half_width(predicted, rows)
        half = np.minimum(half + widening, LARGEST_HALF_WIDTH_LOG)
        return pl.DataFrame(
            {
                "predicted_latency_us": predicted,
                "lower_us": predicted * np.exp(-half),
                "upper_us": predicted * np.exp(half),
                "never_seen": pl.Series(never_seen, dtype=pl.List(pl.String)),
                "is_simulated": pl.Series([self.is_simulated] * rows.height, dtype=pl.Boolean),
            }
        )

    def predict_us(self, rows: pl.DataFrame) -> FloatArray:
        """Predicted latency alone, microseconds; see `predict`."""
        answer, features = self._inputs(rows)
        return answer.latency_us * np.exp(self.booster.predict(features))

    def explain(self, rows: pl.DataFrame) -> list[list[dict[str, Any]]]:
        """What the baseline and each feature contributed to each row's prediction; see `explanations.explain`."""
        answer, features = self._inputs(rows)
        return explain(self.booster, features, answer.latency_us)

    def to_files(self) -> dict[str, bytes]:
        """`model.txt` (LightGBM's text) and `model.json` (all else); no pickle. The same model, the same bytes."""
        document = {
            "format": FORMAT,
            "scheme": self.scheme.to_document(),
            "unit": "us",
            "features": self.booster.table.to_document(),
            "baseline": self.baseline.to_document(),
            "intervals": self.intervals.to_document(),
            "trained_on": dict(self.trained_on),
        }
        return seal(document, self.booster.text)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> LatencyModel:
        """Back from `to_files`; everything is checked before LightGBM sees the text.

        Raises:
            ModelFileError: If a file is absent, truncated, altered or of another model.
        """
        document, text = unseal(files, FORMAT)
        read_forest(text)
        table = FeatureTable.from_document(take(document, "features", dict))
        scheme = scheme_from_document(take(document, "scheme", dict))
        unknown = scheme.unknown_features(table.names)
        if unknown:
            raise ModelFileError(
                f"the model needs the feature {', '.join(unknown)}, which this version cannot build; "
                f"train a new version"
            )
        trained_on = take(document, "trained_on", dict)
        take(trained_on, "is_simulated", bool)
        intervals = Intervals.from_document(take(document, "intervals", dict))
        if intervals.levels != scheme.interval_levels:
            raise ModelFileError(
                "the intervals of the model are of other groups than its rows; train a new version"
            )
        return cls(
            Baseline.from_document(take(document, "baseline", dict), scheme),
            CategoricalBooster(table, text),
            intervals,
            trained_on,
        )

    def _inputs(self, rows: pl.DataFrame) -> tuple[BaselineAnswer, pl.DataFrame]:
        self.scheme.check(rows, is_training=False)
        return self.baseline.predict(rows), self.scheme.features(rows).select(self.feature_names)

    def _never_seen(
        self, rows: pl.DataFrame, answer: BaselineAnswer, features: pl.DataFrame
    ) -> tuple[list[list[str]], FloatArray]:
        """What training never showed of each row, and what that adds to its half width in log."""
        found: list[list[str]] = [[] for _ in range(rows.height)]
        widening = np.zeros(rows.height)
        new_key = np.zeros(rows.height, dtype=bool)
        key_columns = self.scheme.key_columns
        for name in key_columns:
            values, is_new = self.baseline.unseen(rows, name)
            for row in np.flatnonzero(is_new):
                value = values[int(row)]
                found[row].append(f"{name}={MISSING if value is None else value}")
            widening[is_new] += self.intervals.unseen_width(name)
            new_key |= is_new
        self._add_new_combinations(rows, answer, new_key, found, widening)
        for place, names in enumerate(self.booster.never_seen(features)):
            # A derived feature is missing because a column is: the column alone is named, if it is one of ours.
            lacking = [name for name in names if name.split("=")[0] not in key_columns]
            copied = [name for name in lacking if self.scheme.is_copied(name.split("=")[0])]
            named = copied or ([] if found[place] else lacking)
            if named:
                found[place].extend(named)
                widening[place] += self.intervals.unseen_width(named[0].split("=")[0])
        beyond = np.maximum(np.log(answer.sizes / answer.largest), np.log(answer.smallest / answer.sizes))
        for row in np.flatnonzero(beyond > 0):
            found[row].append(f"{self.scheme.size_name}={answer.sizes[row]:.6g}")
            widening[row] += RANGE_WIDENING_RATIO * beyond[row]
        if not self.scheme.has_size:
            self._add_beyond_columns(features, found, widening)
        return found, widening

    def _add_beyond_columns(
        self, features: pl.DataFrame, found: list[list[str]], widening: FloatArray
    ) -> None:
        """Without a size, whatever column lies outside its range of training: trees answer as at its end."""
        for column in self.booster.table.numeric:
            if not self.scheme.is_copied(column.name):
                continue
            values = features.get_column(column.name).cast(pl.Float64).to_numpy()
            for row in np.flatnonzero((values < column.smallest) | (values > column.largest)):
                value = float(values[row])
                end = column.largest if value > column.largest else column.smallest
                found[row].append(f"{column.name}={value:.6g}")
                # Latency may grow as fast as the column does; where no ratio exists, nothing is known.
                is_ratio = value > 0 and end > 0
                widening[row] += abs(math.log(value / end)) if is_ratio else LARGEST_HALF_WIDTH_LOG

    def _add_new_combinations(
        self,
        rows: pl.DataFrame,
        answer: BaselineAnswer,
        new_key: npt.NDArray[np.bool_],
        found: list[list[str]],
        widening: FloatArray,
    ) -> None:
        """Each value was seen, but not on one launch: no group of its own answered."""
        own = self.scheme.own_level_count
        columns = [name for name in self.scheme.levels[own - 1] if name != "is_simulated"]
        if not columns:
            return
        places = np.flatnonzero((answer.level >= own) & ~new_key)
        widening[places] += max(self.intervals.unseen_width(name) for name in columns)
        for place in places:
            values = rows.select(columns).row(int(place), named=True)
            found[place].append(
                " with ".join(
                    f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                    for name, value in values.items()
                    if value is not None
                )
            )


def scheme_from_document(document: Mapping[str, Any]) -> RowScheme:
    """How the rows of a stored model are read.

    Raises:
        ModelFileError: If the document names no scheme of this version.
    """
    kind = take(document, "kind", str)
    if kind == LAUNCHES_KIND:
        try:
            return LaunchScheme(target=take(document, "target", str))
        except SettingsError as error:
            raise ModelFileError(f"the model's {error}; train a new version") from error
    if kind == TABLE_KIND:
        return TableScheme.from_document(document)
    raise ModelFileError(f"the model reads rows as {kind!r}, which this version cannot; train a new version")
