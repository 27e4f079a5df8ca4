"""A task of a DAG, on whichever runner the deployment names."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from airflow.sdk import BaseOperator

from slimtower_dags import variables
from slimtower_dags.deployment import Deployment
from slimtower_dags.exit_codes import is_second_chance, settle

PROJECT = Path(__file__).resolve().parents[2]  # the checkout that holds dags/


class Job(Protocol):
    """A task's process, container or pod."""

    def wait(self) -> tuple[int, str]:
        """Exit code and last line."""

    def stop(self) -> None:
        """End it early."""


class RunnerTask(BaseOperator):
    """`python -m pipeline.task WHAT` in the image of one step, its exit code made Airflow's.

    A runner's provider is imported where the task runs, never where the DAG is parsed. So its operator runs inside this
    one, and Airflow's warning in the log that it `cannot be called outside of the Task Runner` is expected.
    """

    template_fields = ("environment",)

    def __init__(
        self, *, task_name: str, image: str, environment: dict[str, str], deployment: Deployment, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.task_name = task_name
        self.image = image
        self.environment = environment
        self.deployment = deployment
        self._job: Job | None = None

    @property
    def custom_operator_name(self) -> str:
        """What Airflow's pages show below the task's id: the runner, such as `process`."""
        return self.deployment.runner

    def execute(self, context: Any) -> None:
        self._job = self.job(context)
        code, last_line = self._job.wait()
        settle(code, context, last_line)

    def job(self, context: Any) -> Job:
        """The process, container or pod of this try: after one that was killed, with a smaller micro-batch."""
        deployment, environment = self.deployment, dict(self.environment)
        step, _, cell = self.task_name.partition("@")
        resources = deployment.resources(step, cell)
        if resources.micro_batch and is_second_chance(context):
            environment["SLIMTOWER_MICRO_BATCH"] = str(resources.micro_batch)
        if deployment.runner == "docker":
            from slimtower_dags.docker_job import ContainerJob

            return ContainerJob(self.task_name, self.image, deployment.docker, resources, environment, context)
        if deployment.runner == "kubernetes":
            from slimtower_dags.kubernetes_job import PodJob

            return PodJob(self.task_name, self.image, deployment.kubernetes, resources, environment, context)
        from slimtower_dags.process_job import ProcessJob

        return ProcessJob(self.task_name, PROJECT, environment, self.log)

    def on_kill(self) -> None:
        """Stop it when the task takes too long, or is stopped or marked by hand."""
        if self._job is not None:
            self._job.stop()


def make_task(
    deployment: Deployment, task_name: str, *, image: str, more: dict[str, str] | None = None, **kwargs: Any
) -> RunnerTask:
    """The task that runs `python -m pipeline.task WHAT`; `task_name` is WHAT, such as begin or a stage's address.

    `image`: the step whose image holds what it needs. `more`: variables besides those of every task. `kwargs` are
    for Airflow's operator.
    """
    step, _, cell = task_name.partition("@")
    resources = deployment.resources(step, cell)
    name = deployment.image(image, gpu=resources.gpus > 0)
    return RunnerTask(
        task_id=task_name.replace("@", "-"),
        task_name=task_name,
        image=name,
        environment=variables.of_task(deployment, resources, name) | (more or {}),
        deployment=deployment,
        trigger_rule="none_failed",
        pool=resources.pool,
        retries=deployment.retries,
        retry_delay=timedelta(seconds=deployment.retry_delay_s),
        retry_exponential_backoff=2.0,
        max_retry_delay=timedelta(hours=1),
        execution_timeout=timedelta(hours=resources.timeout_h),
        do_xcom_push=False,
        **kwargs,
    )
