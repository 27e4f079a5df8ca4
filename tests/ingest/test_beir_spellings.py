"""What other programs write differently in a BEIR folder is read if it cannot be mistaken, and else refused."""

from pathlib import Path
from typing import Any

import pytest
from ingest_logs import ingest, jsonl, params, rows_of, set_in

from slimtower.common.errors import UserError

Rows = list[dict[str, Any]]
RATIO = {"max_reject_ratio": 0.01}


DOCUMENTS = [{"_id": f"{n}", "title": f"title {n}", "text": f"text {n}"} for n in range(40)]
QUERIES = [{"_id": f"{n}", "text": f"query {n}"} for n in range(50, 60)]
JUDGED = [(50 + n % 10, n + 5, 1 + n % 2) for n in range(20)]


def tsv(rows: list[Any], header: str = "query-id\tcorpus-id\tscore", sign: str = "\t") -> str:
    lines = [sign.join(map(str, row)) for row in rows]
    return "\n".join([*([header.replace("\t", sign)] if header else []), *lines, ""])


def beir(folder: Path, documents: Rows = DOCUMENTS, queries: Rows = QUERIES, qrels: str = "", **settings: Any) -> Any:
    (folder / "qrels").mkdir(exist_ok=True)
    for name, content in (
        ("corpus.jsonl", jsonl(documents)),
        ("queries.jsonl", jsonl(queries)),
        ("qrels/test.tsv", qrels),
    ):
        (folder / name).write_text(content, encoding="utf-8")
    return {"name": "log", "kind": "beir", "path": str(folder)} | settings


def renamed(rows: Rows, **names: str) -> Rows:
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


PLAIN = tsv(JUDGED)
BEIR: dict[str, dict[str, Any]] = {
    "plain": {"qrels": PLAIN},
    "commas": {"qrels": tsv(JUDGED, sign=",")},
    "blanks": {"qrels": tsv([(q, 0, d, g) for q, d, g in JUDGED], "", " ")},
    "TREC, iteration 0": {"qrels": tsv([(q, 0, d, g) for q, d, g in JUDGED], "")},
    "TREC, iteration Q0": {"qrels": tsv([(q, "Q0", d, g) for q, d, g in JUDGED], "")},
    "no header": {"qrels": tsv(JUDGED, "")},
    "other header": {"qrels": tsv(JUDGED, "query\tdoc\trelevance")},
    "header in capitals": {"qrels": tsv(JUDGED, "Query-ID\tCorpus-ID\tScore")},
    "columns in another order": {"qrels": tsv([(g, d, q) for q, d, g in JUDGED], "score\tcorpus-id\tquery-id")},
    "index under a header": {"qrels": tsv([(n, *row) for n, row in enumerate(JUDGED)], "\tquery-id\tcorpus-id\tscore")},
    "index, Unnamed": {
        "qrels": tsv([(n, *row) for n, row in enumerate(JUDGED)], "Unnamed: 0\tquery-id\tcorpus-id\tscore")
    },
    "names of rows": {"qrels": tsv([(n, *row) for n, row in enumerate(JUDGED)])},
    "index without header": {"qrels": tsv([(n, *row) for n, row in enumerate(JUDGED)], "")},
    "index without header, told": {
        "qrels": tsv([(n, *row) for n, row in enumerate(JUDGED)], ""),
        "qrels_columns": ["-", "query", "document", "grade"],
    },
    "ids as floats": {"qrels": tsv([(float(q), float(d), float(g)) for q, d, g in JUDGED])},
    "ids as floats in JSON": {
        "qrels": PLAIN,
        "documents": set_in(DOCUMENTS, _id=float),
        "queries": set_in(QUERIES, _id=float),
    },
    "id for _id": {"qrels": PLAIN, "documents": renamed(DOCUMENTS, _id="id"), "queries": renamed(QUERIES, _id="id")},
    "contents": {"qrels": PLAIN, "documents": renamed(DOCUMENTS, text="contents")},
    "body": {"qrels": PLAIN, "documents": renamed(DOCUMENTS, text="body")},
    "titles in lists": {"qrels": PLAIN, "documents": set_in(DOCUMENTS, title=lambda title: [title])},
}


@pytest.mark.parametrize("case", BEIR)
def test_a_beir_folder_is_read_however_its_files_were_written(tmp_path: Path, case: str) -> None:
    out = ingest(tmp_path, params(beir(tmp_path, **BEIR[case]), **RATIO))
    expected = sorted((f"log/{query}", f"log/{doc}", grade) for query, doc, grade in JUDGED)
    assert sorted(rows_of(out, "qrels", "query_id", "doc_id", "grade")) == expected
    assert ("log/7", "title 7", "text 7") in rows_of(out, "corpus", "doc_id", "title", "content")


def test_two_columns_are_judged_relevant(tmp_path: Path) -> None:
    for header in ("query-id\tcorpus-id", ""):
        out = ingest(tmp_path, params(beir(tmp_path, qrels=tsv([row[:2] for row in JUDGED], header)), **RATIO))
        assert rows_of(out, "qrels", "grade") == [1] * len(JUDGED)


def test_ids_in_another_form_of_unicode_are_the_same(tmp_path: Path) -> None:
    documents = [row | {"_id": f"cafe\u0301 {n}".replace(" ", "")} for n, row in enumerate(DOCUMENTS)]
    qrels = tsv([(query, f"caf\u00e9{doc}", grade) for query, doc, grade in JUDGED])
    out = ingest(tmp_path, params(beir(tmp_path, documents, qrels=qrels), **RATIO))
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
    source = beir(tmp_path, documents, queries, AMBIGUOUS[case])
    with pytest.raises(UserError, match=r"read in several ways.*: 5 of 5.*qrels_columns: \["):
        ingest(tmp_path, params(source, max_reject_ratio=1.0))
    columns = {"TREC's columns": ["query", "-", "document", "grade"]}.get(case, ["-", "query", "document", "grade"])
    told = source | {"qrels_columns": columns if "no grade" not in case else columns[:3]}
    out = ingest(tmp_path, params(told, **RATIO))
    assert sorted(rows_of(out, "qrels", "query_id", "doc_id")) == sorted((f"log/{q}", f"log/{d}") for q, d in SMALL)
