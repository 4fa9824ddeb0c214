"""The documentation-quality model behind MLflow's pyfunc interface.

Rows of title, body, code, family, source and product_version go in; the probability of a defect, its kinds
and nature come out. Checks and embeddings are made here, as in training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

if TYPE_CHECKING:
    import pandas as pd


class DocQuality(PythonModel):
    """Loads the checked model files and answers frames."""

    # The signature stored with the version checks the input; MLflow would check type hints beside it.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        """Read the model's files."""
        from warpgauge.docquality.model import DocQualityModel

        folder = Path(context.artifacts["files"])
        self.model = DocQualityModel.from_files({path.name: path.read_bytes() for path in folder.iterdir()})

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Score of each row."""
        import polars as pl

        from tasks.embedding import score_frame

        answer = score_frame(self.model, pl.from_pandas(model_input, nan_to_null=True))
        joined = [pl.col(name).list.join(", ") for name in ("kinds", "never_seen")]
        return answer.select("defect_probability", *joined, "nature").to_pandas()


set_model(DocQuality())
