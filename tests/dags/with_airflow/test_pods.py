"""Pods as a cluster receives them, checked against the Kubernetes client's models, and how they end."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from conftest import DEPLOYMENTS, PROJECT
from fake_cluster import LOG, NO_CODE, Cluster, ended, running
from kubernetes.client import ApiClient, ApiException
from kubernetes.client import models as k8s
from slimtower_dags.deployment import read_deployment
from slimtower_dags.tasks import RunnerTask, make_task
from slimtower_dags.variables import WRITTEN

Context = Callable[..., dict[str, Any]]
TaskOf = Callable[[str], RunnerTask]


@pytest.fixture
def task_of(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> TaskOf:
    """The task of a stage, whose pods are the cluster's."""
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", DEPLOYMENTS["kubernetes"])
    deployment = read_deployment(PROJECT / "dags")
    return lambda address: make_task(deployment, address, image=address.partition("@")[0])


@pytest.fixture
def pod_of(task_of: TaskOf, cluster: Cluster, context: Context) -> Callable[[str], k8s.V1Pod]:
    """The pod of a stage as the cluster receives it, read strictly."""

    def create(address: str) -> k8s.V1Pod:
        task = task_of(address)
        task.execute(context(task_id=task.task_id))
        received = cluster.created[-1]
        client = ApiClient()
        parsed = client.deserialize(SimpleNamespace(data=json.dumps(received)), "V1Pod")
        assert client.sanitize_for_serialization(parsed) == received  # no field that the models do not know
        return parsed

    return create


def test_a_gpu_stage_asks_for_gpus_shared_memory_and_gpu_nodes(pod_of: Callable[[str], k8s.V1Pod]) -> None:
    spec = pod_of("teach").spec
    container = spec.containers[0]
    assert container.resources.limits == {"memory": "131072Mi", "nvidia.com/gpu": "4"}
    assert container.resources.requests["nvidia.com/gpu"] == "4"
    assert container.resources.requests["cpu"] == "16000m"
    assert container.image == "registry.example.com/search/slimtower-teach:1.0-gpu"
    assert spec.node_selector == {"accelerator": "nvidia"}
    assert [(toleration.key, toleration.operator, toleration.effect) for toleration in spec.tolerations] == [
        ("nvidia.com/gpu", "Exists", "NoSchedule")
    ]
    volumes = {volume.name: volume for volume in spec.volumes}
    mounts = {mount.mount_path: mount.name for mount in container.volume_mounts}
    assert mounts == {"/cache": "cache", "/work": "work", "/dev/shm": "shm", "/tmp": "tmp"}
    assert (volumes["shm"].empty_dir.medium, volumes["shm"].empty_dir.size_limit) == ("Memory", "16384Mi")
    assert volumes["cache"].persistent_volume_claim.claim_name == "slimtower-cache"
    variables = {variable.name: variable.value for variable in container.env}
    assert variables["SLIMTOWER_REQUIRE_CUDA"] == "1"
    assert variables["SLIMTOWER_PROCESSES"] == "4"


def test_requests_differ_by_stage_and_by_cell(pod_of: Callable[[str], k8s.V1Pod]) -> None:
    mine, table, layers = (pod_of(address).spec for address in ("mine@click", "distill@static", "distill@2l"))
    assert mine.containers[0].resources.requests == {
        "cpu": "8000m", "memory": "65536Mi", "ephemeral-storage": "204800Mi",
    }  # fmt: skip
    assert "nvidia.com/gpu" not in mine.containers[0].resources.limits
    assert not mine.node_selector
    assert not mine.tolerations
    assert "nvidia.com/gpu" not in table.containers[0].resources.limits
    assert layers.containers[0].resources.limits["nvidia.com/gpu"] == "1"
    assert layers.containers[0].args == ["distill@2l"]


def test_secrets_come_by_reference_and_pods_run_without_privileges(
    pod_of: Callable[[str], k8s.V1Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-value")
    pod = pod_of("index")
    assert [source.secret_ref.name for source in pod.spec.containers[0].env_from] == [
        "slimtower-s3",
        "slimtower-mlflow",
    ]
    assert "secret-value" not in str(pod)
    assert pod.spec.security_context.run_as_non_root is True
    security = pod.spec.containers[0].security_context
    assert security.read_only_root_filesystem is True and security.allow_privilege_escalation is False
    assert security.capabilities.drop == ["ALL"] and not security.capabilities.add and not security.privileged
    assert {variable.name: variable.value for variable in pod.spec.containers[0].env}.items() >= WRITTEN.items()
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.restart_policy == "Never"
    assert pod.metadata.namespace == "retraining"
    assert pod.metadata.name.startswith("slimtower-index")


def test_a_pods_output_is_in_the_tasks_log(
    task_of: TaskOf, cluster: Cluster, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    task_of("teach").execute(context())
    logged = capsys.readouterr().out
    assert all(line in logged for line in LOG.splitlines())


def test_the_last_line_of_a_pod_is_the_reason_that_airflow_shows(
    task_of: TaskOf, cluster: Cluster, context: Context
) -> None:
    cluster.status = ended(3)
    with pytest.raises(AirflowFailException, match=r"wrong data or settings: the last line says why$"):
        task_of("teach").execute(context())
    policy = cluster.created[-1]["spec"]["containers"][0]["terminationMessagePolicy"]
    assert policy == "FallbackToLogsOnError"  # else a cluster gives no message


@pytest.mark.parametrize("status", [NO_CODE, running()], ids=["from the start", "evicted while it runs"])
def test_a_pod_that_left_no_code_is_tried_again(
    status: dict[str, Any], task_of: TaskOf, cluster: Cluster, context: Context
) -> None:
    cluster.status = status
    cluster.when_log_is_read = lambda: cluster.set_status(NO_CODE)
    with pytest.raises(AirflowException) as caught:
        task_of("teach").execute(context())
    assert not issubclass(caught.type, AirflowFailException | AirflowSkipException)
    assert not cluster.pods


def test_a_stopped_task_leaves_no_pod(task_of: TaskOf, cluster: Cluster, context: Context) -> None:
    task_of("teach").job(context()).stop()  # nothing was started
    job = task_of("teach").job(context())
    cluster.status = running()
    cluster.when_log_is_read = lambda: (job.stop(), cluster.set_status(ended(143)))
    with pytest.raises(ApiException, match="not found"):
        job.wait()
    assert cluster.created and not cluster.pods


def left_by_dead_worker(task: RunnerTask, cluster: Cluster, context: dict[str, Any]) -> None:
    pod = task.job(context).operator.build_pod_request_obj(context)
    cluster.status = running()
    cluster.add(ApiClient().sanitize_for_serialization(pod))


def test_a_retry_takes_up_the_pod_of_a_dead_worker(task_of: TaskOf, cluster: Cluster, context: Context) -> None:
    left_by_dead_worker(task_of("teach"), cluster, context(1))
    cluster.when_log_is_read = lambda: cluster.set_status(ended(0))
    task_of("teach").execute(context(2))
    assert not cluster.created and not cluster.pods


def test_a_task_that_cannot_tell_its_pod_is_tried_again(task_of: TaskOf, cluster: Cluster, context: Context) -> None:
    for number in (1, 2):
        left_by_dead_worker(task_of("teach"), cluster, context(number))
    with pytest.raises(AirflowException, match="More than one pod") as caught:
        task_of("teach").execute(context(3))
    assert not issubclass(caught.type, AirflowFailException | AirflowSkipException)
