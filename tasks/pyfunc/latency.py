"""A latency model behind MLflow's pyfunc interface.

Columns of the model's table go in, numbers and flags as doubles (a flag is 0 or 1, missing is NaN), in any
order; predicted latency with its interval comes out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

if TYPE_CHECKING:
    import pandas as pd


class Latency(PythonModel):
    """Loads the checked model files and answers frames."""

    # The signature stored with the version checks the input; MLflow would check type hints beside it.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        """Read the model's files."""
        from warpgauge.latency.model import LatencyModel

        folder = Path(context.artifacts["files"])
        self.model = LatencyModel.from_files({path.name: path.read_bytes() for path in folder.iterdir()})
        # A server answers again and again.
        self.model.booster.compile()

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Latency of each row."""
        import polars as pl

        frame = self.model.scheme.conform(pl.from_pandas(model_input, nan_to_null=True))
        answer = self.model.predict(self.model.assume_ordinary(frame))
        never_seen = pl.col("never_seen").list.join(", ")
        return answer.with_columns(never_seen).to_pandas()


set_model(Latency())
