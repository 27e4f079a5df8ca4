"""Rendered pods, checked against the Kubernetes client's models."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import DEPLOYMENTS, PROJECT
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s
from slimtower_dags.deployment import read_deployment
from slimtower_dags.tasks import make_task

Context = Callable[..., dict[str, Any]]


@pytest.fixture
def pod_of(context: Context, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], k8s.V1Pod]:
    """The pod that a task would be, as the cluster would read it: written as JSON, read back strictly."""
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", DEPLOYMENTS["kubernetes"])
    deployment = read_deployment(PROJECT / "dags")

    def render(what: str) -> k8s.V1Pod:
        task = make_task(deployment, what, image=what.partition("@")[0])
        operator = task.job(context(task_id=task.task_id)).operator
        operator.name = operator._set_name(operator.name)
        pod = operator.build_pod_request_obj(dry_run=True)
        client = ApiClient()
        written = client.sanitize_for_serialization(pod)
        read = client.deserialize(SimpleNamespace(data=json.dumps(written)), "V1Pod")
        assert client.sanitize_for_serialization(read) == written  # no field that the models do not know
        return read

    return render


def test_a_gpu_stage_asks_for_gpus_shared_memory_and_gpu_nodes(pod_of: Callable[[str], k8s.V1Pod]) -> None:
    spec = pod_of("teach").spec
    container = spec.containers[0]
    assert container.resources.limits == {"memory": "131072Mi", "nvidia.com/gpu": "4"}
    assert container.resources.requests["nvidia.com/gpu"] == "4"
    assert container.resources.requests["cpu"] == "16000m"
    assert container.image == "registry.example.com/search/slimtower-teach:1.0-gpu"
    assert spec.node_selector == {"accelerator": "nvidia"}
    assert [(one.key, one.operator, one.effect) for one in spec.tolerations] == [
        ("nvidia.com/gpu", "Exists", "NoSchedule")
    ]
    volumes = {volume.name: volume for volume in spec.volumes}
    mounts = {mount.mount_path: mount.name for mount in container.volume_mounts}
    assert mounts == {"/cache": "cache", "/work": "work", "/dev/shm": "shm"}
    assert (volumes["shm"].empty_dir.medium, volumes["shm"].empty_dir.size_limit) == ("Memory", "16384Mi")
    assert volumes["cache"].persistent_volume_claim.claim_name == "slimtower-cache"
    variables = {one.name: one.value for one in container.env}
    assert variables["SLIMTOWER_REQUIRE_CUDA"] == "1"
    assert variables["SLIMTOWER_PROCESSES"] == "4"


def test_requests_differ_by_stage_and_by_cell(pod_of: Callable[[str], k8s.V1Pod]) -> None:
    mine, table, layers = (pod_of(what).spec for what in ("mine@click", "distill@static", "distill@2l"))
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
    assert [one.secret_ref.name for one in pod.spec.containers[0].env_from] == ["slimtower-s3", "slimtower-mlflow"]
    assert "secret-value" not in str(pod)
    assert pod.spec.security_context.run_as_non_root is True
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.restart_policy == "Never"
    assert pod.metadata.namespace == "retraining"
    assert pod.metadata.name.startswith("slimtower-index")
