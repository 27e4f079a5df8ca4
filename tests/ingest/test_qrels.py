"""Judgements of a BEIR folder: bad rows, and columns as other programs write them, read or refused if in doubt."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from beir_folders import lines, qrels, read, reasons, sound_folder
from ingest_logs import ingest, params, rows_of, set_in

from slimtower.common.errors import UserError

Rows = list[dict[str, Any]]
RATIO = {"max_reject_ratio": 0.01}
Maker = Callable[..., Path]


@pytest.fixture
def beir(tmp_path: Path) -> Maker:
    return partial(sound_folder, tmp_path / "beir")


def test_bad_judgements_are_rejected_with_reason_and_line(beir: Maker) -> None:
    rows = [
        ("q20", "d20", 3),  # 2
        ("q99", "d20", 1),
        ("q20", "d99", 1),
        ("q20", "d1", "high"),  # 5
        ("q20", "d20", 1),
        ("q20", "d2"),
        ("q21", "d21", 1),
        ("q21", "d3", "0.0"),  # 9: judged, not relevant
        ("q22", "d22", 1),
        ("q23", "d23", 1),
    ]
    data, rejects = read(beir({"qrels/test.tsv": qrels(*rows)}))
    assert reasons(rejects, "toy/qrels/test.tsv") == [
        (3, "unknown_query"), (4, "unknown_document"), (5, "bad_grade"), (6, "duplicate_judgement"),
        (7, "missing_field"),
    ]  # fmt: skip
    test = {(row.query_id, row.doc_id): row.grade for row in data.judgements if row.split == "test"}
    relevant = {(f"toy/q{n}", f"toy/d{n}"): 3 if n == 20 else 1 for n in range(20, 24)}
    assert test == relevant | {("toy/q21", "toy/d3"): 0}, "what is judged not relevant is judged"
    assert data.facts["judgements_not_relevant"] == 1


def test_second_labels_of_a_document_called_0_are_read(beir: Maker) -> None:
    numbered = lines(*({"_id": str(n), "title": "", "text": f"text {n}"} for n in range(30)))
    headed = b"query-id\tcorpus-id\tscore\tlabel\nq20\t0\t2\t1\nq21\t0\t1\t0\n"
    several, alone = b"q22\t0\t1\t1\nq23\t5\t1\t1\n", b"q5\t0\t1\t1\nq5\t1\t2\t1\n"
    files = {"corpus.jsonl": numbered, "qrels/test.tsv": headed, "qrels/dev.tsv": several, "qrels/train.tsv": alone}
    data, rejects = read(beir(files), ratio=0.0)
    assert len(data.judgements) == 6 and not rejects.rows
    plain = b"q20\t0\t1\nq21\t0\t1\n"
    data, _ = read(beir({"corpus.jsonl": numbered, "qrels/test.tsv": plain, "qrels/train.tsv": alone}))
    assert {row.doc_id for row in data.judgements if row.split == "test"} == {"toy/0"}


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000", "\x1f", " "])
def test_an_id_before_any_blank_is_that_id(beir: Maker, blank: str) -> None:
    rows = [(f"q{n}", f"d{n}", 1) for n in range(21, 24)]
    test = qrels((f"q20{blank}", "d20", 1), (f"q19{blank}", "gone", 1), *rows)
    hidden = qrels((f"q18{blank}", "d18", 1))
    data, rejects = read(
        beir({"qrels/test.tsv": test, "qrels/hidden.tsv": hidden, "qrels/train.tsv": qrels(("q0", "d0", 1))})
    )
    assert ("toy/q20", "toy/d20") in {(row.query_id, row.doc_id) for row in data.judgements if row.split == "test"}
    assert reasons(rejects, "toy/qrels/test.tsv") == [(3, "unknown_document")]
    free = {query.query_id for query in data.queries if query.split in {"train", "unlabelled"}}
    assert not free & {"toy/q18", "toy/q19", "toy/q20"}


@pytest.mark.parametrize("grade", ["1_0", "\uff11", "1767744000", "9" * 5000, "1e3", "nan", ""])
def test_what_is_no_grade_costs_its_row(beir: Maker, grade: str) -> None:
    rows = [(f"q{n}", f"d{n}", 1) for n in range(21, 24)]
    _, rejects = read(beir({"qrels/test.tsv": qrels(("q20", "d20", grade), *rows)}))
    assert reasons(rejects, "toy/qrels/test.tsv") == [(2, "bad_grade")]


@pytest.mark.parametrize("name", ["test.txt", "test.TSV", "test.tsv.bak", "test", "holdout.qrels"])
def test_judgements_under_another_ending_are_not_passed_over(beir: Maker, name: str) -> None:
    folder = beir({f"qrels/{name}": qrels(("q1", "d1", 1)), "qrels/README.md": b"about", "qrels/.hidden": b"x"})
    with pytest.raises(UserError, match=rf"qrels/{re.escape(name)}: judgements are read from \.tsv alone"):
        read(folder)
    (folder / "qrels" / name).unlink()
    read(folder)


DOCUMENTS = [{"_id": f"{n}", "title": f"title {n}", "text": f"text {n}"} for n in range(40)]
QUERIES = [{"_id": f"{n}", "text": f"query {n}"} for n in range(50, 60)]
JUDGED = [(50 + n % 10, n + 5, 1 + n % 2) for n in range(20)]


def tsv(rows: list[Any], header: str = "query-id\tcorpus-id\tscore", sign: str = "\t") -> str:
    lines = [sign.join(map(str, row)) for row in rows]
    return "\n".join([*([header.replace("\t", sign)] if header else []), *lines, ""])


def numbered(
    folder: Path, documents: Rows = DOCUMENTS, queries: Rows = QUERIES, qrels: str = "", **settings: Any
) -> Any:
    files = {"corpus.jsonl": lines(*documents), "queries.jsonl": lines(*queries), "qrels/test.tsv": qrels.encode()}
    path = sound_folder(folder / "beir", files | {"qrels/train.tsv": None})
    return {"name": "log", "kind": "beir", "path": str(path)} | settings


def renamed(rows: Rows, **names: str) -> Rows:
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


PLAIN = tsv(JUDGED)
INDEXED = [(n, *row) for n, row in enumerate(JUDGED)]
BEIR: dict[str, dict[str, Any]] = {
    "commas, header in capitals": {"qrels": tsv(JUDGED, "Query-ID\tCorpus-ID\tScore", ",")},
    "TREC, iteration 0, blanks": {"qrels": tsv([(q, 0, d, g) for q, d, g in JUDGED], "", " ")},
    "TREC, iteration Q0": {"qrels": tsv([(q, "Q0", d, g) for q, d, g in JUDGED], "")},
    "TREC under a header": {"qrels": tsv([(q, 1, d, g) for q, d, g in JUDGED], "query_id\titer\tdoc_id\trel")},
    "no header": {"qrels": tsv(JUDGED, "")},
    "other header": {"qrels": tsv(JUDGED, "query\tdoc\trelevance")},
    "columns in another order": {"qrels": tsv([(g, d, q) for q, d, g in JUDGED], "score\tcorpus-id\tquery-id")},
    "index under a header": {"qrels": tsv(INDEXED, "\tquery-id\tcorpus-id\tscore")},
    "index, Unnamed": {"qrels": tsv(INDEXED, "Unnamed: 0\tquery-id\tcorpus-id\tscore")},
    "names of rows": {"qrels": tsv(INDEXED)},
    "index without header": {"qrels": tsv(INDEXED, "")},
    "index without header, told": {
        "qrels": tsv(INDEXED, ""), "qrels_columns": ["-", "query", "document", "grade"],
    },
    "ids as floats, also in JSON, and titles in lists": {
        "qrels": tsv([(float(q), float(d), float(g)) for q, d, g in JUDGED]),
        "documents": set_in(DOCUMENTS, _id=float, title=lambda title: [title]),
        "queries": set_in(QUERIES, _id=float),
    },
    "id and contents": {
        "qrels": PLAIN,
        "documents": renamed(DOCUMENTS, _id="id", text="contents"),
        "queries": renamed(QUERIES, _id="id"),
    },
    "body": {"qrels": PLAIN, "documents": renamed(DOCUMENTS, text="body")},
}  # fmt: skip


@pytest.mark.parametrize("case", BEIR)
def test_a_beir_folder_is_read_however_its_files_were_written(tmp_path: Path, case: str) -> None:
    out = ingest(tmp_path, params(numbered(tmp_path, **BEIR[case]), **RATIO))
    expected = sorted((f"log/{query}", f"log/{doc}", grade) for query, doc, grade in JUDGED)
    assert sorted(rows_of(out, "qrels", "query_id", "doc_id", "grade")) == expected
    assert ("log/7", "title 7", "text 7") in rows_of(out, "corpus", "doc_id", "title", "content")


def test_two_columns_are_judged_relevant(tmp_path: Path) -> None:
    for header in ("query-id\tcorpus-id", ""):
        out = ingest(tmp_path, params(numbered(tmp_path, qrels=tsv([row[:2] for row in JUDGED], header)), **RATIO))
        assert rows_of(out, "qrels", "grade") == [1] * len(JUDGED)


def test_ids_in_another_form_of_unicode_are_the_same(tmp_path: Path) -> None:
    documents = [row | {"_id": f"cafe\u0301 {n}".replace(" ", "")} for n, row in enumerate(DOCUMENTS)]
    qrels = tsv([(query, f"caf\u00e9{doc}", grade) for query, doc, grade in JUDGED])
    out = ingest(tmp_path, params(numbered(tmp_path, documents, qrels=qrels), **RATIO))
    assert len(rows_of(out, "qrels", "grade")) == len(JUDGED)


SMALL = [(0, 5), (3, 6), (1, 7), (4, 8), (2, 9)]
AMBIGUOUS = {
    "a data frame's index": tsv([(n, query, doc, 1) for n, (query, doc) in enumerate(SMALL)], ""),
    "an index and no grade": tsv([(n, query, doc) for n, (query, doc) in enumerate(SMALL)], ""),
    "TREC's columns": tsv([(query, 0, doc, 1) for query, doc in SMALL], ""),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_judgements_that_can_be_read_in_two_ways_are_refused(tmp_path: Path, case: str) -> None:
    documents, queries = DOCUMENTS[:10], [{"_id": f"{n}", "text": f"query {n}"} for n in range(5)]
    source = numbered(tmp_path, documents, queries, AMBIGUOUS[case])
    with pytest.raises(UserError, match=r"read in several ways.*: 5 of 5.*qrels_columns: \["):
        ingest(tmp_path, params(source, max_reject_ratio=1.0))
    columns = {"TREC's columns": ["query", "-", "document", "grade"]}.get(case, ["-", "query", "document", "grade"])
    explicit = source | {"qrels_columns": columns if "no grade" not in case else columns[:3]}
    out = ingest(tmp_path, params(explicit, **RATIO))
    assert sorted(rows_of(out, "qrels", "query_id", "doc_id")) == sorted((f"log/{q}", f"log/{d}") for q, d in SMALL)
