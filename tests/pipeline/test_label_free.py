"""recipes/label_free.yaml from end to end, on data whose only judgements are those of the test queries."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from whole_run import STUDENT, params_of, run_all, write_beir

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.distill.losses.base import Need
from steps.retrieval.rankers import load_ranker


def test_no_judgement_of_the_data_reaches_a_student() -> None:
    params = params_of("label_free.yaml", Path("tower"), DATA="data")
    assert params.candidates.searchers == [] and params.score.positives == 0
    for student in params.distill.student.values():
        for phase in student.phases:
            assert phase.labels != "train" or not phase.needs(Need.CANDIDATES)


@pytest.mark.parametrize(
    ("cross", "epochs", "refused"),
    [("/runs/scorers/", 0.0, False), ("/runs/scorers/", 1.0, True), ("", 0.0, True), ("././", 0.0, True)],
)
def test_scorers_of_another_run_are_taken_as_they_are(cross: str, epochs: float, refused: bool) -> None:
    """As the recipe's own command names them; of this run, or to be trained further, a cross encoder is refused."""
    models = {"LATE": "/runs/scorers/models/teach/late/tower", "CROSS": f"{cross}models/teach/cross/tower"}
    changes = {"teach": {"teacher": {"cross": {"epochs": epochs}}}}
    with pytest.raises(UserError, match=r"would be made of its own judgements") if refused else nullcontext():
        params = params_of("label_free.yaml", Path("tower"), changes, DATA="data", SCORERS="late,cross", **models)
        assert params.teach.described("cross").model_dump()["base"] == models["CROSS"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_students_learn_what_colbert_makes_of_the_teachers_hits_and_evaluate_shows_both(
    tmp_path: Path, tiny_tower: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "given"
    write_beir(data / "own", judged={"test": slice(40)})
    load_ranker(tiny_tower, 32).save_pretrained(str(tmp_path / "ranker"), create_model_card=False)
    changes = {
        "teach": {"teacher": {"late": {"dim": 8, "max_document_length": 64}, "cross": {"max_length": 32}}},
        "score": {"max_texts": {"late": 120, "cross": 40}, "precision": "fp32"},
        "evaluate": {"rerankers": ["late"], "rerank_depth": 10},
        "distill": {"students": ["static", "1l_refined"], "student": {"1l_refined": STUDENT}},
    }
    models = {"SCORERS": "late,cross", "LATE": str(tiny_tower), "CROSS": str(tmp_path / "ranker")}
    params = params_of("label_free.yaml", tiny_tower, changes, DATA=str(data), SET="own", **models)
    assert params.candidates.searchers == [] and params.teach.described("dense").model_dump()["epochs"] == 0
    assert params.distill.described("1l_refined").then and not params.distill.described("static").then
    run_all(tmp_path, params)
    assert "score: a teacher_temperature near" in capsys.readouterr().err
    for name, texts in (("late", 120), ("cross", 40)):
        assert read_json(tmp_path / "data/score" / name / "report.json")["texts"] == texts
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert set(metrics["datasets"]["own"]) == {"bm25", "teacher", "late", "static", "1l_refined"} | {
        f"{dense}+bm25" for dense in ("teacher", "static", "1l_refined")
    }
    assert set(metrics["latency"]) == {"teacher", "static", "1l_refined"}
    assert ">late<" in (tmp_path / "reports/report.html").read_text()
