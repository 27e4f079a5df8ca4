"""DAG `rollback`: the previous champion serves again, encoder and index together. Started by hand."""

from pathlib import Path

from airflow.sdk import DAG, Param
from slimtower_dags.deployment import read_deployment
from slimtower_dags.tasks import make_task
from slimtower_dags.variables import MACROS

deployment = read_deployment(Path(__file__).parent)

with DAG(
    dag_id="rollback",
    description="Let the previous champion serve again",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    user_defined_macros=MACROS,
    params={"run": Param("latest", type="string", description="published run whose settings (promote.name) hold")},
    tags=["slimtower"],
    doc_md=__doc__,
) as dag:
    make_task(deployment, "rollback", image="promote", more={"SLIMTOWER_RUN": "{{ run_name(params.run) }}"})
