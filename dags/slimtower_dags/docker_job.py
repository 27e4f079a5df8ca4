"""Runner `docker`: a task is a container on the engine at DOCKER_HOST."""

import contextlib
import hashlib
import os
import re
from functools import partial
from typing import Any

from airflow.providers.docker.exceptions import DockerContainerFailedException, DockerContainerFailedSkipException
from airflow.providers.docker.operators.docker import DockerOperator
from docker.errors import APIError, NotFound
from docker.types import DeviceRequest

from slimtower_dags.deployment import Docker, Resources
from slimtower_dags.variables import CACHE, WORK, WRITTEN, run_name

# What tasks may do on the engine's machine: nothing but write to their volumes and to a little memory.
LOCKED_DOWN: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "tmpfs": {"/tmp": "size=64m,exec"},  # exec: Spark unpacks libraries there and loads them
}
NOTHING = 99
STOP_S = 3  # from asking to killing: Airflow kills its own worker after 5
_CODE = re.compile(r"'StatusCode': (\d+)")


class ContainerOperator(DockerOperator):
    """A container that knows the digest of its image, and of whose name there is never a second."""

    def execute(self, context: Any) -> Any:
        """Remove what a try whose worker died has left, and tell the container the digest of its image.

        The container is removed at the end. If the engine cannot do that, the task still ends as the container did.
        """
        with contextlib.suppress(NotFound):
            self.cli.remove_container(self.container_name, v=True, force=True)
            self.log.warning("removed container %s, which an earlier try had left", self.container_name)
        if "SLIMTOWER_IMAGE_DIGEST" not in self.environment:
            self.environment["SLIMTOWER_IMAGE_DIGEST"] = self.digest()
        self.cli.create_host_config = partial(self.cli.create_host_config, **LOCKED_DOWN)  # not among the operator's
        try:
            return super().execute(context)
        finally:
            self.remove()

    def remove(self) -> None:
        if self.container is None:
            return
        try:
            with contextlib.suppress(NotFound):  # it is gone
                self.cli.remove_container(self.container["Id"], v=True, force=True)
        except (APIError, OSError) as error:
            self.log.warning("container %s is left on the engine: %s", self.container_name, error)

    def digest(self) -> str:
        """The image's digest in its registry, else its id; an image that the engine does not have is pulled."""
        if not self.cli.images(name=self.image):
            for progress in self.cli.pull(self.image, stream=True, decode=True):
                if "id" not in progress:  # not of a single layer
                    self.log.info("pulling %s: %s", self.image, progress.get("status") or progress)
        image = self.cli.inspect_image(self.image)
        pushed = [name.partition("@")[2] for name in image.get("RepoDigests") or []]
        return str(next(iter(pushed), image["Id"]))

    def on_kill(self) -> None:
        """Stop and remove the container before Airflow kills the worker."""
        if self.container is None:
            return
        with contextlib.suppress(APIError, OSError):  # it has ended
            self.cli.stop(self.container["Id"], timeout=STOP_S)
        self.remove()


def container_name(context: Any, remote: str) -> str:
    """One name for all tries of a task of a run; other deployments on the engine have other remotes."""
    task = context["ti"]
    digest = hashlib.sha256("\n".join((remote, task.dag_id, task.run_id, task.task_id)).encode()).hexdigest()
    return run_name(f"slimtower-{task.dag_id}-{task.task_id}-{digest[:12]}")


class ContainerJob:
    """`python -m pipeline.task WHAT`, which is the images' entry point, in a container."""

    def __init__(
        self,
        task_name: str,
        image: str,
        settings: Docker,
        resources: Resources,
        environment: dict[str, str],
        context: Any,
    ) -> None:
        gib = 2**30
        kind = "bind" if settings.cache.startswith("/") else "volume"
        gpus = [DeviceRequest(count=resources.gpus, capabilities=[["gpu"]])] if resources.gpus else None
        # read where the task runs, at that time: neither the serialised DAG nor Airflow's pages hold them
        variables = {name: os.environ.get(f"TASK_{name}", os.environ.get(name)) for name in settings.pass_}
        private = {name: value for name, value in variables.items() if value and name not in environment}
        self.context = context
        self.operator = ContainerOperator(
            task_id=context["ti"].task_id,
            container_name=container_name(context, (environment | private).get("SLIMTOWER_REMOTE", "")),
            image=image,
            command=[task_name],
            environment=environment | WRITTEN,
            private_environment=private,
            network_mode=settings.network,
            mounts=[
                {"source": settings.cache, "target": CACHE, "type": kind},
                {"source": None, "target": WORK, "type": "volume"},  # of the container, and removed with it
                *settings.mounts,
            ],
            cpus=resources.cpus,
            mem_limit=int(resources.memory_gib * gib),
            shm_size=int(resources.shm_gib * gib) or None,
            device_requests=gpus,
            mount_tmp_dir=False,
            auto_remove="never",  # ContainerOperator does
            skip_on_exit_code=NOTHING,
            allow_nested_operators=True,  # see RunnerTask
        )

    def wait(self) -> tuple[int, str]:
        """Run the container, its output in the log; returns the exit code and the last line."""
        try:
            self.operator.execute(self.context)
        except DockerContainerFailedSkipException:
            return NOTHING, ""
        except DockerContainerFailedException as error:
            if (match := _CODE.search(str(error))) is None:
                raise
            lines = [str(line) for line in error.logs or [] if line]
            return int(match[1]), lines[-1] if lines else ""
        return 0, ""

    def stop(self) -> None:
        self.operator.on_kill()
