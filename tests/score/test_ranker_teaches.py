"""A ranker that the run trains scores as a teacher."""

from pathlib import Path

import pytest
from rank_fakes import PARAMS
from rows import write_rows
from stages import run_score, run_stage

from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table


@pytest.mark.medium
def test_a_ranker_that_the_run_trained_scores_as_a_teacher(linked: Path, embedded: Path, tiny_tower: Path) -> None:
    candidates = [
        (row["query_id"], f"{row['dataset']}/{(number + 2 * step) % 64}", step + 1, 1 / (step + 1))
        for number, row in enumerate(read_table(linked / "data/ingest", "queries").to_pylist())
        for step in range(6)
    ]
    write_rows(linked / "data/candidates/bm25", "candidates", candidates)
    params = PARAMS.model_copy(update={"base": str(tiny_tower), "max_triplets": 20})
    teach, mine = Path("models/teach/cross"), embedded / "data/mine/relevance"
    run_stage("rank", linked, linked / "data/rank/cross", params, teach=teach, mine=mine)
    report = read_json(run_score(linked, "cross") / "report.json")
    assert report["teacher"]["weights"] == fingerprint(linked / teach / "tower").weights
    assert report["score"]["min"] < report["score"]["max"]
