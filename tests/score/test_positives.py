"""Known positives that the index's teacher misses are scored too, and reach the student's candidates."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from stages import SCORE, corpus_texts, run_score, sources_of
from towers import write_other_teacher

from slimtower.common.files import read_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.distill.candidates import Candidates
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium

MOST = 2


@pytest.fixture
def root(embedded: Path, tiny_tower: Path, tmp_path: Path) -> Path:
    """A run with another teacher; every eighth query has five mined positives besides the judged one."""
    shutil.copytree(embedded / "data", tmp_path / "data")
    write_other_teacher(tiny_tower, tmp_path / "models/teach/other", seed=2)
    rows = read_table(tmp_path / "data/mine/relevance", "triplets").to_pylist()
    more = [
        row | {"positive_id": f"{row['query_id'].split('/')[0]}/{(number * 5 + step * 9) % 64}"}
        for number, row in enumerate(rows)
        if number % 8 == 0
        for step in range(5)
    ]
    write_table(tmp_path / "data/mine/relevance", "triplets", table_from_rows("triplets", rows + more))
    return tmp_path


def positives(root: Path) -> dict[int, set[int]]:
    """By text row, the document rows that triplets and training judgements name."""
    documents = [row["doc_id"] for row in read_table(root / "data/ingest", "corpus").to_pylist()]
    named = {
        (row["query_id"], row["positive_id"])
        for row in read_table(root / "data/mine/relevance", "triplets").to_pylist()
    }
    qrels = read_table(root / "data/ingest", "qrels").to_pylist()
    named |= {(row["query_id"], row["doc_id"]) for row in qrels if row["split"] == "train" and row["grade"]}
    by_text: dict[int, set[int]] = {}
    for text, row in enumerate(read_table(root / "data/embed", "alignment_texts").to_pylist()):
        if row["part"] == "train_queries":
            answers = {documents.index(doc) for query, doc in named if query == row["source_id"] and doc in documents}
            by_text[text] = answers
    return {text: answers for text, answers in by_text.items() if answers}


def test_positives_stand_behind_the_nearest_documents_and_other_texts_stay_as_they_are(
    root: Path, own_cache: Path
) -> None:
    plain = read_table(run_score(root, "other", SCORE.model_copy(update={"depth": 3})), "scores").to_pylist()
    shards = {path: path.stat().st_mtime_ns for path in own_cache.glob("scores/*/*.npy")}
    output = run_score(root, "other", SCORE.model_copy(update={"depth": 3, "positives": MOST}))
    assert shards and all(path.stat().st_mtime_ns == time for path, time in shards.items()), "read, not made again"
    table = read_table(output, "scores").to_pylist()
    assert [row["text_row"] for row in table] == sorted(row["text_row"] for row in table)
    nearest, answers = np.load(root / "data/embed/nearest.npy")[:, :3], positives(root)
    texts = read_table(root / "data/embed", "alignment_texts")["text"].to_pylist()
    documents = corpus_texts(root)
    tower = load_tower(root / "models/teach/other/tower")
    extra = 0
    for text in range(len(texts)):
        text_rows = [row for row in table if row["text_row"] == text]
        assert text_rows[:3] == [row for row in plain if row["text_row"] == text]
        missed = answers.get(text, set()) - set(nearest[text].tolist())
        more = [row["doc_row"] for row in text_rows[3:]]
        assert len(set(more)) == len(more) == min(MOST, len(missed)) and set(more) <= missed
        extra += len(more)
        if more and text % 3 == 0:
            query_vector = tower.encode_query(texts[text]).astype(np.float64)
            for row in text_rows[3:]:
                expected = tower.encode_document(documents[row["doc_row"]]).astype(np.float64) @ query_vector
                assert row["score"] == pytest.approx(float(expected), rel=1e-4)
    assert extra > 10 and any(len(answers[text] - set(nearest[text].tolist())) > MOST for text in answers)
    report = read_json(output / "report.json")
    assert (report["positives"], report["scores"]) == (extra, len(table)) and report["targets"]["documents"] == 3


@pytest.mark.parametrize("depth", [2, 4])
def test_a_student_sees_the_other_teachers_score_of_its_label(root: Path, depth: int) -> None:
    """Wherever the label stands: among the nearest, behind those that the student asks for, or nowhere near."""
    run_score(root, "other", SCORE.model_copy(update={"depth": depth, "positives": 6, "max_texts": 200}))
    data = root / "data"
    sources = sources_of(root)
    table, answers = sources.scores("other", 2), positives(root)
    assert {text: set(rows_of_text.tolist()) for text, rows_of_text in sources.positives.items()} == answers
    nearest = np.load(data / "embed/nearest.npy")
    stored_scores = {
        (row["text_row"], row["doc_row"]): row["score"]
        for row in read_table(data / "score/other", "scores").to_pylist()
    }
    scored = {text for text, _ in stored_scores}
    labelled = sorted(scored & set(answers))
    assert np.flatnonzero(table.scored).tolist() == sorted(scored) and len(labelled) > 10
    for text in scored:
        listed = {int(row) for row in table.documents[text] if row >= 0}
        assert listed == set(nearest[text, :2].tolist()) | answers.get(text, set())
    rows = np.array(labelled)
    for step in range(4):
        batch = Candidates(sources.positives, sources.nearest(2), 1).of(rows, step)
        values, there = table.of(rows, batch.documents)
        assert there[batch.is_own].all() and batch.label.any(axis=1).all()
        for position, text in enumerate(labelled):
            documents = batch.documents[there[position]].tolist()
            assert values[position, there[position]].tolist() == [stored_scores[text, row] for row in documents]
