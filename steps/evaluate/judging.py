"""What is asked: judged sets, or texts where nothing is judged; and that nothing was trained on the queries."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.core.corpus import corpus_batches, corpus_columns
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.leakage import check_leaks, evaluation_keys
from steps.core.progress import progress
from steps.core.tables import read_table, table_path
from steps.core.texts import fold, sentences
from steps.evaluate.params import REL, SAT, SPLITS, EvaluateParams
from steps.evaluate.scoring import answer_measures, answering_documents

QUERIES = frozenset({"train_queries", "unlabelled_queries"})
DOCUMENTS = frozenset({"documents", "titles", "sentences", "spans"})
NOBODYS = "unlabelled_queries/"  # ids of queries that belong to no data set begin so
CORPUS = "corpus"  # the part of texts of which it is not known that they trained nobody
_ENOUGH = 20  # held out; with fewer, texts of documents are read as queries too
_MAX_TEXTS = 500  # texts of a data set


@dataclass(frozen=True)
class Folders:
    """Outputs of the earlier stages but for the releases."""

    ingest: Path
    mine: Path
    embed: Path
    generate: Path
    teach: Path
    distill: Path


def read_evaluation_sets(ingest: Path, params: EvaluateParams) -> list[JudgedSet]:
    """The judged sets of SPLITS; UserError for a threshold of a data set that is not judged."""
    judged = read_judged_sets(ingest, SPLITS)
    datasets = sorted({item.dataset for item in judged})
    if unknown := sorted(params.min_relevance.keys() - set(datasets)):
        raise UserError(f"evaluate.min_relevance names {unknown[0]!r}; the judged data sets are {', '.join(datasets)}")
    answering = answering_documents(ingest, judged) if answer_measures(params.measures) else {}
    labels: dict[str, dict[str, int]] = defaultdict(dict)
    for row in read_table(ingest, "satisfaction").to_pylist() if SAT in params.measures else ():
        labels[row["query_id"]][row["doc_id"]] = row["grade"]
    return [
        replace(
            item,
            relevant_from=params.min_relevance.get(item.dataset, 1),
            satisfaction={
                query: labels[query] for query in (*item.query_ids, *item.without_relevant) if query in labels
            },
            answering={query: docs for query in item.query_ids if (docs := answers.get(query)) is not None},
            ignore_identical_ids=params.ignore_identical_ids,
        )
        for item in judged
        for answers in [answering.get(item.dataset, {})]
    ]


def unmeasured_lines(judged: Sequence[JudgedSet], params: EvaluateParams) -> list[str]:
    """A line for what `params.measures` asks for and no query has the data of."""
    answers = answer_measures(params.measures)
    checks = [
        ([REL], any(map(_irrelevant, judged)), "a document judged irrelevant: a grade of 0 in qrels"),
        (answers, any(item.answering for item in judged), "an answer string: a BEIR folder's answers.jsonl"),
        ([SAT], any(item.satisfaction for item in judged), "a second label: the fourth column of qrels"),
    ]
    return [
        f"{', '.join(names)}: no value, as no judged query has {need} gives them; else take it out of evaluate.measures"
        for names, has_data, need in checks
        if names and set(names) <= set(params.measures) and not has_data
    ]


def _irrelevant(judged: JudgedSet) -> bool:
    rows = [*judged.qrels.values(), *(grades for _, grades in judged.without_relevant.values())]
    return any(grade < judged.relevant_from for row in rows for grade in row.values())


def own_document_lines(ingest: Path, judged: Sequence[JudgedSet]) -> list[str]:
    """A line for each set of whose queries a tenth or more are documents of the same id, and find themselves first."""
    watched = [item for item in judged if not item.ignore_identical_ids]
    is_query = pc.field("doc_id").isin(pa.array([query for item in watched for query in item.query_ids], pa.string()))
    documents = pq.read_table(table_path(ingest, "corpus"), columns=["doc_id", "title", "content"], filters=is_query)
    contents = {row["doc_id"]: fold(f"{row['title']} {row['content']}") for row in documents.to_pylist()}
    counts = [sum(fold(text) in contents.get(query, "") for query, text in zip(item.query_ids, item.texts, strict=True))
              for item in watched]  # fmt: skip
    return [
        f"{count:,} of {len(item.query_ids):,} {item.split} queries of {item.dataset} are documents with the same id,"
        " and find themselves first; evaluate.ignore_identical_ids: true leaves these hits out, as BEIR does"
        for item, count in zip(watched, counts, strict=True)
        if count >= 0.1 * len(item.query_ids)
    ]


def audit_leaks(folders: Folders) -> dict[str, int]:
    """Compare every training text with the dev and test queries of all data sets after folding case and punctuation.

    Training texts: the alignment texts, the generated queries, and the queries that mined triplets name. UserError when
    one of them equals an evaluation query.
    """
    queries = read_table(folders.ingest, "queries").to_pylist()
    texts, held_out = {row["query_id"]: row["text"] for row in queries}, evaluation_keys(queries)
    training = []
    for folder, name in ((folders.embed, "alignment_texts"), (folders.generate, "generated_queries")):
        source = str(folder / f"{name}.parquet")
        training += [(source, text) for text in read_table(folder, name).column("text").to_pylist()]
    source, triplets = str(folders.mine / "triplets.parquet"), read_table(folders.mine, "triplets")
    named = {*triplets.column("query_id").to_pylist(), *triplets.column("via_query_id").to_pylist()}
    for query_id in sorted(named - {""}):  # one-hop triplets go via no query
        if query_id not in texts:
            raise UserError(f"{source}: query {query_id!r} is not among the ingested queries; run `mine` again")
        training.append((source, texts[query_id]))
    remedy = "remove them from the training data and run the stages from `mine` on again"
    compared = check_leaks(progress(training, len(training), "leak audit"), held_out, remedy)
    return {"checked_texts": compared, "evaluation_queries": len(held_out), "leaks": 0}


@dataclass(frozen=True)
class Texts:
    """Texts of one data set, and how many of them come from which part of the alignment texts, or from the CORPUS."""

    dataset: str
    texts: list[str]
    parts: dict[str, int]


def describe_parts(parts: Mapping[str, int]) -> str:
    """What was measured on, in words; `parts` as in `Texts`."""
    if count := parts.get(CORPUS):
        reason = "too few texts of this data set were held out"
        return f"{count:,} titles and sentences, which may have trained students: {reason}"
    names = {"train_queries": "training queries", "unlabelled_queries": "unlabelled queries"}
    listed = ", ".join(f"{count:,} {names.get(part, part)}" for part, count in sorted(parts.items()))
    return f"{listed} that trained no student"


def unjudged_datasets(ingest: Path, judged: Sequence[JudgedSet]) -> list[str]:
    """Data sets of the corpus without a test set among the judged ones, sorted."""
    names: set[str] = set()
    for batch in corpus_batches(ingest, ["dataset"]):
        names.update(batch["dataset"].unique().to_pylist())
    return sorted(names - {item.dataset for item in judged if item.split == "test"})


def read_texts(ingest: Path, students: Iterable[Path], datasets: Sequence[str], seed: int) -> list[Texts]:
    """Up to 500 texts of each data set that no student trained on, as `distill` lists them in the students' folders.

    Its own queries; where these are few, queries of no data set as well, and where both are, texts of its documents. If
    next to nothing was held out, titles and first sentences stand in. UserError for a data set without any text.
    """
    if not datasets:
        return []
    held_out = _held_out(students)
    nobodys = [(part, text) for part, source, text in held_out if source.startswith(NOBODYS)]
    samples = []
    for dataset in datasets:
        candidates = [(part, text) for part, source, text in held_out if source.startswith(f"{dataset}/")]
        queries = [item for item in candidates if item[0] in QUERIES]
        if len(queries) < _ENOUGH:
            queries += nobodys
        chosen = queries if len(queries) >= _ENOUGH else queries + [item for item in candidates if item[0] in DOCUMENTS]
        if len(chosen) < _ENOUGH:  # students of several seeds hold out hardly a text in common
            documents = [(CORPUS, text) for text in _document_texts(ingest, dataset)]
            chosen = max(chosen, documents, key=len)
        if not chosen:
            raise UserError(f"data set {dataset!r}: no document has a title or a sentence to search with; leave it out")
        picked = [chosen[row] for row in np.random.default_rng(seed).permutation(len(chosen))[:_MAX_TEXTS]]
        samples.append(Texts(dataset, [text for _, text in picked], dict(Counter(part for part, _ in picked))))
    return samples


def _held_out(students: Iterable[Path]) -> list[tuple[str, str, str]]:
    """(part, source id, text) of the texts that every student held out, generated ones and their like left out."""
    tables = [read_table(folder, "held_out") for folder in students]
    common = set.intersection(*(set(table["text_sha"].to_pylist()) for table in tables))
    rows = tables[0].filter(
        pc.field("text_sha").isin(pa.array(sorted(common), pa.string()))
        & pc.field("part").isin(sorted(QUERIES | DOCUMENTS))
    )
    return [(row["part"], row["source_id"], row["text"]) for row in rows.to_pylist()]


def _document_texts(ingest: Path, dataset: str) -> list[str]:
    rows = corpus_columns(ingest, ["dataset", "title", "content"])
    texts = (title or next(iter(sentences(content)), "") for name, title, content in rows if name == dataset)
    return [text for text in texts if text.strip()]
