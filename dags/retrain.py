"""DAG `retrain`: begin, every stage of dvc.yaml as a task of its own, publish. Weekly, and when new logs land."""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, Param
from slimtower_dags import variables
from slimtower_dags.assets import LOG_PARTITIONS, RELEASE, announce
from slimtower_dags.deployment import read_deployment
from slimtower_dags.graph import all_variables, read_graph, read_variables
from slimtower_dags.tasks import PROJECT, make_task

DATE = r"^(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ].*)?)?$"

deployment = read_deployment(Path(__file__).parent)
graph = read_graph(PROJECT, deployment.recipe, deployment.variables)
deployment.check_variables(read_variables(PROJECT, deployment.recipe))
deployment.check_steps(graph)

schedule = [LOG_PARTITIONS]
if deployment.schedule:
    weekly = CronDataIntervalTimetable(deployment.schedule, timezone="UTC")
    schedule = AssetOrTimeSchedule(timetable=weekly, assets=schedule)

with DAG(
    dag_id="retrain",
    description="Logs to a published release: every stage of dvc.yaml, at one commit and over one window",
    schedule=schedule,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=deployment.parallel,
    user_defined_macros=variables.MACROS,
    params={
        "recipe": Param(
            deployment.recipe, type="string", description="recipes/<name>.yaml; its students must be the DAG's"
        ),
        "data": Param(deployment.variables.get("DATA", ""), type="string", description="DATA of the recipe"),
        "since": Param(
            "", type="string", pattern=DATE, description="first date to read (ISO, UTC); empty: by window_days"
        ),
        "until": Param(
            "",
            type="string",
            pattern=DATE,
            description="first date not to read, of a past window, not served; empty: by window_days",
        ),
        "ref": Param(deployment.ref, type="string", description="commit, branch or tag of the project"),
    },
    # Airflow's column of schedules names the asset alone
    tags=["slimtower", *([f"cron {deployment.schedule} UTC"] if deployment.schedule else [])],
    doc_md=__doc__,
) as dag:
    begin_variables = variables.of_begin(deployment, list(graph.stages), all_variables(PROJECT, deployment.recipe))
    begin = make_task(deployment, "begin", image="ingest", more=begin_variables)
    past = {"SLIMTOWER_BACKFILL": "{{ '1' if is_past(params, dag_run) else '' }}"}
    tasks = {
        address: make_task(deployment, address, image=stage.name, more=past) for address, stage in graph.stages.items()
    }
    publish = make_task(deployment, "publish", image="ingest", more=past, outlets=[RELEASE], post_execute=announce)
    begin >> [tasks[address] for address in graph.roots]
    for address, before in graph.direct.items():
        for predecessor in sorted(before):
            tasks[predecessor] >> tasks[address]
    [tasks[address] for address in graph.leaves] >> publish
