"""python -m pipeline.pages: MLflow's pages on the runs that are tracked here, until Ctrl-C."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.recipe import run
from pipeline.stopping import stop_when_asked
from slimtower.common.errors import guarded
from slimtower.common.masking import redacted
from slimtower.registry.client import client, tracking_uri
from steps.evaluate.params import HEADLINE
from steps.tracking.runs import experiment_id

_QUIET = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its jobs evaluate agents; idle they take a third of a core
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONWARNINGS": "ignore",  # of deprecations inside MLflow
}

_VIEW = "slimtower"  # of the list of runs, with columns that MLflow does not show by itself


def save_view(api: Any, experiment: str) -> None:
    """Save a view of the list of runs that shows what a pipeline's run is of, and its headline."""
    columns = [f"params.`{name}`" for name in ("teacher", "students")] + [f"metrics.`{name}`" for name in HEADLINE]
    columns.append("attributes.`Dataset`")
    api.set_experiment_tag(experiment, f"mlflow.sharedViewState.{_VIEW}", json.dumps({"selectedColumns": columns}))


def main() -> None:
    """Open the tracking store as every command does, print the address of the runs, and serve them."""
    parser = argparse.ArgumentParser(prog="make mlflow", description=__doc__)
    parser.add_argument("--port", type=int, default=5000)
    port = parser.parse_args().port
    uri, api = tracking_uri(), client()
    experiment = experiment_id(api)
    runs = f"#/experiments/{experiment}/runs?workflowType=machine_learning"
    if uri.startswith(("http://", "https://")):
        print(f"mlflow: {redacted(uri.rstrip('/'))}/{runs}")
        return
    save_view(api, experiment)
    print(f"mlflow: http://localhost:{port}/{runs}&viewStateShareKey={_VIEW}  (Ctrl-C stops it)", flush=True)
    words = ["ui", "--backend-store-uri", uri, "--registry-store-uri", uri, "--port", str(port), "--workers", "1"]
    stop_when_asked()
    try:
        code = run([sys.executable, "-m", "mlflow", *words], Path.cwd(), _QUIET | dict(os.environ))
    except KeyboardInterrupt:
        return
    raise SystemExit(code)


if __name__ == "__main__":
    guarded(main)
