"""containers/compose.yaml brought up: logins, artefacts on S3, DAGs loaded, the engine within reach."""

import subprocess
import urllib.error
from pathlib import Path
from typing import Any

import boto3
import mlflow
import pytest
from deployment import Deployment
from mlflow.exceptions import MlflowException

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


def log_in(deployment: Deployment, patch: pytest.MonkeyPatch, user: str, password: str) -> None:
    patch.setenv("MLFLOW_TRACKING_URI", deployment.mlflow)
    patch.setenv("MLFLOW_TRACKING_USERNAME", user)
    patch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    patch.setenv("AWS_ENDPOINT_URL", deployment.endpoint)


def test_mlflow_wants_a_login_and_keeps_runs_models_and_artefacts(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = deployment.settings["MLFLOW_TRACKING_PASSWORD"]
    log_in(deployment, monkeypatch, "pipeline", "not the password")
    with pytest.raises(MlflowException, match=r"401|not authenticated"):
        mlflow.MlflowClient().search_experiments()
    log_in(deployment, monkeypatch, "pipeline", pipeline)
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("compose")
    run = client.create_run(experiment)
    (tmp_path / "note.txt").write_text("kept on S3")
    client.log_artifact(run.info.run_id, str(tmp_path / "note.txt"))
    assert run.info.artifact_uri.startswith(f"s3://{deployment.bucket}/mlflow/")
    store: Any = boto3.client("s3", endpoint_url=deployment.endpoint)
    key = f"{run.info.artifact_uri.split('/', 3)[3]}/note.txt"
    assert store.get_object(Bucket=deployment.bucket, Key=key)["Body"].read() == b"kept on S3"
    client.create_registered_model("compose")
    version = client.create_model_version("compose", run.info.artifact_uri, run.info.run_id)
    client.set_registered_model_alias("compose", "champion", version.version)
    with pytest.raises(MlflowException, match="Invalid model version source"):  # it would be read with MLflow's key
        client.create_model_version("compose", f"s3://{deployment.bucket}/pipeline")
    log_in(deployment, monkeypatch, "admin", deployment.settings["MLFLOW_AUTH_ADMIN_PASSWORD"])
    assert mlflow.MlflowClient().get_model_version_by_alias("compose", "champion").run_id == run.info.run_id


def test_airflow_wants_a_login_and_has_the_dags_and_the_pool(deployment: Deployment) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        deployment.login("not the password")
    deployment.until(
        lambda: {dag["dag_id"] for dag in deployment.ask("dags")["dags"]} >= {"retrain", "promote", "rollback"}
    )
    assert deployment.ask("importErrors")["total_entries"] == 0
    assert deployment.ask("pools/gpu")["slots"] == 1
    health = deployment.until(
        lambda: (answer := deployment.ask("monitor/health"))["scheduler"]["status"] == "healthy" and answer
    )
    assert {health[part]["status"] for part in ("metadatabase", "dag_processor", "triggerer")} == {"healthy"}


def test_no_password_is_on_a_command_line_and_none_in_an_image(deployment: Deployment, engine: str) -> None:
    secret = [
        value for key, value in deployment.settings.items() if "PASSWORD" in key or "SECRET" in key or "FERNET" in key
    ]
    words = [engine, "image", "inspect", "slimtower-tracking", "slimtower-airflow"]
    images = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    listing = deployment.inside("mlflow", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; cat /app/auth.ini")
    assert "mlflow server" in listing and "authorization_function" in listing
    assert not [value for value in secret if value in images or value in listing]


def test_a_new_password_in_env_is_taken_over_by_starting_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = deployment.settings["MLFLOW_TRACKING_PASSWORD"]
    new = deployment.settings["MLFLOW_TRACKING_PASSWORD"] = f"{old}-new"
    deployment.start()

    def accepts(password: str) -> bool:
        log_in(deployment, monkeypatch, "pipeline", password)
        try:
            return bool(mlflow.MlflowClient().get_experiment_by_name("compose"))
        except MlflowException:
            return False

    assert deployment.until(lambda: accepts(new))
    assert deployment.until(lambda: not accepts(old), 180)  # the server keeps a good login for a minute
