"""Embed documents, alignment texts and tokens with the teacher, repeating nothing that is cached."""

from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
from sentence_transformers import SentenceTransformer

from steps.core.corpus import CorpusRows, CorpusTexts
from steps.core.files import cache_root, staged_folder, write_json
from steps.core.fingerprints import fingerprint
from steps.core.precision import resolve_precision
from steps.core.tables import read_table, write_table
from steps.core.towers import Role, encode, load_tower
from steps.core.tracking import Run
from steps.embed.alignment_texts import Sources, build
from steps.embed.params import EmbedParams
from steps.embed.token_vectors import token_vectors
from steps.embed.vector_cache import Texts, VectorCache


def run(ingest: Path, generate: Path, teach: Path, output: Path, params: EmbedParams, run: Run) -> None:
    """Write the teacher's vectors of documents `(documents, dim)`, alignment texts and tokens, and the texts' table."""
    corpus = CorpusRows(ingest, ["doc_id", "title", "content"])
    queries, unlabelled = (read_table(ingest, name) for name in ("queries", "unlabelled_queries"))
    sources = Sources(corpus, queries, unlabelled, read_table(generate, "generated_queries"))
    documents = CorpusTexts(ingest)

    teacher = fingerprint(teach / "tower")
    tower = load_tower(teach / "tower")
    texts = build(sources, params, uncased=_uncased(tower))
    width = tower.get_embedding_dimension() or 0

    with staged_folder(output) as staging:
        write_table(staging, "alignment_texts", texts.table)
        embedded = {}
        jobs: list[tuple[str, Role, Texts, str]] = [
            ("documents", "document", documents, "float32"),
            ("alignment", "query", texts.table["text"].to_pylist(), "float16"),
        ]
        for name, role, items, dtype in jobs:
            cache = VectorCache(_cache_folder(tower, teacher.id, role, dtype, params), dtype)
            embedded[name] = cache.fill(
                items,
                partial(encode, tower, role=role, precision=params.precision, batch_size=params.batch_size),
                params.shard_texts,
                f"embed {name}",
            )
            cache.write(items, staging / f"{name}.npy", width)
        tokens = token_vectors(tower, precision=params.precision, batch_size=8 * params.batch_size)
        np.save(staging / "tokens.npy", tokens.astype(np.float32))
        report = {
            "teacher": asdict(teacher),
            "computed_in": resolve_precision(params.precision),
            "width": width,
            "documents": len(documents),
            "alignment_texts": texts.table.num_rows,
            "parts": texts.counts,
            "generated_cosine_to_source": generated_cosine(
                texts.table, sources.generated, np.load(staging / "alignment.npy", mmap_mode="r")
            ),
        }
        write_json(staging / "report.json", report)
    run.param("teacher_fingerprint", teacher.id)
    run.metrics({f"embedded.{name}": count for name, count in embedded.items()})
    run.metrics({f"texts.{part}.{reason}": n for part, tally in texts.counts.items() for reason, n in tally.items()})


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
    new, old = (vectors[list(side)].astype(np.float32) for side in zip(*pairs, strict=True))
    lengths = np.linalg.norm(new, axis=1) * np.linalg.norm(old, axis=1)
    return float(np.mean((new * old).sum(axis=1) / lengths))


def _uncased(tower: SentenceTransformer) -> bool:
    """Whether the tower reads the same letters in another case as the same tokens."""
    upper, lower = (
        tower.preprocess([text])["input_ids"].tolist() for text in ("The Title Of A TEXT", "the title of a text")
    )
    return bool(upper == lower)


def _cache_folder(tower: SentenceTransformer, teacher: str, role: Role, dtype: str, params: EmbedParams) -> Path:
    """Cache folder of all that a vector depends on besides its text."""
    precision = resolve_precision(params.precision)
    settings = (teacher, role, tower.prompts.get(role), tower.max_seq_length, precision, dtype)
    return cache_root() / "vectors" / sha256(repr(settings).encode()).hexdigest()[:24]
