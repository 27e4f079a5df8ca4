"""What a candidate is judged on: the digest sees what counts, students are chosen on dev, files are recorded ones."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from promote_fakes import policy

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import folder_digest, read_json, write_json
from steps.core.tables import table_from_rows, write_table
from steps.promote.dvc_lock import dvc_md5
from steps.promote.evidence import (
    Evaluation,
    choose_students,
    read_candidate,
    read_card,
    read_evaluation,
    read_test_sets,
    with_reported_slices,
)
from steps.promote.gate import Decision
from steps.promote.promotion import description

Rows = dict[str, list[dict[str, Any]]]


def ingest_rows() -> Rows:
    """Two documents and queries of every kind in `api`; a data set `other` without test queries."""
    documents = [("api/d1", "api"), ("api/d2", "api"), ("other/d1", "other")]
    queries = [
        ("api/q1", "two words", "test", "api"),
        ("api/q2", "a query of rather more words", "test", "api"),
        ("api/q3", "judged irrelevant only", "test", "api"),
        ("api/q4", "train", "train", "api"),
        ("other/q1", "dev", "dev", "other"),
    ]
    judged = [
        ("api/q1", "api/d1", 2, "test"),
        ("api/q1", "api/d2", 0, "test"),
        ("api/q2", "api/d2", 1, "test"),
        ("api/q3", "api/d2", 0, "test"),
        ("api/q4", "api/d1", 1, "train"),
        ("other/q1", "other/d1", 1, "dev"),
    ]
    return {
        "corpus": [
            {"doc_id": doc, "dataset": of, "title": f"title of {doc}", "topic": "t", "content": "content"}
            for doc, of in documents
        ],
        "queries": [{"query_id": q, "text": text, "split": split, "dataset": of} for q, text, split, of in queries],
        "qrels": [
            {"query_id": q, "doc_id": doc, "grade": grade, "split": split, "dataset": q.partition("/")[0]}
            for q, doc, grade, split in judged
        ],
    }


def digest(folder: Path, rows: Rows) -> str:
    for name, table_rows in rows.items():
        write_table(folder, name, table_from_rows(name, table_rows))
    return read_evaluation(folder, read_test_sets(folder), []).digest


@pytest.mark.parametrize(
    ("table", "row", "change", "counts"),
    [
        ("corpus", 0, {"title": "x"}, True),
        ("corpus", 1, {"content": "x"}, True),
        ("queries", 0, {"text": "x"}, True),
        ("qrels", 0, {"grade": 1}, True),
        ("qrels", 1, {"doc_id": "api/d9"}, True),  # a judgement of no relevance
        ("corpus", 2, {"title": "x"}, False),  # another data set's
        ("queries", 3, {"text": "x"}, False),  # of training
        ("qrels", 4, {"grade": 2}, False),
        ("queries", 2, {"text": "x"}, False),  # without a relevant document
    ],
)
def test_the_digest_sees_what_the_measures_see_and_no_order(
    tmp_path: Path, table: str, row: int, change: dict[str, Any], counts: bool
) -> None:
    rows = ingest_rows()
    before = digest(tmp_path, rows)
    assert digest(tmp_path, {name: table_rows[::-1] for name, table_rows in rows.items()}) == before
    rows[table][row] |= change
    assert (digest(tmp_path, rows) != before) == counts


def test_the_digest_sees_a_topic_that_documents_are_read_with(tmp_path: Path) -> None:
    by_template: dict[str, list[str]] = {"{title}. {content}": [], "{title} {topic} {content}": []}
    for template, digests in by_template.items():
        for topic in ("t", "u"):
            rows = ingest_rows()
            rows["corpus"][0]["topic"] = topic
            digest(tmp_path, rows)
            corpus = table_from_rows("corpus", rows["corpus"])
            write_table(tmp_path, "corpus", corpus, metadata=DocumentTemplate(template).metadata)
            digests.append(read_evaluation(tmp_path, read_test_sets(tmp_path), []).digest)
    assert [len(set(digests)) for digests in by_template.values()] == [1, 2]
    assert by_template["{title}. {content}"][0] == digest(tmp_path, ingest_rows())


def test_slices_go_by_words_or_by_the_names_of_the_report_and_hold_queries_of_the_evaluation(tmp_path: Path) -> None:
    digest(tmp_path, ingest_rows())
    rows = [
        {"query_id": query, "dataset": "api", "slice": name}
        for name, queries in (("question", ("api/q1", "api/q2")), ("up to 2 words", ("api/q2",)), ("gone", ("api/q9",)))
        for query in queries
    ]
    write_table(tmp_path, "slices", table_from_rows("slices", rows))
    judged = read_test_sets(tmp_path)
    before = read_evaluation(tmp_path, judged, [2])
    evaluation = with_reported_slices(before, tmp_path)
    assert evaluation.reported == {"api/question": {"api/q1", "api/q2"}}
    assert (evaluation.digest, evaluation.slices) == (before.digest, before.slices)
    by_words = read_evaluation(tmp_path, judged, [2, 4])
    assert by_words.queries == {"api": {"api/q1", "api/q2"}}
    assert by_words.slices == {"api/up to 2 words": {"api/q1"}, "api/5 words and more": {"api/q2"}}
    (tmp_path / "slices.parquet").unlink()
    with pytest.raises(UserError, match=r"slices\.parquet: not found"):
        with_reported_slices(before, tmp_path)


def metrics(folder: Path, dev: dict[str, float] | None, p50: dict[str, float]) -> Path:
    test = {student: {"nDCG@10": 1 - (dev or {}).get(student, 0.5)} for student in p50}
    write_json(
        folder / "metrics.json",
        {
            "retention": {student: {} for student in p50},
            "latency": {student: {"p50_ms": value} for student, value in p50.items() if value},
            "datasets": {"api": test | {"teacher": {"nDCG@10": 1.0}}},
            "datasets_dev": {"api": {name: {"nDCG@10": value} for name, value in dev.items()}} if dev else {},
        },
    )
    return folder


def releases(folder: Path, **index_bytes: int) -> Path:
    for student, size in index_bytes.items():
        (folder / student / "index").mkdir(parents=True)
        (folder / student / "index/flat.faiss").write_bytes(b"x" * size)
        write_json(folder / student / "manifest.json", {"datasets": {"api": {}}})
    return folder


def test_the_best_on_dev_within_the_budgets_is_chosen(tmp_path: Path) -> None:
    folders = releases(tmp_path / "release", fast=10, slow=10, big=2000, none=10)
    dev = {"fast": 0.5, "slow": 0.9, "big": 0.8, "none": 0.7}
    reports = metrics(tmp_path, dev, {"fast": 1.0, "slow": 11.0, "big": 1.0, "none": 0.0})
    rules = policy(max_index_bytes=1000)
    assert choose_students("", reports, folders, rules)[0] == "fast"
    assert choose_students("", reports, folders, policy(max_p50_ms=20.0))[0] == "slow"
    assert choose_students("slow", reports, folders, rules)[0] == "slow"
    with pytest.raises(UserError, match=r"student 'gone' was not evaluated; .*metrics.json has \['big', 'fast'"):
        choose_students("gone", reports, folders, rules)
    with pytest.raises(UserError, match=r"none of .* is within max_p50_ms 0.1 and max_index_bytes 1000"):
        choose_students("", reports, folders, policy(max_p50_ms=0.1, max_index_bytes=1000))


def test_data_sets_that_count_as_one_weigh_as_one(tmp_path: Path) -> None:
    folders = releases(tmp_path / "release", forums=10, facts=10)
    for student in ("forums", "facts"):
        write_json(folders / student / "manifest.json", {"datasets": {}})
    forums = {f"cqa-{name}": {"forums": 0.6, "facts": 0.5} for name in "abc"}
    dev = forums | {"scifact": {"forums": 0.4, "facts": 0.6}}  # the mean of 4 sets prefers the one, of 2 the other
    reports = metrics(tmp_path, {}, {"forums": 1.0, "facts": 1.0})
    written = read_json(reports / "metrics.json")
    written["datasets_dev"] = {
        dataset: {name: {"nDCG@10": value} for name, value in row.items()} for dataset, row in dev.items()
    }
    write_json(reports / "metrics.json", written)
    assert choose_students("", reports, folders, policy())[0] == "forums"
    write_json(reports / "metrics.json", written | {"as_one_dev": {"cqa": {}}})
    assert choose_students("", reports, folders, policy())[0] == "facts"


def test_damaged_files_of_a_candidate_are_named(tmp_path: Path) -> None:
    folders = releases(tmp_path / "release", fast=10)
    reports = metrics(tmp_path, {"fast": 0.5}, {"fast": 1.0})
    measured = read_json(reports / "metrics.json")
    lacking = ("retention", "latency", "datasets_dev")
    without = [{name: value for name, value in measured.items() if name != key} for key in lacking]
    for damaged in ([], *without):
        write_json(reports / "metrics.json", damaged)
        with pytest.raises(UserError, match=r"metrics\.json: damaged, .* run `dvc repro evaluate`"):
            choose_students("", reports, folders, policy())
    for name, content in ((reports / "metrics.json", {"latency": []}), (folders / "fast/manifest.json", {})):
        write_json(name, content)
        with pytest.raises(UserError, match=rf"{name.name}: damaged"):
            read_candidate("fast", tmp_path, folders, Evaluation("d", {}, {}))


def test_the_choice_of_the_evaluation_goes_first_within_the_budgets(tmp_path: Path) -> None:
    folders = releases(tmp_path / "release", fast=10, slow=10, big=2000)
    dev = {"fast": 0.5, "slow": 0.9, "big": 0.8, "gone": 0.95}
    reports = metrics(tmp_path, dev, dict.fromkeys(dev, 1.0))
    measured = read_json(reports / "metrics.json")
    for recorded, expected in {"fast": "fast", "big": "slow", "gone": "slow", None: "slow"}.items():
        write_json(reports / "metrics.json", measured | {"choice": {"student": recorded}})
        chosen = choose_students("", reports, folders, policy(max_index_bytes=1000))
        assert chosen == list(dict.fromkeys([expected, "slow"])), "the best is offered where it is refused"
    assert choose_students("big", reports, folders, policy()) == ["big"], "a named student goes before any choice"


def test_the_candidate_is_the_students_test_values_and_its_own_files(tmp_path: Path) -> None:
    digest(tmp_path, ingest_rows())
    evaluation = read_evaluation(tmp_path, read_test_sets(tmp_path), [])
    folders = releases(tmp_path / "release", fast=10)
    metrics(tmp_path, None, {"fast": 0.0})
    (tmp_path / "report.md").write_text("a report")
    (folders / "fast/README.md").write_text("a card")
    rows = [
        {"query_id": "api/q1", "dataset": "api", "model": model, "split": split, "measure": measure, "value": value}
        for model, split, measure, value in [
            ("fast", "test", "nDCG@10", 0.25),
            ("fast", "test", "RR@10", 0.5),
            ("fast", "dev", "nDCG@10", 0.75),
            ("teacher", "test", "nDCG@10", 1.0),
        ]
    ]
    write_table(tmp_path, "per_query", table_from_rows("per_query", rows))
    evidence = read_candidate("fast", tmp_path, folders, evaluation).evidence
    assert evidence.values == {"api": {"api/q1": 0.25}}
    assert (evidence.index_bytes, evidence.p50_ms) == (10, math.inf)
    before = folder_digest(folders / "fast")
    (folders / "fast/index/flat.faiss").rename(folders / "fast/index/other.faiss")
    assert folder_digest(folders / "fast") != before == evidence.release


@pytest.mark.medium
def test_md5s_are_those_of_dvc(tmp_path: Path) -> None:
    for name in ("b", "a/c", "a.b/d", "a/é"):
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for words in (["init", "-q", "--no-scm"], ["add", "-q", "--no-commit", "out"]):
        subprocess.run([sys.executable, "-m", "dvc", *words], cwd=tmp_path, check=True)
    [item] = yaml.safe_load((tmp_path / "out.dvc").read_text())["outs"]
    assert dvc_md5(tmp_path / "out") == item["md5"]


def test_a_versions_page_has_verdict_card_and_evaluation_within_what_the_database_keeps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"report\.md: not found"):
        read_card(tmp_path, tmp_path)
    (tmp_path / "README.md").write_text("---\nmetrics:\n- ndcg_at_10\n---\n\n# 2l\n\n| a | b |\n| --- | --- |\n")
    (tmp_path / "report.md").write_text("**2l** keeps 98 %.\n")
    card = read_card(tmp_path, tmp_path)
    assert card == "# 2l\n\n| a | b |\n| --- | --- |\n\n## Evaluation\n\n**2l** keeps 98 %."
    decision = Decision(False, ("loses on api",), ("fast enough",))
    page = description("retriever", "3", decision, card)
    assert "refused" in page and "loses on api" in page and page.endswith(card)
    long = description("retriever", "3", decision, "| row |\n" * 1000)
    assert 4900 < len(long) <= 5000 and long.endswith("| row |\n…")
