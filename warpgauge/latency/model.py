"""The launch-latency model: baseline x trees, with an interval, and a word for whatever it never saw.

The trees learn the log ratio of latency to the physics baseline, so that 3 us and 2 ms count alike and sizes
beyond the measured ones follow the baseline's slope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import ModelFileError
from warpgauge.latency.baseline import (
    KEY_COLUMNS,
    LEVELS,
    OWN_LEVEL_COUNT,
    Baseline,
    BaselineAnswer,
    node_counts,
)
from warpgauge.latency.booster import MISSING, CategoricalBooster, FeatureTable
from warpgauge.latency.catalogue import CATALOGUE, SOURCE_COLUMNS, feature
from warpgauge.latency.features import build_features, check_launch_columns
from warpgauge.latency.intervals import GROUP_COLUMNS, RANGE_WIDENING_RATIO, Intervals
from warpgauge.latency.sealed_files import seal, take, unseal

FloatArray = npt.NDArray[np.float64]
FORMAT = "warpgauge-launch-latency-1"
# exp(7) = 1100-fold: beyond it an interval says no more than "unknown", and exp would overflow far later.
LARGEST_HALF_WIDTH_LOG = 7.0
PREDICTION_COLUMNS = tuple(dict.fromkeys((*SOURCE_COLUMNS, *KEY_COLUMNS)))


@dataclass(frozen=True)
class LatencyModel:
    """A trained launch-latency model.

    Attributes:
        baseline: Physics baseline.
        booster: Trees on the log ratio, with their table of inputs.
        intervals: Calibrated widths.
        target: Label column that it predicts.
        trained_on: Summary of the training rows, JSON values only; `is_simulated` says whether any of them
            was simulated.
    """

    baseline: Baseline
    booster: CategoricalBooster
    intervals: Intervals
    target: str
    trained_on: Mapping[str, Any]

    @property
    def is_simulated(self) -> bool:
        """Whether any training row came from the simulator."""
        return bool(self.trained_on["is_simulated"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features in use, in the booster's order."""
        return self.booster.table.names

    def assume_ordinary(self, launches: pl.DataFrame) -> pl.DataFrame:
        """The launches with what a caller leaves open taken as an ordinary, unprofiled launch of the kind that
        the model learned from: null `is_profiled` is no, null `is_simulated` is the model's own.
        """
        return launches.with_columns(
            pl.col("is_profiled").fill_null(False), pl.col("is_simulated").fill_null(self.is_simulated)
        )

    def predict(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Latency of each launch.

        Args:
            launches: Columns of the launches table, in any order, null where a value is not known; identity
                and label columns may be absent. `tables.LAUNCHES.conform` gives such a frame.

        Returns:
            Same rows in the same order: `predicted_latency_us`, `lower_us`, `upper_us` (positive, in this
            order lower <= predicted <= upper), `never_seen` (list of `column=value` that training never
            showed; the interval is widened for each) and `is_simulated` (the model learned from simulated
            rows).

        Raises:
            SchemaError: If a column is missing, unknown or renamed, or a node count is missing.
        """
        answer, features = self._inputs(launches)
        predicted = answer.latency_us * np.exp(self.booster.predict(features))
        never_seen, widening = self._never_seen(launches, answer, features)
        half = self.intervals.half_width(predicted, launches.select(GROUP_COLUMNS))
        half = np.minimum(half + widening, LARGEST_HALF_WIDTH_LOG)
        return pl.DataFrame(
            {
                "predicted_latency_us": predicted,
                "lower_us": predicted * np.exp(-half),
                "upper_us": predicted * np.exp(half),
                "never_seen": pl.Series(never_seen, dtype=pl.List(pl.String)),
                "is_simulated": pl.Series([self.is_simulated] * launches.height, dtype=pl.Boolean),
            }
        )

    def predict_us(self, launches: pl.DataFrame) -> FloatArray:
        """Predicted latency alone, microseconds; see `predict`."""
        answer, features = self._inputs(launches)
        return answer.latency_us * np.exp(self.booster.predict(features))

    def to_files(self) -> dict[str, bytes]:
        """`model.txt` (LightGBM's text) and `model.json` (all else); no pickle. The same model, the same bytes."""
        document = {
            "format": FORMAT,
            "target": self.target,
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
        table = FeatureTable.from_document(take(document, "features", dict))
        known = {entry.name for entry in CATALOGUE}
        unknown = [name for name in table.names if name not in known]
        if unknown:
            raise ModelFileError(
                f"the model needs the feature {', '.join(unknown)}, which this version cannot build; "
                f"train a new version"
            )
        trained_on = take(document, "trained_on", dict)
        take(trained_on, "is_simulated", bool)
        return cls(
            Baseline.from_document(take(document, "baseline", dict)),
            CategoricalBooster(table, text),
            Intervals.from_document(take(document, "intervals", dict)),
            take(document, "target", str),
            trained_on,
        )

    def _inputs(self, launches: pl.DataFrame) -> tuple[BaselineAnswer, pl.DataFrame]:
        check_launch_columns(launches, PREDICTION_COLUMNS)
        return self.baseline.predict(launches), build_features(launches).select(self.feature_names)

    def _never_seen(
        self, launches: pl.DataFrame, answer: BaselineAnswer, features: pl.DataFrame
    ) -> tuple[list[list[str]], FloatArray]:
        """What training never showed of each row, and what that adds to its half width in log."""
        found: list[list[str]] = [[] for _ in range(launches.height)]
        widening = np.zeros(launches.height)
        new_key = np.zeros(launches.height, dtype=bool)
        for name in KEY_COLUMNS:
            values, is_new = self.baseline.unseen(launches, name)
            for row in np.flatnonzero(is_new):
                value = values[int(row)]
                found[row].append(f"{name}={MISSING if value is None else value}")
            widening[is_new] += self.intervals.unseen_width(name)
            new_key |= is_new
        self._add_new_combinations(launches, answer, new_key, found, widening)
        for place, names in enumerate(self.booster.never_seen(features)):
            # A derived feature is missing because a column is: the column alone is named, if it is one of ours.
            lacking = [name for name in names if name.split("=")[0] not in KEY_COLUMNS]
            copied = [name for name in lacking if not feature(name.split("=")[0]).is_derived]
            named = copied or ([] if found[place] else lacking)
            if named:
                found[place].extend(named)
                widening[place] += self.intervals.unseen_width(named[0].split("=")[0])
        nodes = node_counts(launches)
        beyond = np.maximum(np.log(nodes / answer.largest), np.log(answer.smallest / nodes))
        for row in np.flatnonzero(beyond > 0):
            found[row].append(f"node_count={nodes[row]:.0f}")
            widening[row] += RANGE_WIDENING_RATIO * beyond[row]
        return found, widening

    def _add_new_combinations(
        self,
        launches: pl.DataFrame,
        answer: BaselineAnswer,
        new_key: npt.NDArray[np.bool_],
        found: list[list[str]],
        widening: FloatArray,
    ) -> None:
        """Each value was seen, but not on one launch: no group of its own answered."""
        columns = [name for name in LEVELS[OWN_LEVEL_COUNT - 1] if name != "is_simulated"]
        rows = np.flatnonzero((answer.level >= OWN_LEVEL_COUNT) & ~new_key)
        widening[rows] += max(self.intervals.unseen_width(name) for name in columns)
        for row in rows:
            values = launches.select(columns).row(int(row), named=True)
            found[row].append(
                " with ".join(
                    f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                    for name, value in values.items()
                    if value is not None
                )
            )


def trained_on_summary(launches: pl.DataFrame, **extra: Any) -> dict[str, Any]:
    """What a model was trained on, as JSON values: rows, groups, range of sizes, share simulated."""
    nodes = node_counts(launches)
    return {
        "row_count": launches.height,
        "graph_count": launches.get_column("graph_id").n_unique(),
        "signature_count": launches.get_column("graph_signature").n_unique(),
        **{
            name: launches.get_column(name).cast(pl.String).drop_nulls().unique().sort().to_list()
            for name in KEY_COLUMNS[:-1]
        },
        "source_kind": launches.get_column("source_kind")
        .cast(pl.String)
        .drop_nulls()
        .unique()
        .sort()
        .to_list(),
        "smallest_node_count": float(nodes.min()),
        "largest_node_count": float(nodes.max()),
        "is_simulated": bool(launches.get_column("is_simulated").any()),
        "simulated_ratio": float(launches.get_column("is_simulated").mean() or 0.0),  # type: ignore[arg-type]
        **extra,
    }
