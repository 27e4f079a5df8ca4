"""`python -P answering.py < request`: load a registered model as its users do, and print what it answers.

A script without the project on its path: the model must bring the code that it needs. The request is JSON with `model`,
an MLflow URI, and `queries`, a list of `text`, `dataset` and `k`; the answers are `doc_ids` and `scores`, in order.
Exit code 75 when the server or the store was not reached, or failed in between.
"""

import json
import re
import sys

import mlflow.pyfunc
import pandas as pd
import requests
from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as StoreError
from mlflow.exceptions import MlflowException

EXIT_TRANSIENT = 75
# How MLflow tells of its server, of that one's database, and of its artefact store
_AWAY = (
    "failed with exception", "failed with timeout exception", "QueuePool limit", "InterfaceError",
    "read-only transaction",
)  # fmt: skip
_STORE_FAILED = ("failures occurred while", "Failed to list artifacts")
# What trying again does not mend: a file that is not there, a login, a clock
_STAYS = re.compile(
    r"\b40[0134]\b|NoSuch|Not Found|No such file|AccessDenied|Forbidden|InvalidAccessKey|SignatureDoes"
    r"|TooSkewed|ExpiredToken"
)


def passes(error: Exception) -> bool:
    """Whether a failure of server or store is worth another try."""
    text = " ".join(str(error).split())
    if isinstance(error, ClientError):
        return not _STAYS.search(text)
    if not isinstance(error, MlflowException):
        return True
    away = any(words in text for words in _AWAY) or error.error_code == "TEMPORARILY_UNAVAILABLE"
    return away or (any(words in text for words in _STORE_FAILED) and not _STAYS.search(text))


def main() -> None:
    """Answer the queries on stdin."""
    request = json.load(sys.stdin)
    model = mlflow.pyfunc.load_model(request["model"])
    answers = []
    for query in request["queries"]:
        params = {"k": query["k"], "dataset": query["dataset"]}
        row = model.predict(pd.DataFrame({"query": [query["text"]]}), params=params).iloc[0]
        answers.append({"doc_ids": list(row["ids"]), "scores": [float(score) for score in row["scores"]]})
    print(json.dumps(answers))


if __name__ == "__main__":
    try:
        main()
    except (requests.RequestException, StoreError, HTTPClientError, ClientError, MlflowException) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(EXIT_TRANSIENT if passes(error) else 1)
