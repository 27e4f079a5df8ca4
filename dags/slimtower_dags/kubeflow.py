"""make kubeflow: the DAG `retrain` for Kubeflow Pipelines, as kubeflow.yaml: the same graph, images and task commands.

Reads dags/deployment.yaml and SLIMTOWER_DEPLOYMENT as Airflow does. Upload the file to Kubeflow, and make a recurring
run of it in place of Airflow's schedule. Promotion stays a command of its own (docs/scheduling.md).
"""

import argparse
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

from kfp import compiler, dsl, kubernetes
from kfp.dsl import ContainerSpec, PipelineTask
from kfp.dsl.pipeline_channel import PipelineParameterChannel

from slimtower_dags.deployment import Deployment, Resources, mebibytes, read_deployment
from slimtower_dags.graph import Graph, SettingsError, all_variables, read_graph, read_variables
from slimtower_dags.variables import CACHE, WORK, WRITTEN, of_resources

DAGS = Path(__file__).resolve().parents[1]
PROJECT = DAGS.parent
RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER
# The images' entry point, but that of a task which found nothing to do (99) Kubeflow is told that it is done.
TASK = 'python -m pipeline.task "$0"; code=$?; [ "$code" -eq 99 ] && exit 0; exit "$code"'
STAGE = f'export SLIMTOWER_RUN="$1" SLIMTOWER_BACKFILL="${{2:+1}}"; {TASK}'  # a given end: a run of the past
# The window ends with the day on which the run was made, unless dates are given: DAG `retrain` does the same.
BEGIN = (
    'export SLIMTOWER_RUN="$1" SLIMTOWER_RECIPE="$2" DATA="$3" SINCE="$4" UNTIL="$5" SLIMTOWER_REF="$6"; made="$7"; '
    'if [ -n "$WINDOW_DAYS" ]; then : "${UNTIL:=$(date -u -d "$made" +%F)}"; '
    '[ "$WINDOW_DAYS" = 0 ] || : "${SINCE:=$(date -u -d "$UNTIL - $WINDOW_DAYS days" +%F)}"; fi; '
    f"unset WINDOW_DAYS; {TASK}"
)


def retrain(deployment: Deployment, graph: Graph) -> Callable[..., None]:
    """The pipeline: begin, every stage of the graph, publish."""

    @dsl.pipeline(name="slimtower-retrain", description="Logs to a published release, at one commit, over one window")
    def pipeline(
        recipe: str = deployment.recipe,
        data: str = deployment.variables.get("DATA", ""),
        since: str = "",
        until: str = "",
        ref: str = deployment.ref,
    ) -> None:
        image = deployment.image("ingest", gpu=False)
        begin = _begin(image, deployment.window_days)(recipe=recipe, data=data, since=since, until=until, ref=ref)
        _equip(begin, deployment, "begin", image, _of_begin(deployment, graph))
        tasks = {"begin": begin}
        for address in TopologicalSorter(graph.direct).static_order():
            tasks[address] = _stage(deployment, address, graph.stages[address].name, until)
            tasks[address].after(*(tasks[before] for before in sorted(graph.direct[address]) or ["begin"]))
        publish = _stage(deployment, "publish", "ingest", until)
        publish.after(*(tasks[leaf] for leaf in graph.leaves))

    return pipeline


def _of_begin(deployment: Deployment, graph: Graph) -> dict[str, str]:
    """Variables of `begin` that no run changes."""
    names = dict.fromkeys(all_variables(PROJECT, deployment.recipe), "") | deployment.variables
    names.pop("DATA", None)  # an argument of the run
    days = {} if deployment.window_days is None else {"WINDOW_DAYS": str(deployment.window_days)}
    return names | days | {"SLIMTOWER_STAGES": " ".join(graph.stages)}


def _begin(image: str, window_days: int | None) -> Callable[..., PipelineTask]:
    # Kubeflow's local runner has no such time
    made = "" if window_days is None else dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER

    @dsl.container_component
    def begin(recipe: str, data: str, since: str, until: str, ref: str) -> ContainerSpec:
        arguments = ["begin", RUN, recipe, data, since, until, ref, made]
        return ContainerSpec(image=image, command=["sh", "-c", BEGIN], args=arguments)

    return begin


def _check_plain(deployment: Deployment) -> None:
    """SettingsError for a value that only Airflow can fill."""
    given = {f"variables.{name}": value for name, value in deployment.variables.items()}
    for key, environment in (("", deployment.environment), ("defaults.", deployment.defaults.environment)):
        given |= {f"{key}environment.{name}": value for name, value in environment.items()}
    for stage, resources in deployment.stages.items():
        given |= {f"stages.{stage}.environment.{name}": value for name, value in resources.environment.items()}
    for key, value in given.items():
        if "{{" in value:
            raise SettingsError(f"deployment: {key} is a template of Airflow; give a value for Kubeflow")


def _stage(deployment: Deployment, address: str, step: str, until: PipelineParameterChannel) -> PipelineTask:
    """The task of a stage, or `publish`, in the image of a step; `until` is the run's, as it was given."""
    image = deployment.image(step, gpu=_resources(deployment, address).gpus > 0)

    def stage(until: str) -> ContainerSpec:
        return ContainerSpec(image=image, command=["sh", "-c", STAGE], args=[address, RUN, until])

    stage.__name__ = address.replace("@", "-").replace("_", "-")
    task = dsl.container_component(stage)(until=until)
    _equip(task, deployment, address, image, {})
    return task


def _resources(deployment: Deployment, address: str) -> Resources:
    step, _, cell = address.partition("@")
    return deployment.resources(step, cell)


def _equip(task: PipelineTask, deployment: Deployment, address: str, image: str, more: dict[str, str]) -> None:
    """Give a task its variables, secrets, volumes, resources and tries, as runner `kubernetes` does."""
    settings, resources = deployment.kubernetes, _resources(deployment, address)
    for name, value in (of_resources(deployment, resources, image) | WRITTEN | more).items():
        task.set_env_variable(name, value)
    for secret in settings.secrets:
        kubernetes.use_secret_as_env(task, secret, {name: name for name in deployment.docker.pass_}, optional=True)
    task.set_cpu_request(f"{int(resources.cpus * 1000)}m")
    task.set_memory_request(mebibytes(resources.memory_gib)).set_memory_limit(mebibytes(resources.memory_gib))
    if resources.gpus:
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(resources.gpus)
    selector = settings.node_selector | (settings.gpu_node_selector if resources.gpus else {})
    for key, value in selector.items():
        kubernetes.add_node_selector(task, key, value)
    for toleration in settings.gpu_tolerations if resources.gpus else []:
        kubernetes.add_toleration(task, **toleration)
    if settings.cache_claim:
        kubernetes.mount_pvc(task, settings.cache_claim, CACHE)
    else:
        kubernetes.empty_dir_mount(task, "cache", CACHE)
    kubernetes.empty_dir_mount(task, "work", WORK, size_limit=mebibytes(resources.disk_gib))
    kubernetes.empty_dir_mount(task, "shm", "/dev/shm", "Memory", mebibytes(resources.shm_gib))
    kubernetes.set_security_context(task, run_as_user=settings.user, run_as_non_root=True)
    if settings.pull_secrets:
        kubernetes.set_image_pull_secrets(task, settings.pull_secrets)
    kubernetes.set_timeout(task, int(resources.timeout_h * 3600))
    task.set_retry(deployment.retries, f"{deployment.retry_delay_s}s", 2, "3600s")
    task.set_caching_options(False)  # DVC knows what to run again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("kubeflow.yaml"))
    output = parser.parse_args().output
    try:
        deployment = read_deployment(DAGS)
        graph = read_graph(PROJECT, deployment.recipe, deployment.variables)
        deployment.check_variables(read_variables(PROJECT, deployment.recipe))
        deployment.check_steps(graph.steps | {"begin", "publish", "promote", "deploy", "rollback"})
        _check_plain(deployment)
        compiler.Compiler().compile(retrain(deployment, graph), str(output))
    except SettingsError as error:
        sys.exit(f"kubeflow: {error}")
    print(f"kubeflow: {output}, {len(graph.stages) + 2} tasks")


if __name__ == "__main__":
    main()
