"""Without a judgement: a student aligns, then learns what a late interaction model makes of its teacher's hits."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from late_fakes import write_late_teacher
from scipy.special import log_softmax
from stages import SCORE, distill_params, run_distill, run_score

from slimtower.common.files import read_json
from steps.core.tables import SCHEMAS, read_table, write_table
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.slow

ALIGNED = {
    "start": {"layers": [0, -1]},
    "losses": [{"kind": "embedding", "distance": "l2"}],
    "epochs": 2.0,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "warmup_ratio": 0.1,
}


def test_refinement_brings_a_student_to_the_stronger_teachers_order(
    tmp_path: Path, tiny_tower: Path, embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("data", "models"):
        shutil.copytree(embedded / name, tmp_path / name)
    write_table(tmp_path / "data/ingest", "qrels", SCHEMAS["qrels"].empty_table())
    write_table(tmp_path / "data/mine/relevance", "triplets", SCHEMAS["triplets"].empty_table())
    write_late_teacher(tmp_path / "models/teach/late", tiny_tower)
    scores = run_score(tmp_path, "late", SCORE.model_copy(update={"max_texts": {"late": 200}}))
    temperature = read_json(scores / "report.json")["targets"]["temperature"]
    assert f"a teacher_temperature near {temperature:.2g} makes" in capsys.readouterr().err

    learned = {"kind": "score_kl", "teacher": "late", "temperature": 0.05, "teacher_temperature": temperature}
    phase = {"losses": [learned, {"kind": "embedding", "weight": 0.1}], "teacher_top_k": 4}
    refined = ALIGNED | {"then": [phase | {"epochs": 6.0, "learning_rate": 3e-3}]}
    students = {"aligned": ALIGNED, "refined": refined}
    params = distill_params(students=list(students), student=students)
    table = read_table(scores, "scores")
    texts = read_table(tmp_path / "data/embed", "alignment_texts")["text"].to_pylist()
    rows, near, wanted = (table[name].to_numpy().reshape(-1, 4) for name in ("text_row", "doc_row", "score"))
    documents = np.load(tmp_path / "data/embed/documents.npy").astype(np.float64)
    found = {}
    for student in students:
        output = run_distill(tmp_path, student, params)
        tower = load_tower(output / "query_encoder")
        asked = encode(tower, [texts[row] for row in rows[:, 0].tolist()], "query").astype(np.float64)
        given = log_softmax(np.einsum("td,tkd->tk", asked, documents[near]) / 0.05, axis=1)
        goal = log_softmax(wanted.astype(np.float64) / temperature, axis=1)
        found[student] = float((np.exp(goal) * (goal - given)).sum(axis=1).mean())
    assert found["refined"] < 0.8 * found["aligned"]
