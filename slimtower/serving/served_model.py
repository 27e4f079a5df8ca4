"""A release as an MLflow model: queries in, ids, scores and titles out. MLflow runs this file to load it."""

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from slimtower.common.errors import UserError
from slimtower.serving.release import Release, load_release


class ServedRelease(PythonModel):
    """Answers queries from the release folder among the model's artifacts."""

    release: Release

    def load_context(self, context: PythonModelContext) -> None:
        self.release = load_release(Path(context.artifacts["release"]))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """One row of `ids`, `scores` and `titles` for each row's `query`, best first; fused where the release fuses.

        The number of hits is the row's `k`, else the parameter `k`; `dataset` is a parameter, empty for the first.
        """
        settings: dict[str, Any] = {"k": 10, "dataset": ""} | (params or {})
        if (absent := model_input["query"].isna()).any():
            raise MlflowException.invalid_parameter_value(f"query is null in row {int(absent.argmax())}")
        texts = list(model_input["query"])
        counts = [int(k) for k in model_input["k"]] if "k" in model_input else [int(settings["k"])] * len(texts)
        try:
            if min(counts, default=1) < 1:
                raise UserError(f"k is {min(counts)}; ask for at least 1 hit")
            answers = self.release.query_all(texts, max(counts, default=1), settings["dataset"])
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        hits = [answer[:k] for answer, k in zip(answers, counts, strict=True)]
        return pd.DataFrame(
            {
                "ids": [[hit.id for hit in row] for row in hits],
                "scores": [[hit.score for hit in row] for row in hits],
                "titles": [[hit.title for hit in row] for row in hits],
            }
        )


set_model(ServedRelease())
