"""`python -P answering.py < request`: load a registered model as its users do, and print what it answers.

A script without the project on its path: the model must bring the code that it needs. The request is JSON with `model`,
an MLflow URI, and `queries`, a list of `text`, `dataset` and `k`; the answers are `doc_ids` and `scores`, in order.
Exit code 75 when the server or the store was not reached.
"""

import json
import sys

import mlflow.pyfunc
import pandas as pd
import requests
from botocore.exceptions import ConnectionError as StoreError
from botocore.exceptions import HTTPClientError
from mlflow.exceptions import MlflowException

EXIT_TRANSIENT = 75


def main() -> None:
    """Answer the queries on stdin."""
    request = json.load(sys.stdin)
    model = mlflow.pyfunc.load_model(request["model"])
    answers = []
    for query in request["queries"]:
        asked = {"k": query["k"], "dataset": query["dataset"]}
        row = model.predict(pd.DataFrame({"query": [query["text"]]}), params=asked).iloc[0]
        answers.append({"doc_ids": list(row["ids"]), "scores": [float(score) for score in row["scores"]]})
    print(json.dumps(answers))


if __name__ == "__main__":
    try:
        main()
    except (requests.RequestException, StoreError, HTTPClientError) as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_TRANSIENT)
    except MlflowException as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(EXIT_TRANSIENT if "failed with exception" in str(error) else 1)
