"""Runner `docker`: a task is a container on the engine at DOCKER_HOST."""

import os
import re
from typing import Any

from airflow.providers.docker.exceptions import DockerContainerFailedException, DockerContainerFailedSkipException
from airflow.providers.docker.operators.docker import DockerOperator
from docker.types import DeviceRequest

from slimtower_dags.deployment import Docker, Resources

CACHE = "/cache"
NOTHING = 99
_CODE = re.compile(r"'StatusCode': (\d+)")


class ContainerOperator(DockerOperator):
    """A container that knows the digest of its image."""

    def _run_image(self) -> Any:
        """Name the image, which is on the engine by now, among the container's variables."""
        if "SLIMTOWER_IMAGE_DIGEST" not in self.environment:
            image = self.cli.inspect_image(self.image)
            pushed = [name.partition("@")[2] for name in image.get("RepoDigests") or []]
            self.environment["SLIMTOWER_IMAGE_DIGEST"] = next(iter(pushed), image["Id"])
        return super()._run_image()


class ContainerJob:
    """`python -m steps.core.task WHAT`, which is the images' entry point, in a container."""

    def __init__(
        self, what: str, image: str, settings: Docker, resources: Resources, environment: dict[str, str], context: Any
    ) -> None:
        gib = 2**30
        kind = "bind" if settings.cache.startswith("/") else "volume"
        gpus = [DeviceRequest(count=resources.gpus, capabilities=[["gpu"]])] if resources.gpus else None
        self.context = context
        self.operator = ContainerOperator(
            task_id=context["ti"].task_id,
            image=image,
            command=[what],
            environment=dict(environment),
            # read where the task runs, at that time: neither the serialised DAG nor Airflow's pages hold them
            private_environment={name: os.environ[name] for name in settings.pass_ if os.environ.get(name)},
            network_mode=settings.network,
            mounts=[{"source": settings.cache, "target": CACHE, "type": kind}, *settings.mounts],
            cpus=resources.cpus,
            mem_limit=int(resources.memory_gib * gib),
            shm_size=int(resources.shm_gib * gib) or None,
            device_requests=gpus,
            mount_tmp_dir=False,
            auto_remove="force",
            skip_on_exit_code=NOTHING,
        )

    def wait(self) -> tuple[int, str]:
        """Run the container, its output in the log; returns the exit code and the last line."""
        try:
            DockerOperator.execute.__wrapped__(self.operator, self.context)  # type: ignore[attr-defined]
        except DockerContainerFailedSkipException:
            return NOTHING, ""
        except DockerContainerFailedException as error:
            if (found := _CODE.search(str(error))) is None:
                raise
            said = [str(line) for line in error.logs or [] if line]
            return int(found[1]), said[-1] if said else ""
        return 0, ""

    def stop(self) -> None:
        """Stop and remove the container."""
        self.operator.on_kill()
