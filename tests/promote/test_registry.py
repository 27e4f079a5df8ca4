"""A server that cannot be reached is worth another try; one that refuses is not."""

from pathlib import Path

import pytest
import requests
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, UNAUTHENTICATED

from slimtower.common.errors import TransientError, UserError
from slimtower.registry.client import ForeignAnswer, Unwanted, reaching
from steps.promote.lineage import made_of
from steps.promote.lock import FolderLockStore, S3LockStore, lock_place, lock_store
from steps.promote.registry import Registry


@pytest.mark.parametrize("name", ["", "o'brien", "../evil", "a b"])
def test_what_can_be_no_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is no registered model's name"):
        Registry(name)


def http_error(status: str) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = int(status.split()[0])
    return requests.HTTPError(f"{status}: for url: http://host/api/2.0/mlflow-artifacts/x", response=response)


def s3_error(code: str, status: int) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "PutObject")


OVERLOADED = "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00"
READ_ONLY = "(psycopg2.errors.ReadOnlySqlTransaction) cannot execute INSERT in a read-only transaction"
UNTRUSTED = "API request to https://x failed with exception: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
DOWNLOAD = "The following failures occurred while downloading one or more artifacts: ##### File x #####"


@pytest.mark.parametrize(
    ("raised", "kind", "fix"),
    [
        (http_error("413 Client Error"), Unwanted, "limits"),
        (MlflowException(f"{DOWNLOAD} 413 Client Error: Too Large for url"), Unwanted, "limits"),
        (MlflowException("API request to x failed with error code 413 != 200"), Unwanted, "limits"),
        (s3_error("EntityTooLarge", 400), Unwanted, "limits"),
        (http_error("401 Client Error"), UserError, "MLFLOW_TRACKING_PASSWORD"),
        (MlflowException("API request failed with error code 403 != 200"), UserError, "MLFLOW_TRACKING_PASSWORD"),
        (s3_error("NoSuchBucket", 404), UserError, "the bucket"),
        (http_error("404 Client Error"), TransientError, "try again"),
        (http_error("429 Client Error"), TransientError, "try again"),
        (http_error("503 Server Error"), TransientError, "try again"),
        (s3_error("RequestTimeout", 400), TransientError, "try again"),
        (S3UploadFailedError("Failed to upload x: Connection was closed"), TransientError, "try again"),
        (MlflowException(f"{DOWNLOAD} connection reset"), TransientError, "try again"),
        (MlflowException("Failed to list artifacts in s3://b: Please reduce your request rate."), TransientError, ""),
        (S3UploadFailedError("Failed to upload x: An error occurred (AccessDenied)"), UserError, "AWS_SECRET"),
        (MlflowException(f"{DOWNLOAD} (SignatureDoesNotMatch)"), UserError, "AWS_SECRET"),
        (MlflowException("Failed to list artifacts in s3://b: no", UNAUTHENTICATED), UserError, "AWS_SECRET"),
        (MlflowException(OVERLOADED, error_code=BAD_REQUEST), TransientError, "QueuePool"),
        (MlflowException(READ_ONLY, error_code=BAD_REQUEST), TransientError, "is the server up"),
        (MlflowException(UNTRUSTED), UserError, "REQUESTS_CA_BUNDLE"),
        (requests.exceptions.SSLError(UNTRUSTED), UserError, "AWS_CA_BUNDLE"),
        (RestException({"message": "Unauthorized"}), ForeignAnswer, ""),
        (RestException({"message": "no such run", "error_code": "RESOURCE_DOES_NOT_EXIST"}), RestException, ""),
        (MlflowException("a defect"), MlflowException, "a defect"),
    ],
)
def test_what_a_server_or_store_answers_is_of_the_kind_that_says_what_to_do(
    raised: Exception, kind: type[Exception], fix: str
) -> None:
    with pytest.raises(Exception, match=fix or None) as caught, reaching():
        raise raised
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("code", "status", "fix"),
    [
        ("RequestTimeTooSkewed", 403, "set the clock of this machine, or of the server"),
        ("ExpiredToken", 400, "AWS_SESSION_TOKEN"),
        ("InvalidToken", 400, "AWS_SESSION_TOKEN"),
        ("400", 400, "AWS_SESSION_TOKEN"),  # the same, where HEAD was asked
    ],
)
def test_another_clock_or_an_expired_token_is_to_be_fixed_in_lists_too(code: str, status: int, fix: str) -> None:
    for words in ("", "Failed to list artifacts in s3://b: no"):  # MLflow leaves out the code
        with pytest.raises(UserError, match=f"artefact store of .*{fix}") as caught, reaching():
            try:
                raise s3_error(code, status)
            except ClientError:
                if words:
                    raise MlflowException(words)  # noqa: B904
                raise
        assert not isinstance(caught.value, TransientError)


class Api:
    """A tracking server whose experiment has this artefact location."""

    def __init__(self, location: str) -> None:
        self.artifact_location, self.experiment_id, self.tags, self.aliases = location, "7", {}, {}

    def __getattr__(self, name):
        return lambda *args, **named: self


@pytest.mark.parametrize(
    ("variable", "location", "expected"),
    [
        ("", "s3://bucket/mlflow/7", ("bucket", "mlflow/locks")),
        ("s3://other/place/", "s3://bucket/mlflow/7", ("other", "place")),
        ("s3://other", "mlflow-artifacts:/7", ("other", "")),
    ],
)
def test_the_lock_lies_beside_the_artefacts_unless_told_otherwise(monkeypatch, variable, location, expected) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setenv("SLIMTOWER_LOCK", variable)
    registry = Registry("retriever")
    registry.api = Api(location)
    store = lock_store(registry)
    assert isinstance(store, S3LockStore)
    assert (store.bucket, store.root) == expected


def test_two_places_to_lock_one_model_are_one_too_many(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    registry = Registry("retriever")
    registry.api = Api("s3://bucket/mlflow/7")
    registry.api.tags["slimtower.lock"] = str(tmp_path)
    for setting in ("", f"{tmp_path}/"):
        monkeypatch.setenv("SLIMTOWER_LOCK", setting)
        assert isinstance(lock_store(registry), FolderLockStore)
    monkeypatch.setenv("SLIMTOWER_LOCK", "s3://other/place")
    with pytest.raises(
        UserError, match=f"SLIMTOWER_LOCK is 's3://other/place', but retriever is locked at '{tmp_path}"
    ):
        lock_store(registry)


def test_a_server_that_hides_its_artefacts_needs_to_be_told_where_to_lock(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.delenv("SLIMTOWER_LOCK", raising=False)
    registry = Registry("retriever")
    registry.api = Api("mlflow-artifacts:/7")
    with pytest.raises(UserError, match="set SLIMTOWER_LOCK to s3://bucket/prefix"):
        lock_store(registry)
    monkeypatch.setenv("SLIMTOWER_LOCK", str(tmp_path))
    store = lock_store(registry)
    assert isinstance(store, FolderLockStore)
    assert store.folder == tmp_path


@pytest.mark.medium
@pytest.mark.parametrize("setting", ["locks", "gs://bucket/locks"])
def test_a_lock_that_is_another_one_in_each_folder_is_refused(monkeypatch, setting) -> None:
    for uri in ("http://server", "sqlite:////tmp/mlflow.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("SLIMTOWER_LOCK", setting)
        registry = Registry("retriever")
        registry.api = Api("s3://bucket/mlflow/7")
        for locate in (lock_store, lock_place):
            with pytest.raises(UserError, match="absolute path of a shared folder"):
                locate(registry)


@pytest.mark.medium
def test_runs_that_mlflow_has_cleared_away_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    registry = Registry("retriever")
    registry.ensure({})
    experiment = registry.experiment()
    pipeline, registered = (registry.api.create_run(experiment).info.run_id for _ in range(2))
    registry.api.log_text(registered, '{"found": 1}', "evidence/a.json")
    tags = {"slimtower.pipeline_run": pipeline, "slimtower.student": "4l"}
    registry.api.create_model_version("retriever", str(tmp_path), run_id=registered, tags=tags)
    assert registry.document("1", "evidence/a.json") == {"found": 1}
    for run_id in (pipeline, registered):
        registry.api.delete_run(run_id)
        registry.api._tracking_client.store._hard_delete_run(run_id)  # as `mlflow gc` does
        assert made_of("retriever/1")["runs"] == {"pipeline": pipeline, "registration": registered, "airflow": None}
    assert registry.document("1", "evidence/a.json") is None
    assert not registry.has_run("1"), "nothing can be kept with it"
