"""DAG `promote`: a new release becomes the champion if the gate approves, and a person before it where asked to.

Where the deployment names a vector engine, the champion is deployed there after that.
"""

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task
from slimtower_dags.assets import RELEASE, serving_run
from slimtower_dags.deployment import read_deployment
from slimtower_dags.tasks import make_task
from slimtower_dags.variables import MACROS

deployment = read_deployment(Path(__file__).parent)

with DAG(
    dag_id="promote",
    description="Register the release, put it to the gate, let it serve",
    schedule=[RELEASE],
    catchup=False,
    max_active_runs=1,
    user_defined_macros=MACROS,
    params={"run": Param("", type="string", description="run of retrain; empty: that of the event, by hand `latest`")},
    tags=["slimtower"],
    doc_md=__doc__,
) as dag:
    run = "{{ ti.xcom_pull(task_ids='for-serving') }}"
    named = {"SLIMTOWER_RUN": run, "SLIMTOWER_ANNOUNCED": "{{ '' if params.run else '1' }}"}
    promote = make_task(deployment, "promote", image="promote", more=named)

    @task.short_circuit(task_id="for-serving", ignore_downstream_trigger_rules=True)
    def for_serving(params=None, triggering_asset_events=None):
        """The run of the release, the same for all that follows; stop where only releases of past windows called."""
        return serving_run(params, triggering_asset_events)

    before = for_serving()
    if deployment.promote.approval:
        approval = ApprovalOperator(
            task_id="approval",
            subject=f"Promote the release of run {run}?",
            body="Its report is in the MLflow run of stage `evaluate`. The gate still decides after you: a release "
            "that is worse than the champion is refused whatever the answer.",
            defaults=ApprovalOperator.REJECT,
            response_timeout=timedelta(hours=deployment.promote.approval_hours),
            ignore_downstream_trigger_rules=True,
        )
        before >> approval
        before = approval
    before >> promote
    if deployment.promote.deploy_to:
        more = {"SLIMTOWER_RUN": run, "SLIMTOWER_DEPLOY_TO": deployment.promote.deploy_to}
        promote >> make_task(deployment, "deploy", image="deploy", more=more)
