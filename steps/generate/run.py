"""Stage `generate`: training queries in, new queries and a report on them out."""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from steps.core.bases import resolve_base
from steps.core.files import staged_folder, write_json
from steps.core.leakage import evaluation_keys
from steps.core.tables import read_table, table_from_rows, write_table
from steps.core.texts import fold
from steps.core.towers import load_tower
from steps.core.tracking import Run
from steps.generate.denoiser import Denoiser, Variants, load_denoiser, load_writer, write_queries, write_variants
from steps.generate.denoiser_training import train_denoiser
from steps.generate.filtering import Filtered, filter_texts
from steps.generate.params import GenerateParams
from steps.generate.similarity import content_overlap, source_cosines
from steps.generate.sources import Source, corpus_sample, from_documents, from_queries

EXAMPLES = 5


def run(ingest: Path, output: Path, params: GenerateParams, run: Run) -> None:
    """Write `output/generated_queries.parquet` (one a source and sigma, less the dropped) and `output/report.json`.

    Sources are training queries, and texts of documents where there are fewer than `least_sources`. Without sources the
    table is empty and the report says so. UserError when a model cannot be loaded.
    """
    queries, corpus = read_table(ingest, "queries").to_pylist(), read_table(ingest, "corpus")
    evaluation = set(evaluation_keys(queries))
    train = [row for row in queries if row["split"] == "train" and fold(row["text"]) not in evaluation]
    asked = from_queries(train, params.max_queries, params.seed)
    missing = max(0, params.least_sources - len(asked)) if params.max_queries else 0
    read = from_documents(corpus, evaluation, missing, params.seed, whole=bool(params.document_model))
    if not asked + read:
        note = "" if train else "neither training queries nor documents to generate from"
        _write(output, [], {"sources": 0, "queries": 0, "sigmas": [], "model": params.model, "note": note}, run)
        return
    writer = load_writer(params.document_model) if params.document_model and read else None
    denoiser = None
    if params.model:
        denoiser = load_denoiser(params.model)
    elif asked or writer is None:
        texts = [row["text"] for row in train]
        denoiser = train_denoiser(
            texts + corpus_sample(corpus, evaluation, params.small.corpus_texts, params.seed), params, run
        )
    known = {fold(row["text"]) for row in train}
    rows, report = generate(denoiser, writer, asked + read, evaluation, known, params, run)
    report["model"] = params.model or "small BART trained on these queries"
    report["document_model"] = params.document_model if writer else ""
    report["documents_read"] = len(read)
    report["sources_not_drawn"] = len(train) - len(asked)
    _write(output, rows, report, run)


def generate(
    denoiser: Denoiser | None,
    writer: Denoiser | None,
    sources: list[Source],
    evaluation: set[str],
    known: set[str],
    params: GenerateParams,
    run: Run,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of generated_queries, sorted by source, and the report: one variant of every source a sigma.

    `writer` reads the sources that are documents, the denoiser all others; without a writer it reads these too.
    """
    texts = [source.text for source in sources]
    written = [
        write(denoiser, writer, sources, sigma, params.seed + variant, params)
        for variant, sigma in enumerate(params.sigmas)
    ]
    all_texts = [text for variants in written for text in variants.texts]
    filtered = filter_texts(all_texts, texts * len(written), evaluation, known)
    rows: list[dict[str, Any]] = [
        {
            "query_id": f"{source.name}#{variant}",
            "source_query_id": source.query_id,
            "variant": variant,
            "text": all_texts[position],
            "sigma": params.sigmas[variant],
            "mask_ratio": params.mask_ratio,
        }
        for position in filtered.kept
        for variant, source in [(position // len(texts), sources[position % len(texts)])]
    ]
    rows.sort(key=lambda row: (row["query_id"].rpartition("#")[0], row["variant"]))
    report: dict[str, Any] = {"sources": len(sources), "queries": len(rows), "mask_ratio": params.mask_ratio}
    report["sigmas"] = [measure(texts, variants, variant, filtered, params) for variant, variants in enumerate(written)]
    for entry in report["sigmas"]:
        for name in ("share_not_copied", "content_word_overlap", "cosine_to_source"):
            run.metric(f"sigma_{entry['sigma']:g}.{name}", entry[name])
    run.metric("queries", len(rows))
    return rows, report


def write(
    denoiser: Denoiser | None,
    writer: Denoiser | None,
    sources: list[Source],
    sigma: float,
    seed: int,
    params: GenerateParams,
) -> Variants:
    """One text for each source, in their order: training queries come before documents."""
    own = [source.text for source in sources if source.query_id or writer is None]
    found = write_variants(denoiser, own, sigma, seed, params) if denoiser and own else Variants([], 0.0, 0.0)
    if writer is None:
        return found
    more = write_queries(writer, [source.text for source in sources[len(own) :]], seed, params)
    return Variants(found.texts + more, found.masked_share, found.state_deviation)


def measure(
    sources: list[str], variants: Variants, variant: int, filtered: Filtered, params: GenerateParams
) -> dict[str, Any]:
    """What one sigma gave: counts, share not copied, similarity of the kept texts to their sources."""
    offset = variant * len(sources)
    positions = range(offset, offset + len(sources))
    kept = [position - offset for position in filtered.kept if position in positions]
    copied = sum(fold(text) == fold(source) for text, source in zip(variants.texts, sources, strict=True))
    overlap = [content_overlap(sources[index], variants.texts[index]) for index in kept]
    sample = sorted(random.Random(params.seed).sample(kept, min(params.judge_sample, len(kept))))
    own, other = np.zeros(1), np.zeros(1)
    if sample:
        judge = load_tower(resolve_base(params.judge))
        generated = [variants.texts[index] for index in sample]
        own, other = source_cosines(judge, [sources[index] for index in sample], generated)
    return {
        "sigma": params.sigmas[variant],
        "written": len(sources),
        "kept": len(kept),
        "dropped": filtered.count(positions),
        "masked_share": variants.masked_share,
        "encoder_state_deviation": variants.state_deviation,
        "share_not_copied": 1 - copied / len(sources),
        "content_word_overlap": float(np.mean(overlap)) if overlap else 0.0,
        "cosine_to_source": float(own.mean()),
        "cosine_to_another_source": float(other.mean()),
        "judge": params.judge,
        "judged": len(sample),
        "examples": [{"source": sources[index], "generated": variants.texts[index]} for index in sample[:EXAMPLES]],
    }


def _write(output: Path, rows: list[dict[str, Any]], report: dict[str, Any], run: Run) -> None:
    with staged_folder(output) as staging:
        write_table(staging, "generated_queries", table_from_rows("generated_queries", rows))
        write_json(staging / "report.json", report)
    run.artifact(output / "report.json")
    for entry in report["sigmas"]:
        print(
            f"generate: sigma {entry['sigma']:g}: {entry['kept']} of {entry['written']} kept,"
            f" {entry['share_not_copied']:.1%} not copied, content-word overlap {entry['content_word_overlap']:.2f},"
            f" cosine to source {entry['cosine_to_source']:.2f} (to another {entry['cosine_to_another_source']:.2f})",
            file=sys.stderr,
        )
