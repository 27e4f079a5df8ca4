"""Embed documents, alignment texts and tokens with the teacher, repeating nothing that is cached."""

import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
from sentence_transformers import SentenceTransformer

from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import Role
from steps.core.corpus import CorpusRows, CorpusTexts, corpus_template
from steps.core.cosines import cosines
from steps.core.tables import read_table, write_table
from steps.core.vector_store import Texts
from steps.embed.alignment_texts import Sources, build, missing_texts
from steps.embed.given_vectors import check_given, sampled_rows
from steps.embed.params import EmbedParams
from steps.embed.read_once import join, rows_read_alike
from steps.embed.token_vectors import token_texts, token_vectors
from steps.embed.vectors import NEIGHBOUR_DOCUMENTS, check_sample_spread, nearest_documents, searched_rows
from steps.encoders.cut_texts import cut_documents, sample_rows
from steps.encoders.precision import resolve_precision
from steps.encoders.towers import endpoint_jobs, endpoint_of, load_tower, route
from steps.encoders.vector_cache import embed_once
from steps.endpoint.module import Endpoint, announce
from steps.tracking.runs import Run

SHARD_TEXTS = 4096  # written to the cache at once: what a killed run repeats at most


def run(ingest: Path, generate: Path, teach: Path, output: Path, params: EmbedParams, run: Run) -> None:
    """Write the teacher's vectors of documents, alignment texts and tokens, each `(n, dim)`, and the texts' table.

    `lengths.npy` `(texts,)` has their lengths before normalisation, `nearest.npy` `(texts, neighbours)` the rows of
    their nearest documents. Vectors that ingest has of an index are the documents'; UserError if the teacher's differ.
    """
    corpus = CorpusRows(ingest, ["doc_id", "title", "topic", "content"])
    queries, unlabelled = (read_table(ingest, name) for name in ("queries", "unlabelled_queries"))
    sources = Sources(corpus, queries, unlabelled, read_table(generate, "generated_queries"), corpus_template(ingest))
    documents = CorpusTexts(ingest)

    teacher = fingerprint(teach / "tower")
    tower = load_tower(teach / "tower")
    asking = route(tower, "query")
    index_vectors = ingest / "document_vectors" / "vectors.npy"  # of an index that is there already
    texts = build(sources, params, uncased=_uncased(asking))
    lacking = missing_texts(texts.table["source_id"].to_pylist(), corpus, params.least_texts)
    few = f"the documents of {', '.join(lacking)} give no more"
    more = f"; embed.least_texts is {params.least_texts:,}, but {few}" if lacking else ""
    print(f"embed: {texts.summary()}{more}", file=sys.stderr)
    queried = texts.table["text"].to_pylist()
    sample = sampled_rows(ingest, params.seed) if index_vectors.is_file() else None
    _announce(tower, documents if sample is None else CorpusTexts(ingest, sample), queried)
    checked, cut = None, None
    rows = doc_rows = np.empty(0, dtype=np.int64)  # texts that are documents, and need not be read again
    if sample is not None:
        checked = check_given(index_vectors, ingest, tower, params.seed, params.precision)
    elif cut := cut_documents(tower, list(CorpusTexts(ingest, sample_rows(len(documents), params.seed)))):
        cut.tell("embed", f"teach.teacher.{teach.name}.{cut.knob}")
    if sample is None:
        rows, doc_rows = rows_read_alike(tower, texts.table, (doc_id for doc_id, *_ in corpus), documents)
    again = set(rows.tolist())
    rest = [text for row, text in enumerate(queried) if row not in again]

    with staged_folder(output) as staging:
        write_table(staging, "alignment_texts", texts.table)
        embedded = {"documents": 0}
        jobs: list[tuple[str, Role, Texts, str]] = [("alignment", "query", rest, "float16")]
        if checked:
            _linked(index_vectors, staging / "documents.npy")
            check_sample_spread(staging / "documents.npy", documents, "documents", teach.name, params.seed)
        else:
            jobs.insert(0, ("documents", "document", documents, "float32"))
        for name, role, items, dtype in jobs:
            embedded[name] = embed_once(
                tower,
                teacher.id,
                role,
                items,
                staging / f"{name}.npy",
                dtype=dtype,
                precision=params.precision,
                batch_size=params.batch_size,
                shard_texts=SHARD_TEXTS,
                caption=f"embed {name}",
                lengths=staging / f"{name}_lengths.npy",
            )
            check_sample_spread(staging / f"{name}.npy", items, name, teach.name, params.seed)
        join(staging, rows, doc_rows)
        vectors, searched = (np.load(staging / f"{name}.npy", mmap_mode="r") for name in ("alignment", "documents"))
        cosine = tower.similarity_fn_name == "cosine"
        among = searched_rows(ingest, NEIGHBOUR_DOCUMENTS, params.seed)
        nearest = nearest_documents(vectors, searched, params.neighbours, among, cosine=cosine)
        np.save(staging / "nearest.npy", nearest)
        lengths = np.load(staging / "lengths.npy")
        tokens = token_vectors(
            asking, teacher.id, precision=params.precision, batch_size=8 * params.batch_size, shard_texts=SHARD_TEXTS
        )
        np.save(staging / "tokens.npy", tokens.astype(np.float32))
        report = {
            "teacher": asdict(teacher),
            "computed_in": resolve_precision(params.precision),
            "dim": int(searched.shape[1]),
            "documents": len(documents),
            "given_documents": checked,
            "cut_documents": cut and cut.share,
            "document_tokens": cut and cut.limit,
            "alignment_texts": texts.table.num_rows,
            "nearest_documents": int(nearest.shape[1]),
            "lengths": _spread(lengths),
            "chosen": texts.summary(),
            "parts": texts.counts,
            "generated_cosine_to_source": generated_cosine(texts.table, sources.generated, vectors),
        }
        write_json(staging / "report.json", report)
    run.param("teacher_fingerprint", teacher.id)
    run.metrics({f"embedded.{name}": count for name, count in embedded.items()})
    run.metric("texts", texts.table.num_rows)
    run.metrics({f"texts.{part}.{reason}": n for part, tally in texts.counts.items() for reason, n in tally.items()})


def _announce(tower: SentenceTransformer, documents: Texts, texts: list[str]) -> None:
    jobs = [*endpoint_jobs(tower, "document", documents), *endpoint_jobs(tower, "query", texts)]
    if endpoint := endpoint_of(tower, "query"):
        jobs.append((endpoint, token_texts(route(tower, "query"))))
    if jobs:
        announce(jobs, "embed: documents, alignment texts and tokens together")


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def generated_cosine(texts: pa.Table, generated: pa.Table, vectors: np.ndarray) -> float | None:
    """Mean cosine, to the teacher, of generated queries and the queries they come from; None without such pairs."""
    rows = {
        (part, source_id): row
        for row, (part, source_id) in enumerate(
            zip(texts["part"].to_pylist(), texts["source_id"].to_pylist(), strict=True)
        )
    }
    pairs = [
        (rows["generated_queries", query["query_id"]], rows["train_queries", query["source_query_id"]])
        for query in generated.select(["query_id", "source_query_id"]).to_pylist()
        if ("generated_queries", query["query_id"]) in rows and ("train_queries", query["source_query_id"]) in rows
    ]
    if not pairs:
        return None
    new, old = (vectors[list(side)] for side in zip(*pairs, strict=True))
    return float(cosines(new, old).mean())


def _uncased(tower: SentenceTransformer) -> bool:
    """Whether the tower reads the same letters in another case as the same tokens; of an endpoint it is not known."""
    if isinstance(tower[0], Endpoint):
        return False
    upper, lower = (
        tower.preprocess([text])["input_ids"].tolist() for text in ("The Title Of A TEXT", "the title of a text")
    )
    return bool(upper == lower)


def _spread(lengths: np.ndarray) -> dict[str, float] | None:
    if not len(lengths):
        return None
    return {"min": float(lengths.min()), "mean": float(lengths.mean(dtype=np.float64)), "max": float(lengths.max())}
