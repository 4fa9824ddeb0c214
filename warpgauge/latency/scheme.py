"""How the rows of one latency table are read: one contract for launches and for any other table.

A scheme turns rows into what training needs (label, size, groups, features, the side of a split) and names what the
answers and reports are told apart by. Everything else, from the baseline to the gate, is the same for every
table. `launch_scheme.py` reads the launches table, `table_scheme.py` a table that a spec file describes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.tables import Table

FloatArray = npt.NDArray[np.float64]
GateMetric = Literal["rmse_us", "mape_ratio"]


@dataclass(frozen=True, kw_only=True)
class RowScheme(ABC):
    """How rows of one kind of latency table are read.

    Attributes:
        target: Column of the label.
        row_noun: What the rows are, in words: `launches`.
        id_column: Names a row.
        levels: Columns of the baseline's groups, from the finest to none; the first holds all key columns.
        own_level_count: The first levels that hold rows of the asked kind itself.
        interval_levels: Columns that intervals are calibrated apart by, coarser last.
        noise_columns: Columns within which noise depends on size alone.
        slice_columns: Columns that every report is cut by, beside the size.
        stated_factors: Key column -> factor on the latency for a value never seen, where no value of it could
            be left out of training and the error measured.
        categorical_names: Features that are categories.
        size_name: What the baseline's size is, `node_count` or `roofline_us`.
        promise_us, promise_ratio: An answer keeps its promise within the larger of both.
        gate_metric: What versions are compared by.
        has_trials: The same graph is measured several times, so noise can be told from error and weighs rows.
        parameters: What the scheme itself chooses about the trees; see `fitting.Boosting`.
        monotone: Feature -> 1 or -1 where physics says that the latency over its baseline may only rise or fall.
    """

    target: str
    row_noun: str
    id_column: str
    levels: tuple[tuple[str, ...], ...]
    own_level_count: int
    interval_levels: tuple[tuple[str, ...], ...]
    noise_columns: tuple[str, ...]
    slice_columns: tuple[str, ...]
    stated_factors: Mapping[str, float]
    categorical_names: tuple[str, ...]
    size_name: str
    promise_us: float
    promise_ratio: float
    gate_metric: GateMetric
    has_trials: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    monotone: Mapping[str, int] = field(default_factory=dict)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns of the finest group of the baseline."""
        return self.levels[0]

    @property
    def has_size(self) -> bool:
        """Whether a row has a size that the baseline runs over; else columns are watched one by one."""
        return True

    @property
    @abstractmethod
    def table(self) -> Table:
        """The stored table: identity, columns, label."""

    @property
    @abstractmethod
    def input_kinds(self) -> dict[str, Literal["string", "double"]]:
        """Columns that a prediction reads, numbers and flags as doubles because those may be missing."""

    @abstractmethod
    def check(self, rows: pl.DataFrame, *, is_training: bool) -> None:
        """Stop on a column that is absent, unknown or of another type.

        Raises:
            SchemaError: Naming the columns.
        """

    @abstractmethod
    def conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with exactly the columns that `LatencyModel.predict` takes, absent ones null.

        Raises:
            SchemaError: If a column is unknown or a value does not fit.
        """

    @abstractmethod
    def assume_ordinary(self, rows: pl.DataFrame, *, is_simulated: bool) -> pl.DataFrame:
        """The rows with what a caller leaves open taken as of the kind that the model learned from."""

    @abstractmethod
    def usable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with a positive finite label and a size.

        Raises:
            SchemaError: If the label column is absent.
        """

    @abstractmethod
    def label_hint(self, rows: pl.DataFrame) -> str:
        """What else could be predicted where rows lack the label; empty if nothing is known."""

    @abstractmethod
    def latency_us(self, rows: pl.DataFrame) -> FloatArray:
        """The label in microseconds, one a row."""

    @abstractmethod
    def sizes(self, rows: pl.DataFrame) -> FloatArray:
        """What the baseline's curve runs over, positive, one a row.

        Raises:
            SchemaError: If a row does not say, naming the first such row.
        """

    @abstractmethod
    def features(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Features in the stored order: Float64 for numbers and flags, String for categories."""

    @abstractmethod
    def unknown_features(self, names: tuple[str, ...]) -> list[str]:
        """Those of the names that this version cannot build."""

    @abstractmethod
    def is_copied(self, feature: str) -> bool:
        """Whether the feature is a column of the same name, so that its absence is the column's own."""

    @abstractmethod
    def shapes(self, rows: pl.DataFrame) -> pl.Series:
        """Name of each row's shape: rows of one shape stay on one side of every split."""

    @abstractmethod
    def groups(self, rows: pl.DataFrame) -> pl.Series:
        """Name of what each row measured once more: the same graph or shape under the same circumstances."""

    @abstractmethod
    def size_bands(self, rows: pl.DataFrame) -> pl.Series:
        """Band of size of each row, in words."""

    @abstractmethod
    def least_leaf_rows(self, row_count: int) -> int:
        """Fewest rows of a leaf in a training on that many rows, where nobody chose them."""

    @abstractmethod
    def times(self, rows: pl.DataFrame) -> pl.Series:
        """When each row was measured, as a number that rises with time; null where that is not known."""

    @abstractmethod
    def is_simulated(self, rows: pl.DataFrame) -> pl.Series:
        """Whether each row came from a simulator, Boolean without nulls."""

    @abstractmethod
    def summary(self, rows: pl.DataFrame) -> dict[str, Any]:
        """What the rows are, as JSON values: counts, groups, range of sizes."""

    @abstractmethod
    def to_document(self) -> dict[str, Any]:
        """As JSON values; `kind` says which scheme it is."""
