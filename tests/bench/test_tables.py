"""A table of distilled students from end to end, on a tiny tower."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from late_fakes import write_late_teacher
from rank_fakes import write_cross_teacher
from stages import DISTILL, run_embed

from bench import distillation
from bench.tables import cells, trained_teachers
from bench.tables.cells import teacher_scores
from bench.tables.expected import Table
from bench.tables.pipeline import Pipeline
from bench.tables.report import unseen_queries
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]
ALIGNED = {"kind": "embedding", "distance": "l2"}
SYMMETRIC = {"towers": "symmetric", "max_document_length": 32, "targets": "joint",
             "losses": [{"kind": "label_softmax"}, {"kind": "teacher_label_softmax"}]}  # fmt: skip
JOINT = {"towers": "joint", "max_document_length": 32, "losses": [{"kind": "label_softmax"}]}
TABLE: dict[str, Any] = {
    "description": "a tiny one",
    "run": "run",
    "sets": ["two", "one"],
    "common": {
        "start": {"layers": [-1]},
        "losses": [ALIGNED],
        "epochs": 1.0,
        "batch_size": 16,
        "learning_rate": 1e-3,
        "warmup_ratio": 0.1,
        "weight_decay": 0.01,
    },
    "mixture": {"train_queries": 0.5, "sentences": 1.0},
    "texts": 24,
    "validation_texts": 8,
    "tolerance": 5.0,
    "rows": {
        "matryoshka": {
            "description": "two layers",
            "student": {"start": {"layers": [0, -1]}, "losses": [ALIGNED | {"dims": [8]}]},
            "dims": [8, 32],
            "expected": {8: 1.0, 32: None},
        },
        "both": {"description": "a symmetric one", "student": SYMMETRIC},
        "joint": {"description": "and one whose document tower is the teacher's", "student": JOINT},
        "again": {"description": "as params.yaml has it", "student": "2l", "mixture": {"titles": 1.0}},
        "later": {"description": "not settled", "student": None},
        "none": {"description": "of nothing", "mixture": {"unlabelled_queries": 1.0}},
    },
    "claims": [
        {"order": ["matryoshka@32", "matryoshka@8"], "paper": "Table 9", "differs": "the tower is random"},
        {"order": ["both/teacher_after", "both/teacher_before"], "paper": "Table 10", "differs": "the tower is random"},
    ],
}


@pytest.fixture
def project(tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which `embed` is done; both data sets have dev and test queries."""
    run = tmp_path / "run"
    run_embed(run, tiny_tower)
    for name in ("queries", "qrels"):
        table = read_table(run / "data/ingest", name)
        splits = [
            split if split == "train" else ("dev", "test")[int(query.rpartition("q")[2]) // 8 % 2]
            for split, query in zip(table["split"].to_pylist(), table["query_id"].to_pylist(), strict=True)
        ]
        position = table.schema.get_field_index("split")
        write_table(run / "data/ingest", name, table.set_column(position, table.schema.field(position), [splits]))
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    (run / "params.yaml").write_text(yaml.safe_dump(params | {"distill": DISTILL}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(project: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any], *words: str) -> None:
    path = project / "bench/expected.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"seeds": [1, 2], "tables": {"tiny": table}}, sort_keys=False))
    monkeypatch.setattr(sys, "argv", ["bench", "tiny", "--run", "run", *words])
    distillation.main()


@pytest.mark.slow
def test_a_table_is_measured_written_and_judged(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"tiny.json: not found"):
        bench(project, monkeypatch, TABLE, "--judge")
    bench(project, monkeypatch, TABLE)
    result = read_json(project / "bench/results/distillation/tiny.json")
    assert list(result["rows"]) == sorted(["matryoshka@8", "matryoshka@32", "both", "joint", "again"])
    assert set(result["left_out"]) == {"later", "none"}
    assert result["queries"] == {"dev": {"one": 4, "two": 4}, "test": {"one": 4, "two": 4}}
    short, full, both, joint, again = (
        result["rows"][name] for name in ("matryoshka@8", "matryoshka@32", "both", "joint", "again")
    )
    assert {part: short["mixture"][part]["an_epoch"] for part in ("train_queries", "sentences")} == {
        "train_queries": 12, "sentences": 24,
    }  # fmt: skip
    assert (short["verdict"], full["verdict"]) == ("OK", "new")
    assert {name: row["queries"] for name, row in both["unseen"].items()} == {"one": 4, "two": 4}
    assert full["parameters"] == short["parameters"] > 30522 * 32 and again["texts_seen"] == 24
    assert len(both["retention"]["by_seed"]) == 2
    assert joint["parameters"] == both["parameters"], "document towers do not count"
    after = {name: row["teacher_after"] for name, row in result["rows"].items() if "teacher_after" in row}
    assert list(after) == ["both"]  # the row whose teacher trained along
    assert {name: set(sets) for name, sets in after["both"].items()} == {"dev": {"one", "two"}, "test": {"one", "two"}}
    gain = np.mean([after["both"]["test"][name] - result["teacher"]["0"]["test"][name] for name in ("one", "two")])
    assert result["claims"][1]["difference"] == pytest.approx(gain, abs=1e-4) and 0 <= result["claims"][1]["p"] <= 1

    monkeypatch.setattr(cells, "measure", lambda *words: pytest.fail("a finished cell is not measured again"))
    rows = TABLE["rows"] | {"again": TABLE["rows"]["again"] | {"expected": 20.0}}
    with pytest.raises(UserError, match=r"FAIL for again \(expected\)"):
        bench(project, monkeypatch, TABLE | {"rows": rows})
    measured = read_json(project / "bench/results/distillation/tiny.json")
    bench(project, monkeypatch, TABLE, "--judge")
    judged = read_json(project / "bench/results/distillation/tiny.json")
    assert measured != result and judged == result, "other verdicts, and the first ones again"
    before = (project / "bench/results/distillation/tiny.json").read_bytes()
    bench(project, monkeypatch, TABLE, "--only", "matryoshka", "--seeds", "2")
    assert (project / "bench/results/distillation/tiny.json").read_bytes() == before, "a part of a table is not written"
    bench(project, monkeypatch, TABLE | {"seeds": [2]})
    assert read_json(project / "bench/results/distillation/tiny.json")["seeds"] == [2], "a table may have its own"
    bench(project, monkeypatch, TABLE | {"run": "runs/another", "seeds": [2]})
    assert read_json(project / "bench/results/distillation/tiny.run.json")["table"] == "tiny"
    with pytest.raises(UserError, match="no rows"):
        bench(project, monkeypatch, TABLE, "--only", "matroska")
    with pytest.raises(UserError, match=r"run: holds one, two, but the table tiny is of scifact; run its recipe"):
        bench(project, monkeypatch, TABLE | {"sets": ["scifact"]})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["late_interaction", "cross_encoder"])
def test_a_teacher_of_scores_is_measured_before_and_after_it_trained_along(
    project: Path, tiny_tower: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project / "run/models/teach/other"
    if kind == "late_interaction":
        write_late_teacher(folder, tiny_tower)
    else:
        write_cross_teacher(folder, project / "encoder")
    moved = {"kind": "mutual_kl", "teacher": "other", "teacher_temperature": 1.0}
    student = {"targets": "joint", "teacher_top_k": 2, "losses": [moved], "learning_rate": 0.03}
    table = Table.model_validate(TABLE | {"rows": {"other": {"description": "it", "student": student}}, "claims": []})
    pipeline = Pipeline(project / "run")
    cell = cells.make_cell(pipeline, table, table.rows["other"], 1)
    figures = cells.measure(cell, pipeline)
    before, after = figures["teacher_before"], figures["teacher_after"]
    assert {split: set(sets) for split, sets in after.items()} == {"dev": {"one", "two"}, "test": {"one", "two"}}
    assert before != after and before.keys() == after.keys()
    again = trained_teachers.of_scores(folder, pipeline, "fp32")
    assert again == before
    monkeypatch.setattr(trained_teachers, "QUERIES", 1)
    few = trained_teachers.of_scores(folder, pipeline, "fp32")
    assert {len(values) for sets in few.values() for values in sets.values()} == {1}
    assert {len(values) for sets in before.values() for values in sets.values()} == {4}, "a value for each query"


def test_a_query_is_seen_when_a_training_query_has_its_document(project: Path) -> None:
    pipeline = Pipeline(project / "run")
    [item] = [item for item in pipeline.judged_sets if (item.split, item.dataset) == ("test", "two")]
    [document] = item.qrels[item.query_ids[2]]
    qrels = read_table(pipeline.ingest, "qrels").to_pylist()
    [position, *_] = [number for number, row in enumerate(qrels) if (row["split"], row["dataset"]) == ("train", "two")]
    for grade, expected in ((0, [True] * 4), (1, [True, True, False, True])):
        changed = [*qrels, qrels[position] | {"doc_id": document, "grade": grade}]
        write_table(pipeline.ingest, "qrels", table_from_rows("qrels", changed))
        unseen = unseen_queries(pipeline)
        assert unseen["two"].tolist() == expected
        assert unseen["one"].all()


def test_scores_are_of_exact_search_and_of_the_teacher_at_each_dim(project: Path) -> None:
    pipeline = Pipeline(project / "run")
    scores_by_dim = teacher_scores(pipeline, (8,))
    assert set(scores_by_dim) == {"0", "8"}
    tower = load_tower(pipeline.teach / "tower")
    item = next(judged for judged in pipeline.judged_sets if judged.split == "test")
    queries = encode(tower, item.texts, "query").astype(np.float64)
    rows, ids = pipeline.corpus[item.dataset]
    for name, dim in (("0", 32), ("8", 8)):
        query_vectors, document_vectors = (vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)
                       for vectors in (queries, pipeline.documents[rows].astype(np.float64)))  # fmt: skip
        expected = []
        for query, scores in zip(item.query_ids, query_vectors @ document_vectors.T, strict=True):
            ranked = [ids[row] for row in np.argsort(-scores)[:10]]
            right = [ranked.index(doc) for doc in item.qrels[query] if doc in ranked]
            expected.append(sum(1 / np.log2(rank + 2) for rank in right))
        assert scores_by_dim[name]["test"][item.dataset] == pytest.approx(expected, abs=1e-5)
