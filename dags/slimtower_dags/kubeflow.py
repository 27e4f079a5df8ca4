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
RUN_LABEL = "metadata.labels['pipeline/runid']"  # of each pod: a container's own words are not filled in a cluster
# The images' entry point; but a task which found nothing to do, 99, is done to Kubeflow.
TASK = 'python -m pipeline.task "$0"; code=$?; [ "$code" -eq 99 ] && exit 0; exit "$code"'
STAGE = f'export SLIMTOWER_BACKFILL="${{1:+1}}"; {TASK}'  # a given end: a run of the past
# The window ends before today, unless dates are given, as that of an Airflow run that a person starts (variables.py).
BEGIN = (
    'export SLIMTOWER_RECIPE="$1" DATA="$2" SINCE="$3" UNTIL="$4" SLIMTOWER_REF="$5"; '
    'if [ -n "$WINDOW_DAYS" ]; then : "${UNTIL:=$(date -u +%F)}"; '
    'if [ -z "$SINCE" ] && [ "$WINDOW_DAYS" != 0 ]; then '
    'SINCE=$(date -u -d "${UNTIL%%[T ]*} $WINDOW_DAYS days ago" +%F) || exit 3; fi; fi; '
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
        begin = _begin(image)(recipe=recipe, data=data, since=since, until=until, ref=ref)
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


def _begin(image: str) -> Callable[..., PipelineTask]:
    @dsl.container_component
    def begin(recipe: str, data: str, since: str, until: str, ref: str) -> ContainerSpec:
        arguments = ["begin", recipe, data, since, until, ref]
        return ContainerSpec(image=image, command=["sh", "-c", BEGIN], args=arguments)

    return begin


def _check(deployment: Deployment) -> None:
    """SettingsError for what only Airflow can fill, and for several secrets, as Kubeflow must know the keys of each."""
    if len(deployment.kubernetes.secrets) > 1:
        raise SettingsError("deployment: kubernetes.secrets: name one secret that holds all variables of docker.pass")
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
        return ContainerSpec(image=image, command=["sh", "-c", STAGE], args=[address, until])

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
    plain = of_resources(deployment, resources, image) | WRITTEN | more
    for name, value in plain.items():
        task.set_env_variable(name, value)
    if "SLIMTOWER_RUN" not in plain:
        kubernetes.use_field_path_as_env(task, "SLIMTOWER_RUN", RUN_LABEL)
    for secret in settings.secrets:
        private = {name: name for name in deployment.docker.pass_ if name not in plain}
        kubernetes.use_secret_as_env(task, secret, private, optional=True)  # it need not hold all of them
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
    tries, delay = deployment.retries + 1, deployment.retry_delay_s
    longest = tries * int(resources.timeout_h * 3600) + delay * 2**tries  # from the first try's start to the last's end
    task.set_retry(deployment.retries, f"{delay}s", 2, f"{longest}s")
    task.set_caching_options(False)  # DVC knows what to run again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("kubeflow.yaml"))
    output = parser.parse_args().output
    try:
        deployment = read_deployment(DAGS)
        graph = read_graph(PROJECT, deployment.recipe, deployment.variables)
        deployment.check_variables(read_variables(PROJECT, deployment.recipe))
        deployment.check_steps(graph)
        _check(deployment)
        compiler.Compiler().compile(retrain(deployment, graph), str(output))
    except (ValueError, TypeError) as error:  # SettingsError, or kfp's own
        sys.exit(f"kubeflow: {error}")
    except OSError as error:
        sys.exit(f"kubeflow: {output}: cannot be written ({error.strerror}); name a file in a folder that is there")
    print(f"kubeflow: {output}, {len(graph.stages) + 2} tasks")


if __name__ == "__main__":
    main()
