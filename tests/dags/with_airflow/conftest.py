"""What the tests in Airflow's environment share. They run apart from the project's: see ../test_with_airflow.py."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import Cluster, serve

PROJECT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(PROJECT / "dags"))
DEPLOYMENTS = {
    "docker": "",
    "process": str(PROJECT / "dags/deployments/laptop.yaml"),
    "kubernetes": str(PROJECT / "dags/deployments/gpu_cluster.yaml"),
}


@pytest.fixture
def context() -> Callable[..., dict[str, Any]]:
    """Airflow's context of one try; tries that are given the same store belong to the same task."""

    def make(try_number: int = 1, store: dict[str, Any] | None = None, task_id: str = "teach") -> dict[str, Any]:
        values = {} if store is None else store
        memory = SimpleNamespace(get=values.get, set=values.__setitem__)
        task = SimpleNamespace(
            dag_id="retrain",
            run_id="run",
            task_id=task_id,
            map_index=-1,
            try_number=try_number,
            xcom_push=lambda **_: None,
        )
        return {"ti": task, "run_id": "run", "dag": SimpleNamespace(), "task_state_store": memory}

    return make


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster of Airflow's connection `kubernetes_default`."""
    cluster = Cluster()
    with serve(cluster) as connection:
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", connection)
        yield cluster
