"""A ranker that the run trains scores as a teacher, and a student learns its scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rank_fakes import PARAMS
from sentence_transformers import SentenceTransformer
from stages import FAST, distill_params, run_distill, run_embed, run_score

from pipeline.params import check_params
from slimtower.common.files import read_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.distill.params import DistillParams
from steps.encoders.towers import load_tower
from steps.rank.run import run as rank
from steps.tracking.runs import NullRun

ROOT = Path(__file__).parents[2]
LOSSES = [{"kind": "score_softmax", "teacher": "cross", "temperature": 0.3}]
STUDENT = FAST | {"start": {"layers": [0, -1]}, "teacher_top_k": 4, "losses": LOSSES, "epochs": 12.0}


def student(rate: float) -> DistillParams:
    known = distill_params().model_dump()["student"]
    return distill_params(student=known | {"ranked": STUDENT | {"learning_rate": rate}})


def agreement(root: Path) -> float:
    """Correlation of the student's and the ranker's scores of each text's own documents, over all texts."""
    scores = read_table(root / "data/score/cross", "scores")
    texts = read_table(root / "data/embed", "alignment_texts")["text"].to_pylist()
    tower = SentenceTransformer(str(root / "models/distill/ranked/query_encoder"), device="cpu")
    asked, held = tower.encode(texts), np.load(root / "data/embed/documents.npy")
    text_rows, doc_rows = (scores[name].to_numpy() for name in ("text_row", "doc_row"))
    given = scores["score"].to_numpy().reshape(len(texts), -1)
    found = np.einsum("nd,nd->n", asked[text_rows], held[doc_rows]).reshape(given.shape)
    ours, theirs = (each - each.mean(axis=1, keepdims=True) for each in (found, given))
    return float(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_student_learns_the_scores_of_the_ranker_that_the_run_trained(tmp_path: Path, tiny_tower: Path) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["rank"]["rankers"] = raw["score"]["teachers"] = ["cross"]
    raw["distill"]["student"]["4l"] |= {"losses": LOSSES}
    check_params(raw, "params.yaml")  # a run may be set like this

    teacher = load_tower(tiny_tower)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.mul_(10 if weight.ndim > 1 else 1)  # a small random network embeds all texts nearly alike
    teacher.save_pretrained(str(tmp_path / "teacher"), create_model_card=False)
    run_embed(tmp_path, tmp_path / "teacher")
    ingest = tmp_path / "data/ingest"
    queries = read_table(ingest, "queries").to_pylist()
    found = [
        {"query_id": row["query_id"], "doc_id": f"{row['dataset']}/{(place + 2 * step) % 64}", "rank": step + 1}
        for place, row in enumerate(queries)
        for step in range(6)
    ]
    rows = [row | {"score": 1.0 / row["rank"]} for row in found]
    write_table(tmp_path / "data/candidates/bm25", "candidates", table_from_rows("candidates", rows))
    changes = {"base": str(tmp_path / "teacher"), "learning_rate": 1e-3, "epochs": 2.0}
    rank(
        ingest=ingest,
        candidates=tmp_path / "data/candidates",
        mine=tmp_path / "data/mine/relevance",
        params=PARAMS.model_copy(update=changes),
        output=tmp_path / "data/rank/cross",
        teach=tmp_path / "models/teach/cross",
        run=NullRun(),
    )
    report = read_json(run_score(tmp_path, "cross") / "report.json")
    assert report["teacher"]["weights"] and report["score"]["min"] < report["score"]["max"]

    run_distill(tmp_path, "ranked", student(1e-30))
    before = agreement(tmp_path)
    output = run_distill(tmp_path, "ranked", student(3e-3))
    assert read_json(output / "report.json")["losses"] == ["score_softmax@cross"]
    assert agreement(tmp_path) > max(0.5, before + 0.2)
