"""A BEIR folder with planted defects: every bad row is kept with its reason and line, none stops the run."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ingest_logs
import pyarrow.compute as pc
import pytest
import yaml
from beir_folders import lines, qrels, read, reasons, sound_folder

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.candidates.params import CandidatesParams
from steps.candidates.run import select_queries
from steps.core.judged import read_judged_sets
from steps.core.positives import mined_and_judged
from steps.core.tables import SCHEMAS, read_table
from steps.core.texts import fold
from steps.ingest.params import IngestParams
from steps.ingest.report import data_digest
from steps.ingest.run import run
from steps.ingest.source import Judgement, Query
from steps.tracking.runs import NullRun


def params(folder: Path, **changes: Any) -> IngestParams:
    return ingest_logs.params(
        {"name": "toy", "kind": "beir", "path": str(folder)}, **{"max_reject_ratio": 0.5} | changes
    )


Maker = Callable[..., Path]


@pytest.fixture
def beir(tmp_path: Path) -> Maker:
    return partial(sound_folder, tmp_path / "beir")


def test_bad_documents_and_queries_are_rejected_with_reason_and_line(beir: Maker) -> None:
    good = [{"_id": f"d{n}", "text": f"text {n}", "metadata": {"topic": "sky"}} for n in range(30)]
    bad = [
        b"{broken",  # 31
        b"[1, 2]",
        {"_id": "x1"},
        {"_id": "x2", "title": "", "text": "  "},
        {"_id": "d3", "text": "again"},  # 35
        b'{"_id": "x3", "text": "caf\xe9"}',
        {"_id": "x4", "text": 7},
        {"_id": "two words", "text": "t"},
        b'{"_id": "x5", "text": "half a pair: \\ud800"}',  # 39
        b"",  # a blank line is no row
        {"_id": 77, "text": "a number as id"},  # 41, usable
        {"_id": "x6", "title": "a product"},  # usable
        {"_id": "x7", "title": "another", "text": None},
        {"_id": "\u200b", "text": "an id that nobody sees"},  # 44
        {"_id": "a\0b", "text": "t"},
    ]
    queries = [
        *({"_id": f"q{n}", "text": f"question {n}"} for n in range(30)), {"_id": "marks", "text": "?!"},
        {"_id": "q1", "text": "again"}, {"text": "no id " * 100}, b"\xff\xfe",
    ]  # fmt: skip
    files = {"corpus.jsonl": None, "corpus.jsonl.gz": lines(*good, *bad), "queries.jsonl": lines(*queries)}
    data, rejects = read(beir(files))
    assert reasons(rejects, "toy/corpus.jsonl.gz") == [
        (31, "invalid_json"), (32, "invalid_json"), (33, "missing_field"), (34, "empty_text"), (35, "duplicate_id"),
        (36, "invalid_utf8"), (37, "wrong_type"), (38, "bad_id"), (39, "invalid_utf8"), (44, "bad_id"),
        (45, "bad_id"),
    ]  # fmt: skip
    assert [row.content for row in data.documents[30:]] == ["a number as id", "", ""]
    assert data.documents[3] == ("toy/d3", "toy", "", "sky", "text 3")  # the first of a duplicate stays
    assert reasons(rejects, "toy/queries.jsonl") == [
        (31, "empty_text"), (32, "duplicate_id"), (33, "missing_field"), (34, "invalid_utf8"),
    ]  # fmt: skip
    assert max(len(row.raw) for row in rejects.rows) == 500


def test_second_labels_and_answer_strings_become_tables_of_their_own(beir: Maker, tmp_path: Path) -> None:
    rows = [("q20", "d20", 2, 1), ("q20", "d3", 0, 0), ("q21", "d21", 1, ""), ("q22", "d22", 1), ("q23", "d3", 0, 1)]
    answers = lines(
        {"_id": "q20", "answers": ["Paris", " the city "]},
        {"_id": "q99", "answers": ["x"]},
        {"_id": "q21", "answers": []},
        {"_id": "q22", "answers": "x"},
        {"_id": "q20", "answers": ["twice"]},
        *({"_id": f"q{n}", "answers": ["x"]} for n in (23, 24, 25)),
    )
    folder = beir({"qrels/test.tsv": qrels(*rows), "answers.jsonl.gz": answers})
    ingest_logs.ingest(tmp_path, params(folder))
    labels = read_table(tmp_path / "out", "satisfaction").to_pylist()
    assert [tuple(row.values()) for row in labels] == [
        ("toy/q20", "toy/d20", 1), ("toy/q20", "toy/d3", 0), ("toy/q23", "toy/d3", 1),
    ]  # fmt: skip
    answered = {row["query_id"]: row["answers"] for row in read_table(tmp_path / "out", "answers").to_pylist()}
    assert answered == {"toy/q20": ["Paris", "the city"], "toy/q23": ["x"]}, "of queries that are kept"
    rejected = read_table(tmp_path / "out", "rejects").to_pylist()
    assert [(row["line"], row["reason"]) for row in rejected if row["source"] == "toy/answers.jsonl.gz"] == [
        (2, "unknown_query"), (3, "empty_text"), (4, "wrong_type"), (5, "duplicate_id"),
    ]  # fmt: skip
    (beir() / "answers.jsonl.gz").unlink()
    (beir() / "qrels/test.tsv").write_bytes(qrels(*(row[:3] for row in rows)))
    run(output=tmp_path / "plain", params=params(folder), run=NullRun())
    assert [read_table(tmp_path / "plain", name).num_rows for name in ("satisfaction", "answers")] == [0, 0]


def test_queries_with_answers_and_no_judgement_do_not_train(
    beir: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "queries.jsonl": lines(
            *({"_id": f"q{n}", "text": f"question {n}"} for n in range(34)), {"_id": "q34", "text": "Question 33?"}
        ),
        "answers.jsonl": lines(
            {"_id": "q20", "answers": ["x"]}, {"_id": "q31", "answers": ["x"]}, {"_id": "q32", "answers": 3}
        ),
        "qrels/other.tsv": qrels(("q33", "d1", 1)),
    }
    out = ingest_logs.ingest(tmp_path, params(beir(files)))
    assert read_table(out, "unlabelled_queries")["query_id"].to_pylist() == ["toy/q30"]
    facts = read_json(out / "report.json")["datasets"]["toy"]
    assert facts["queries_left_out"] == {"answers_without_judgement": 2, "only_in_other_qrels": 1}
    assert "2 queries that answers.jsonl names and no judgement left out" in capsys.readouterr().out


def test_a_query_of_train_and_test_stays_test(beir: Maker) -> None:
    train = qrels(*((f"q{n}", f"d{n}", 1) for n in range(21)))
    data, rejects = read(beir({"qrels/train.tsv": train}), ratio=0.0)
    assert reasons(rejects, "toy/qrels/train.tsv") == [(22, "query_in_two_splits")]
    assert {row.split for row in data.judgements if row.query_id == "toy/q20"} == {"test"}


def test_unjudged_queries_are_unlabelled_but_for_those_of_other_qrels(beir: Maker) -> None:
    files = {
        "queries.jsonl": lines(*({"_id": f"q{n}", "text": f"question {n}"} for n in range(33))),
        "qrels/liveqa.tsv": qrels(("q31", "d1", 2), ("q31", "d2", 0)),
        "qrels/train.tsv": qrels(*((f"q{n}", f"d{n}", 1) for n in range(20)), ("q32", "d1", 0)),
    }
    data, _ = read(beir(files))
    assert [query.query_id for query in data.queries if query.split == "unlabelled"] == ["toy/q30"]
    assert data.facts["other_qrels_rows"] == {"liveqa.tsv": 2}
    assert data.facts["queries_left_out"] == {"only_in_other_qrels": 1, "without_relevant_document": 1}
    assert data.held_out == {"question 31"}, "no other query may spell it"
    unusable = {"qrels/test.tsv": qrels(*((f"q{n}", f"d{n}", 1) for n in range(20, 30)), ("q30", "no such", 1))}
    data, _ = read(beir(files | unusable), ratio=0.5)
    assert data.held_out == {"question 30", "question 31"}


def test_evaluation_queries_without_a_relevant_document_stay_for_their_pairs(beir: Maker) -> None:
    files = {
        "queries.jsonl": lines(*({"_id": f"q{n}", "text": f"question {n}"} for n in range(32))),
        "qrels/test.tsv": qrels(*((f"q{n}", f"d{n}", 2) for n in range(20, 30)), ("q30", "d1", 0), ("q30", "d2", -1)),
        "qrels/train.tsv": qrels(*((f"q{n}", f"d{n}", 1) for n in range(20)), ("q31", "d1", 0)),
    }
    data, _ = read(beir(files))
    assert {query.query_id for query in data.queries if query.split == "test"} == {f"toy/q{n}" for n in range(20, 31)}
    grades = {row.doc_id: (row.grade, row.split) for row in data.judgements if row.query_id == "toy/q30"}
    assert grades == {"toy/d1": (0, "test"), "toy/d2": (-1, "test")}
    assert data.facts["queries_without_relevant_document"] == 1
    assert data.facts["queries_left_out"] == {"without_relevant_document": 1}, "nobody reads those of training"


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"corpus.jsonl": None}, r"corpus\.jsonl: not found"),
        ({"queries.jsonl": None}, r"queries\.jsonl: not found.*test\.tsv judges queries; .* needs both or neither"),
        ({"corpus.jsonl": b"\n"}, r"corpus\.jsonl: the corpus is empty"),
        ({"qrels/test.tsv": qrels()}, r"test\.tsv: no usable judgement"),
        ({"qrels/test.tsv": qrels(("q20", "d20", 0))}, r"test\.tsv: no usable judgement"),
    ],
)
def test_faults_of_structure_name_file_and_fix(beir: Maker, replaced: dict[str, bytes | None], message: str) -> None:
    with pytest.raises(UserError, match=message) as failure:
        read(beir(replaced))
    assert "ingest.sources[0].path" in str(failure.value)


NOTHING: dict[str, bytes | None] = {"qrels/train.tsv": None, "qrels/test.tsv": None}


@pytest.mark.parametrize(
    ("replaced", "splits"),
    [
        (NOTHING | {"queries.jsonl": None}, {}),
        (NOTHING, {"unlabelled": 30}),
        ({"qrels/train.tsv": None}, {"test": 10, "unlabelled": 20}),
        ({"qrels/test.tsv": None}, {"train": 16, "dev": 4, "unlabelled": 10}),
        # as in MS MARCO, whose test judgements nobody has
        (NOTHING | {"qrels/dev.tsv": qrels(("q3", "d3", 1))}, {"test": 1, "unlabelled": 29}),
        (NOTHING | {"qrels/all.tsv": qrels(("q3", "d3", 1))}, {"unlabelled": 29}),
    ],
)
def test_a_folder_may_lack_all_but_its_corpus_and_a_line_says_what_it_holds(
    beir: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str], replaced: Any, splits: dict[str, int]
) -> None:
    ingest_logs.ingest(tmp_path, params(beir(replaced)))
    summary = capsys.readouterr().out
    assert summary.startswith("toy: 30 documents") and summary.count("\n") == 1
    assert all(f"{count} {split}" in summary for split, count in splits.items())
    counts = Counter(read_table(tmp_path / "out", "queries")["split"].to_pylist())
    assert counts + Counter(unlabelled=read_table(tmp_path / "out", "unlabelled_queries").num_rows) == splits


def test_grades_below_relevant_from_make_no_training_positive(
    beir: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graded = {
        "qrels/train.tsv": qrels(("q0", "d0", 2), ("q0", "d1", 1), ("q1", "d2", 1), ("q2", "d3", 3)),
        "qrels/dev.tsv": qrels(("q5", "d5", 1)),
        "qrels/test.tsv": qrels(("q20", "d20", 1), ("q20", "d21", 2)),
    }
    folder, candidates = beir(graded), CandidatesParams(searchers=[], queries="judged", depth=1)
    no_triplets, training_data, tables = SCHEMAS["triplets"].empty_table(), {}, {}
    for relevant_from in (0, 1, 2):
        knob = {"relevant_from": relevant_from} if relevant_from else {}
        source = {"name": "toy", "kind": "beir", "path": str(folder)} | knob
        out = ingest_logs.ingest(tmp_path / str(relevant_from), ingest_logs.params(source))
        [selected] = select_queries(out, candidates)
        [judged] = read_judged_sets(out, ["train"])
        training_data[relevant_from] = set(mined_and_judged(no_triplets, out)), selected.ids, judged.query_ids
        tables[relevant_from] = read_table(out, "qrels")
        assert ("2 training judgements below relevant_from" in capsys.readouterr().out) == (relevant_from == 2)
    answers, related = {("toy/q0", "toy/d0"), ("toy/q2", "toy/d3")}, {("toy/q0", "toy/d1"), ("toy/q1", "toy/d2")}
    assert tables[0] == tables[1] and training_data[0] == training_data[1]
    assert training_data[1][0] == answers | related
    assert training_data[2] == (answers, ["toy/q0", "toy/q2", "toy/q5"], ["toy/q0", "toy/q2"])
    held_out = [table.filter(pc.not_equal(table["split"], "train")) for table in tables.values()]
    assert held_out[0] == held_out[2] and held_out[0].num_rows == 3
    assert read_table(tmp_path / "2/out", "queries") == read_table(tmp_path / "1/out", "queries")


def test_train_queries_that_spell_an_evaluation_query_are_left_out(beir: Maker, tmp_path: Path) -> None:
    queries = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(31)]
    queries[0]["text"] = "Question, 25!"  # train, equals a test query when folded
    queries[1]["text"] = queries[2]["text"] = queries[3]["text"] = "the same training question"
    queries[30]["text"] = "QUESTION 26"  # judged nowhere
    folder = beir({"queries.jsonl": lines(*queries)})
    for seed in range(6):
        ingest_logs.ingest(tmp_path, params(folder, seed=seed))
        rows = [
            {"split": "unlabelled"} | row
            for name in ("queries", "unlabelled_queries")
            for row in read_table(tmp_path / "out", name).to_pylist()
        ]
        by_split: dict[str, set[str]] = {split: set() for split in ("train", "dev", "test", "unlabelled")}
        for row in rows:
            by_split[row["split"]].add(fold(row["text"]))
        assert not (by_split["train"] | by_split["unlabelled"]) & (by_split["dev"] | by_split["test"])
        assert not by_split["dev"] & by_split["test"]
        lost = [r for r in read_table(tmp_path / "out", "rejects").to_pylist() if r["source"] == "toy/queries.jsonl"]
        assert {(1, "evaluation_query_text"), (31, "evaluation_query_text")} <= {(r["line"], r["reason"]) for r in lost}
        query_ids = {row["query_id"] for row in rows}
        assert {row["query_id"] for row in read_table(tmp_path / "out", "qrels").to_pylist()} <= query_ids


def test_a_rerun_writes_the_same_bytes_and_a_failure_leaves_the_old_output(beir: Maker, tmp_path: Path) -> None:
    checked = params(beir())
    for name in ("a", "b"):
        run(output=tmp_path / name, params=checked, run=NullRun())
    outputs = {path.name for path in (tmp_path / "a").iterdir()}
    declared = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]["ingest"]["outs"]
    assert outputs == {Path(path).name for path in declared}, "what DVC does not know it neither keeps nor pushes"
    names = sorted(outputs - {"document_vectors"})
    before = {name: (tmp_path / "a" / name).read_bytes() for name in names}
    assert before == {name: (tmp_path / "b" / name).read_bytes() for name in names}
    assert json.loads(before["report.json"])["simulated"] is False

    broken = params(beir({"qrels/test.tsv": qrels()}))
    with pytest.raises(UserError):
        run(output=tmp_path / "a", params=broken, run=NullRun())
    assert before == {name: (tmp_path / "a" / name).read_bytes() for name in names}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "beir"]


def test_two_sources_guard_each_other(beir: Maker, tmp_path: Path) -> None:
    second = beir().rename(tmp_path / "second")
    first = beir({"queries.jsonl": lines(*({"_id": f"q{n}", "text": f"question {n + 20}"} for n in range(30)))})
    sources = [{"name": name, "kind": "beir", "path": str(path)} for name, path in (("one", second), ("two", first))]
    rows = read_table(ingest_logs.ingest(tmp_path, ingest_logs.params(*sources)), "queries").to_pylist()
    evaluated = {row["text"] for row in rows if row["split"] in ("dev", "test")}
    assert {row["dataset"] for row in rows} == {"one", "two"}
    assert not evaluated & {row["text"] for row in rows if row["split"] == "train"}


def test_a_data_sets_digest_is_of_its_rows_in_any_order() -> None:
    queries = [Query(f"q{at}", "api", "a text", "test", "file", at) for at in range(2)]
    judgements = [Judgement(query.query_id, "api", "d", 1, "test") for query in queries]
    entry = {"corpus_digest": "c", "sessions": {"clicks": 1}}
    digest = data_digest(entry, queries, judgements)
    assert digest == data_digest(entry, queries[::-1], judgements[::-1])
    other_digests = [
        data_digest(entry | {"corpus_digest": "d"}, queries, judgements),
        data_digest(entry | {"sessions": {"clicks": 2}}, queries, judgements),
        data_digest(entry, [queries[0], queries[1]._replace(text="another")], judgements),
        data_digest(entry, queries, [judgements[0], judgements[1]._replace(grade=2)]),
    ]
    assert len({digest, *other_digests}) == 5
