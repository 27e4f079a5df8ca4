"""Runner `kubernetes`: a task is a pod."""

from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s

from slimtower_dags.deployment import Kubernetes, Resources, mebibytes
from slimtower_dags.variables import CACHE, WORK, WRITTEN


class PodJob:
    """`python -m pipeline.task WHAT`, which is the images' entry point, in a pod. Secrets reach it by reference."""

    def __init__(
        self,
        task_name: str,
        image: str,
        settings: Kubernetes,
        resources: Resources,
        environment: dict[str, str],
        context: Any,
    ) -> None:
        volumes, mounts = _volumes(settings, resources)
        gpu = bool(resources.gpus)
        self.context = context
        self.operator = KubernetesPodOperator(
            task_id=context["ti"].task_id,
            image=image,
            arguments=[task_name],
            name=f"slimtower-{task_name}".replace("@", "-").replace("_", "-").lower(),
            namespace=settings.namespace,
            env_vars=environment | WRITTEN,
            env_from=[k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name=name)) for name in settings.secrets],
            container_resources=_requirements(resources),
            volumes=volumes,
            volume_mounts=mounts,
            node_selector=settings.node_selector | (settings.gpu_node_selector if gpu else {}),
            tolerations=[k8s.V1Toleration(**toleration) for toleration in settings.gpu_tolerations] if gpu else [],
            security_context=k8s.V1PodSecurityContext(
                run_as_non_root=True,
                run_as_user=settings.user,
                fs_group=settings.user,
                seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
            ),
            container_security_context=k8s.V1SecurityContext(
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=k8s.V1Capabilities(drop=["ALL"]),
            ),
            service_account_name=settings.service_account or None,
            automount_service_account_token=False,  # of Kubernetes: tasks do not speak to it
            image_pull_secrets=[k8s.V1LocalObjectReference(name=name) for name in settings.pull_secrets],
            startup_timeout_seconds=settings.start_timeout_s,
            on_finish_action="delete_pod",
            log_pod_spec_on_failure=False,
            termination_message_policy="FallbackToLogsOnError",  # the error then ends with the log's end
            deferrable=False,
            allow_nested_operators=True,  # see RunnerTask
        )

    def wait(self) -> tuple[int, str]:
        """Run the pod, its output in the log; returns the exit code and the last line.

        A pod that was evicted, or whose node is lost, leaves no code: its error is passed on, and Airflow tries again.
        """
        try:
            self.operator.execute(self.context)
        except AirflowException as error:
            code = exit_code(self.operator.remote_pod, self.operator.base_container_name)
            if not code:
                raise
            return code, str(error).rstrip().splitlines()[-1]
        return 0, ""

    def stop(self) -> None:
        self.operator.on_kill()


def exit_code(pod: k8s.V1Pod | None, container: str) -> int | None:
    """The code with which a pod's container ended; None where it left none."""
    statuses = (pod and pod.status and pod.status.container_statuses) or []
    ended = [status.state.terminated for status in statuses if status.name == container and status.state]
    return ended[0].exit_code if ended and ended[0] else None


def _requirements(resources: Resources) -> k8s.V1ResourceRequirements:
    """CPU is asked for and may be exceeded; memory and GPUs are what they are."""
    memory = mebibytes(resources.memory_gib)
    gpus = {"nvidia.com/gpu": str(resources.gpus)} if resources.gpus else {}
    requests = {
        "cpu": f"{int(resources.cpus * 1000)}m",
        "memory": memory,
        "ephemeral-storage": mebibytes(resources.disk_gib),
    }
    return k8s.V1ResourceRequirements(requests=requests | gpus, limits={"memory": memory} | gpus)


def _volumes(settings: Kubernetes, resources: Resources) -> tuple[list[k8s.V1Volume], list[k8s.V1VolumeMount]]:
    """The cache, room for the task's clone, and shared memory for data loaders and NCCL."""
    empty = k8s.V1EmptyDirVolumeSource
    cache = k8s.V1Volume(name="cache", empty_dir=empty())
    if settings.cache_claim:
        claim = k8s.V1PersistentVolumeClaimVolumeSource(claim_name=settings.cache_claim)
        cache = k8s.V1Volume(name="cache", persistent_volume_claim=claim)
    work = k8s.V1Volume(name="work", empty_dir=empty(size_limit=mebibytes(resources.disk_gib)))
    shm = k8s.V1Volume(name="shm", empty_dir=empty(medium="Memory", size_limit=mebibytes(resources.shm_gib)))
    tmp = k8s.V1Volume(name="tmp", empty_dir=empty(size_limit="64Mi"))  # of programs that know no other place
    mount_paths = {"cache": CACHE, "work": WORK, "shm": "/dev/shm", "tmp": "/tmp"}
    return [cache, work, shm, tmp], [
        k8s.V1VolumeMount(name=name, mount_path=path) for name, path in mount_paths.items()
    ]
