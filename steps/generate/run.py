"""Stage `generate`: training queries in, new queries and a report on them out."""

import random
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_text, staged_folder, write_json
from steps.core.corpus import corpus_columns, corpus_template
from steps.core.cosines import cosines
from steps.core.leakage import evaluation_keys
from steps.core.tables import read_table, table_from_rows, write_table
from steps.core.texts import fold, sentences, words, words_of
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower
from steps.generate.denoiser import (
    MASK_RATIO,
    MAX_TOKENS,
    Denoiser,
    Variants,
    fits,
    load_denoiser,
    train_denoiser,
    write_variants,
)
from steps.generate.params import GenerateParams
from steps.generate.writer import Writer, finds_document, load_writer, write_queries
from steps.tracking.runs import Run

EXAMPLES = 5
SIGMAS = (0.1, 0.2)  # standard deviations of the noise between encoder and decoder: a new query each of a source
CORPUS_TEXTS = 3000  # titles and sentences that train the small BART along with the training queries
JUDGE_SAMPLE = 500  # new queries a sigma that the judge reads
REASONS = ("empty", "evaluation_query", "copy", "duplicate")
FUNCTION_WORDS = frozenset(
    words(
        "a an and are as at be been by can do does for from has have how if in into is it its may no not of on or that"
        " the their then there these this those to was were what when where which who whose why will with you your"
    )
)
SENTENCE_WORDS = range(4, 31)
_FEWEST = 1000  # documents in memory at once, where fewer texts are wanted
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Source:
    """A text to write from; `query_id` is empty where it comes from a document."""

    name: str  # what the ids of the new queries begin with
    text: str
    query_id: str = ""


def run(ingest: Path, output: Path, params: GenerateParams, run: Run) -> None:
    """Write `output/generated_queries.parquet` and `output/report.json`.

    The BART writes a variant a sigma of each source: training queries and, if they are fewer than `least_sources`,
    titles and sentences. With `document_model` that model reads documents in their place, once, and a query that does
    not find its document is dropped. UserError when a model cannot be loaded.
    """
    # the millions of a log are not read if nothing is written
    queries = read_table(ingest, "queries").to_pylist() if params.max_queries else []
    evaluation = set(evaluation_keys(queries))
    train = [row for row in queries if row["split"] == "train" and fold(row["text"]) not in evaluation]
    query_sources = from_queries(train, params.max_queries, params.seed)
    missing = max(0, params.least_sources - len(query_sources)) if params.max_queries else 0
    has_writer = bool(params.document_model)
    document_sources = from_documents(ingest, evaluation, missing, params.seed, whole_documents=has_writer)
    sources = query_sources if has_writer else query_sources + document_sources
    rows: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "sources": len(query_sources) + len(document_sources),
        "sources_not_drawn": len(train) - len(query_sources),
        "documents": len(document_sources),
        "too_long": 0,
        "mask_ratio": MASK_RATIO,
        "sigmas": [],
        "model": "",
        "note": "" if params.max_queries else "generate.max_queries is 0",
    }
    if params.max_queries and not (train or document_sources):
        report["note"] = "no training query, and generate.least_sources asks for no document"
    existing = {fold(row["text"]) for row in train}
    writer = load_writer(params) if has_writer and document_sources else None  # what cannot be loaded is said first
    makes_round_trip = writer is not None and params.round_trip > 0
    judge = load_tower(resolve_base(params.judge)) if sources or makes_round_trip else None
    if makes_round_trip and judge is not None and judge.similarity_fn_name not in ("cosine", "dot"):
        raise UserError(
            f"generate.judge: {params.judge} compares by {judge.similarity_fn_name}; name one that compares by cosine"
            " or dot product, or set round_trip: 0"
        )
    if sources and judge is not None:
        denoiser = load_denoiser(params) if params.model else None
        if denoiser is None:
            documents = corpus_columns(ingest, ["title", "content"])
            sample = corpus_sample(documents, evaluation, CORPUS_TEXTS, params.seed)
            training_texts = [row["text"] for row in train] if train else [source.text for source in document_sources]
            training_texts = sampled(training_texts, params.small.max_queries, params.seed)
            denoiser = train_denoiser(training_texts + sample, params, run)
        short = [*compress(sources, fits(denoiser, [source.text for source in sources]))]
        report["too_long"] = len(sources) - len(short)
        if report["too_long"]:
            print(
                f"generate: {report['too_long']:,} of {len(sources):,} sources have more than {MAX_TOKENS} tokens and"
                " are left out",
                file=sys.stderr,
            )
        if short:
            rows, report["sigmas"] = generate(denoiser, judge, short, evaluation, existing, params, run)
        report["model"] = params.model or "small BART trained on these queries"
    if writer:
        existing |= {fold(row["text"]) for row in rows}
        new, report["document_model"] = generate_from_documents(
            writer, judge if makes_round_trip else None, document_sources, evaluation, existing, params
        )
        rows += new
    report["queries"] = len(rows)
    run.metric("queries", len(rows))
    with staged_folder(output) as staging:
        write_table(staging, "generated_queries", table_from_rows("generated_queries", rows))
        write_json(staging / "report.json", report)
    run.artifact(output / "report.json")
    for entry in report["sigmas"]:
        print(
            f"generate: noise {entry['sigma']:g}: {entry['kept']:,} of {entry['written']:,} queries kept;"
            f" {entry['share_not_copied']:.0%} differ from the query that each was written from. Their cosine to it is"
            f" {entry['cosine_to_source']:.2f}, to a random query {entry['cosine_to_another_source']:.2f}",
            file=sys.stderr,
        )


def generate_from_documents(
    writer: Writer,
    judge: SentenceTransformer | None,
    sources: list[Source],
    evaluation: set[str],
    existing: set[str],
    params: GenerateParams,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A query of each document, with a judge those that make the round trip: rows of generated_queries, a report."""
    documents = [source.text for source in sources]
    texts = write_queries(writer, documents, params.seed, params)
    positions = list(range(len(documents)))
    if judge is not None:
        positions = np.flatnonzero(finds_document(judge, texts, documents, params.round_trip)).tolist()
    filtered = filter_texts(
        [texts[row] for row in positions], [documents[row] for row in positions], evaluation, existing
    )
    selected = [positions[row] for row in filtered.selected]
    entry = {"model": params.document_model, "read": len(documents), "queries": len(selected)}
    entry |= {"not_found": len(documents) - len(positions), "dropped": filtered.counts()}
    advice = "" if selected else "; raise generate.round_trip, or name another document_model"
    print(
        f"generate: {len(selected):,} of {len(documents):,} queries of documents kept; {entry['not_found']:,} do not"
        f" find theirs{advice}",
        file=sys.stderr,
    )
    return [_row(sources[row], 0, texts[row], 0.0, 0.0) for row in selected], entry


def sampled(items: list[_Item], limit: int, seed: int) -> list[_Item]:
    """All items, or `limit` of them (0 = all) drawn by seed, in their order."""
    if not limit or len(items) <= limit:
        return items
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), limit))]


def generate(
    denoiser: Denoiser,
    judge: SentenceTransformer,
    sources: list[Source],
    evaluation: set[str],
    existing: set[str],
    params: GenerateParams,
    run: Run,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One variant of every source a sigma: rows of generated_queries, sorted by source, and a report on each sigma."""
    texts = [source.text for source in sources]
    rows: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for variant, sigma in enumerate(SIGMAS):
        variants = write_variants(denoiser, texts, sigma, params.seed + variant, params)
        filtered = filter_texts(variants.texts, texts, evaluation, existing | {fold(row["text"]) for row in rows})
        new = [(sources[position], variants.texts[position]) for position in filtered.selected]
        rows += [_row(source, variant, text, sigma, MASK_RATIO) for source, text in new]
        entries.append(measure(judge, texts, variants, sigma, filtered, params))
    rows.sort(key=lambda row: (row["query_id"].rpartition("#")[0], row["variant"]))
    for entry in entries:
        for name in ("share_not_copied", "content_word_overlap", "cosine_to_source"):
            run.metric(f"sigma_{entry['sigma']:g}.{name}", entry[name])
    return rows, entries


def _row(source: Source, variant: int, text: str, sigma: float, mask_ratio: float) -> dict[str, Any]:
    return {
        "query_id": f"{source.name}#{variant}",
        "source_query_id": source.query_id,
        "variant": variant,
        "text": text,
        "sigma": sigma,
        "mask_ratio": mask_ratio,
    }


@dataclass(frozen=True)
class Filtered:
    """Positions of the texts kept, and the reason of each that was not."""

    selected: list[int]
    dropped: dict[int, str]

    def counts(self) -> dict[str, int]:
        """Dropped texts by reason."""
        counts = Counter(self.dropped.values())
        return {reason: counts[reason] for reason in REASONS}


def filter_texts(
    texts: Sequence[str], sources: Sequence[str], evaluation: Collection[str], existing: Collection[str]
) -> Filtered:
    """Keep what is new: not empty, no evaluation query, no copy of its source, not there already.

    `texts[i]` was written from `sources[i]`; `evaluation` (dev and test queries) and `existing` hold folded texts.
    """
    seen = set(existing)
    selected: list[int] = []
    dropped: dict[int, str] = {}
    for position, (text, source) in enumerate(zip(texts, sources, strict=True)):
        key = fold(text)
        fails = (not key, key in evaluation, key == fold(source), key in seen)
        if any(fails):
            dropped[position] = REASONS[fails.index(True)]
        else:
            seen.add(key)
            selected.append(position)
    return Filtered(selected, dropped)


def measure(
    judge: SentenceTransformer,
    sources: list[str],
    variants: Variants,
    sigma: float,
    filtered: Filtered,
    params: GenerateParams,
) -> dict[str, Any]:
    """What one sigma gave: counts, share not copied, similarity of the kept texts to their sources."""
    selected = filtered.selected
    copied = sum(fold(text) == fold(source) for text, source in zip(variants.texts, sources, strict=True))
    overlap = [content_overlap(sources[index], variants.texts[index]) for index in selected]
    sample = sorted(random.Random(params.seed).sample(selected, min(JUDGE_SAMPLE, len(selected))))
    cosines_to_source, cosines_to_another = np.zeros(1), np.zeros(1)
    if sample:
        generated = [variants.texts[index] for index in sample]
        cosines_to_source, cosines_to_another = source_cosines(judge, [sources[index] for index in sample], generated)
    return {
        "sigma": sigma,
        "written": len(sources),
        "kept": len(selected),
        "dropped": filtered.counts(),
        "masked_share": variants.masked_share,
        "share_not_copied": 1 - copied / len(sources),
        "content_word_overlap": float(np.mean(overlap)) if overlap else 0.0,
        "cosine_to_source": float(cosines_to_source.mean()),
        "cosine_to_another_source": float(cosines_to_another.mean()),
        "judge": params.judge,
        "judged": len(sample),
        "examples": [{"source": sources[index], "generated": variants.texts[index]} for index in sample[:EXAMPLES]],
    }


def content_overlap(first: str, second: str) -> float:
    """Jaccard overlap of the words of two texts that are no function words; 1 if neither has any."""
    first_words, second_words = (set(words(text)) - FUNCTION_WORDS for text in (first, second))
    return len(first_words & second_words) / len(first_words | second_words) if first_words | second_words else 1.0


def source_cosines(
    judge: SentenceTransformer, sources: Sequence[str], variants: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine of each variant to its own source, and to the next variant's source as the control, each `(n,)`."""
    source, variant = (encode(judge, list(texts), "query") for texts in (sources, variants))
    return cosines(source, variant), cosines(np.roll(source, 1, axis=0), variant)


def from_queries(train: list[dict[str, Any]], limit: int, seed: int) -> list[Source]:
    """All training queries, or `limit` of them (0 = none) drawn by seed, in their order."""
    rows = sampled(train, limit, seed) if limit else []
    return [Source(row["query_id"], row["text"], row["query_id"]) for row in rows]


def from_documents(ingest: Path, evaluation: set[str], limit: int, seed: int, *, whole_documents: bool) -> list[Source]:
    """Up to `limit` texts of documents: a document's title or one of its sentences, then another one.

    With `whole_documents` each text is a whole document. Documents take their turns in the order of a hash, so that a
    new one displaces few. No text is an evaluation query, and none comes twice.
    """
    sources: dict[str, Source] = {}
    at_once = max(2 * limit, _FEWEST)
    turn, before = 0, -1
    while before < len(sources) < limit:
        before = len(sources)
        for doc_id, texts in _in_order(ingest, evaluation, at_once, seed, whole_documents=whole_documents):
            if new := [text for text in texts if fold(text) not in sources]:
                text = random.Random(f"{seed} {doc_id} {turn}").choice(new)
                sources[fold(text)] = Source(f"{doc_id}#document{turn or ''}", text)
            if len(sources) == limit:
                break
        turn += 1
    return list(sources.values())


def _in_order(
    ingest: Path, evaluation: set[str], at_once: int, seed: int, *, whole_documents: bool
) -> Iterator[tuple[str, list[str]]]:
    """Id and texts of each document that has any, in the order of a hash.

    The texts of `at_once` documents are in memory, then of twice as many.
    """
    template, columns = corpus_template(ingest), ["doc_id", "title", "topic", "content"]
    marks = np.array([_mark(seed, doc_id) for (doc_id,) in corpus_columns(ingest, ["doc_id"])], dtype=np.uint64)
    order, start = np.argsort(marks, kind="stable").tolist(), 0
    while window := order[start : start + at_once]:
        selected, documents = set(window), dict[int, tuple[str, list[str]]]()
        for row, (doc_id, title, topic, content) in enumerate(corpus_columns(ingest, columns)):
            if row in selected:
                texts = [template.text(title, topic, content)] if whole_documents else query_like(title, content)
                if usable := [text for text in texts if (key := fold(text)) and key not in evaluation]:
                    documents[row] = doc_id, usable
        yield from (documents[row] for row in window if row in documents)
        start, at_once = start + at_once, 2 * at_once  # few have texts: the corpus is not to be read over and over


def _mark(seed: int, text: str) -> int:
    """The place of a text in a random order: 64 bits of a hash."""
    return int(sha256_text(f"{seed} {text}")[:16], 16)


def corpus_sample(documents: Iterable[Sequence[str]], evaluation: set[str], limit: int, seed: int) -> list[str]:
    """A sample by hash of distinct titles and sentences of query-like length, none of them an evaluation query.

    `documents`: (title, content).
    """
    by_mark: dict[int, str] = {}
    texts = (text for title, content in documents for text in query_like(title, content))
    for text in texts if limit else ():
        if (key := fold(text)) not in evaluation:
            by_mark.setdefault(_mark(seed, key), text)
        if len(by_mark) > 2 * limit:
            by_mark = dict(nsmallest(limit, by_mark.items()))
    return [text for _, text in nsmallest(limit, by_mark.items())]


def query_like(title: str, content: str) -> list[str]:
    """The title and the sentences of a document that are about as long as queries."""
    return [text for text in (title, *sentences(content)) if len(words_of(text)) in SENTENCE_WORDS]
