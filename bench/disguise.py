"""A corpus made harder, so that knobs fit more than one.

Changes are made in the order given:
  docs=N          N documents: those judged for as many queries as fill half of them, the others drawn
  lower           lower case, punctuation set apart by blanks, as in old test collections
  untitled        no titles
  first_sentence  of each document the first sentence alone
  joined=W        documents joined, one after the other, until they have W words; judgements follow
  halves=N        N dev and N test queries, long ones, in place of what was there: each the second half of a document's
                  text, which keeps the first and is what the query should find
  no_queries      neither unjudged queries nor training queries, which become dev queries where there are none
Folders are in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/, read plain or gzip, written plain.
"""

import csv
import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder
from steps.core.tables import read_table

SEED = 5
Judgement = tuple[str, str, int]  # query id, document id, grade
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])|\n\s*\n")
_APART = re.compile(r"\s*([.,;:])(?=\s|$)")


@dataclass(frozen=True)
class Corpus:
    """Documents as (id, title, text), queries by id, and judgements by split."""

    documents: list[tuple[str, str, str]]
    queries: dict[str, str]
    judgements: dict[str, list[Judgement]]


def sampled(corpus: Corpus, count: int) -> Corpus:
    """`count` documents; queries whose judged documents are all among them, judged or not, are kept."""
    draw = random.Random(SEED)
    judged: dict[str, set[str]] = {}
    for rows in corpus.judgements.values():
        for query, document, _ in rows:
            judged.setdefault(query, set()).add(document)
    document_ids = {document for document, *_ in corpus.documents}
    chosen: set[str] = set()
    for query in draw.sample(sorted(judged), len(judged)):
        judged_ids = judged[query] & document_ids
        if len(chosen | judged_ids) <= count // 2:
            chosen |= judged_ids
    candidates = sorted(document_ids - chosen)
    chosen |= set(draw.sample(candidates, min(len(candidates), max(0, count - len(chosen)))))
    inside = {query for query, judged_ids in judged.items() if judged_ids <= chosen}
    return Corpus(
        [document for document in corpus.documents if document[0] in chosen],
        {query: text for query, text in corpus.queries.items() if query in inside or query not in judged},
        {split: [row for row in rows if row[0] in inside] for split, rows in corpus.judgements.items()},
    )


def lower(corpus: Corpus) -> Corpus:
    """Lower case; full stops and commas are words of their own."""

    def changed(text: str) -> str:
        return _APART.sub(r" \1", text.lower())

    documents = [(name, changed(title), changed(text)) for name, title, text in corpus.documents]
    return replace(corpus, documents=documents, queries={key: text.lower() for key, text in corpus.queries.items()})


def untitled(corpus: Corpus) -> Corpus:
    return replace(corpus, documents=[(name, "", text) for name, _, text in corpus.documents])


def first_sentence(corpus: Corpus) -> Corpus:
    """Of each document the first sentence, found by a rule that stays as it is."""
    documents = [
        (name, title, _SENTENCE_END.split(text.strip(), maxsplit=1)[0]) for name, title, text in corpus.documents
    ]
    return replace(corpus, documents=documents)


def joined(corpus: Corpus, words: int) -> Corpus:
    """Documents joined until they have `words` words, titles among the text; a judgement is of the whole."""
    documents: list[tuple[str, str, str]] = []
    home: dict[str, str] = {}
    parts: list[str] = []
    for name, title, text in corpus.documents:
        if not parts:
            documents.append((name, "", ""))
        home[name] = documents[-1][0]
        parts.append(f"{title}. {text}" if title else text)
        documents[-1] = (home[name], "", " ".join(parts))
        if sum(len(part.split()) for part in parts) >= words:
            parts = []
    judgements = {}
    for split, rows in corpus.judgements.items():
        grades: dict[tuple[str, str], int] = {}
        for query, document, grade in rows:
            if document in home:
                key = (query, home[document])
                grades[key] = max(grade, grades.get(key, 0))
        judgements[split] = [(*key, grade) for key, grade in grades.items()]
    return Corpus(documents, corpus.queries, judgements)


def halves(corpus: Corpus, count: int) -> Corpus:
    """Long queries: second halves of `2 * count` documents of 40 words and more, half of them for dev."""
    rows, queries = {}, {}
    for name, title, text in corpus.documents:
        words = text.split()
        rows[name] = (name, title, text)
        if len(words) >= 40:
            rows[name] = (name, title, " ".join(words[: len(words) // 2]))
            queries[f"half-{name}"] = " ".join(words[len(words) // 2 :])
    sample = random.Random(SEED).sample(sorted(queries), min(2 * count, len(queries)))
    judged = [(query, query.removeprefix("half-"), 1) for query in sample]
    judgements = {"dev": judged[::2], "test": judged[1::2]}
    return Corpus(list(rows.values()), {query: queries[query] for query in sample}, judgements)


def no_queries(corpus: Corpus) -> Corpus:
    """Dev and test queries alone; training queries are dev queries where there are none, for something to choose on."""
    dev = {"dev": corpus.judgements["train"]} if "train" in corpus.judgements else {}
    judgements = dev | {split: rows for split, rows in corpus.judgements.items() if split != "train"}
    query_ids = {query for rows in judgements.values() for query, *_ in rows}
    return Corpus(corpus.documents, {key: text for key, text in corpus.queries.items() if key in query_ids}, judgements)


PLAIN: dict[str, Callable[[Corpus], Corpus]] = {
    "lower": lower,
    "untitled": untitled,
    "first_sentence": first_sentence,
    "no_queries": no_queries,
}
COUNTED: dict[str, Callable[[Corpus, int], Corpus]] = {"docs": sampled, "joined": joined, "halves": halves}


def disguised(corpus: Corpus, changes: Iterable[str]) -> Corpus:
    """The corpus after the changes; UserError for one that is not known."""
    for change in changes:
        name, _, number = change.partition("=")
        if name in COUNTED and number.isdigit():
            corpus = COUNTED[name](corpus, int(number))
        elif change in PLAIN:
            corpus = PLAIN[change](corpus)
        else:
            raise UserError(f"{change}: no such change; there are {', '.join([*PLAIN, *(f'{n}=N' for n in COUNTED)])}")
    return corpus


def read_beir(folder: Path) -> Corpus:
    """A BEIR folder; UserError where it has no documents."""
    corpus, query_rows = (list(map(json.loads, _lines(folder / f"{name}.jsonl"))) for name in ("corpus", "queries"))
    if not corpus:
        raise UserError(f"{folder}: no documents in corpus.jsonl or corpus.jsonl.gz; name a folder in BEIR's layout")
    documents = [(row["_id"], row.get("title") or "", row["text"]) for row in corpus]
    queries = {row["_id"]: row["text"] for row in query_rows}
    judgements = {}
    for split in ("train", "dev", "test"):
        lines = list(_lines(folder / "qrels" / f"{split}.tsv"))
        if lines:
            rows = list(csv.reader(lines[1:], delimiter="\t"))
            judgements[split] = [(query, document, int(grade)) for query, document, grade in rows]
    return Corpus(documents, queries, judgements)


def read_ingested(ingest: Path) -> Corpus:
    """What the stage `ingest` left in a folder; UserError where it left nothing."""
    if not (ingest / "corpus.parquet").is_file():
        raise UserError(f"{ingest}: no corpus here; run `make run STAGES=ingest` first")
    rows = {name: read_table(ingest, name).to_pylist() for name in ("corpus", "queries", "unlabelled_queries", "qrels")}
    judgements: dict[str, list[Judgement]] = {}
    for row in rows["qrels"]:
        judgements.setdefault(row["split"], []).append((row["query_id"], row["doc_id"], row["grade"]))
    return Corpus(
        [(row["doc_id"], row["title"], row["content"]) for row in rows["corpus"]],
        {row["query_id"]: row["text"] for name in ("queries", "unlabelled_queries") for row in rows[name]},
        judgements,
    )


def write(corpus: Corpus, folder: Path) -> None:
    """A BEIR folder, in place of what is there."""
    with staged_folder(folder) as staging:
        (staging / "qrels").mkdir()
        _write(
            staging / "corpus.jsonl",
            (dict(zip(("_id", "title", "text"), row, strict=True)) for row in corpus.documents),
        )
        _write(staging / "queries.jsonl", ({"_id": key, "text": text} for key, text in corpus.queries.items()))
        for split, rows in corpus.judgements.items():
            lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
            (staging / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file, plain or gzip; none where there is neither."""
    packed = path.with_name(f"{path.name}.gz")
    if path.is_file():
        yield from path.read_text(encoding="utf-8").splitlines()
    elif packed.is_file():
        yield from gzip.decompress(packed.read_bytes()).decode("utf-8").splitlines()
