"""About how long the stages after `ingest` take here: work by what the tables hold, speed by a short trial.

Seconds = a fixed share a stage, and floating-point operations over those that this machine does in a second. The
constants are rough: they come from few runs of the demo, and say nothing of how far off they may be elsewhere.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.params import Params
from steps.core.corpus import corpus_batches
from steps.core.tables import read_table, table_path
from steps.distill.params import Adapter, Base, Fresh, Layers, Phase, Static, StudentParams
from steps.generate.params import GenerateParams
from steps.rank.params import CrossEncoderParams
from steps.teach.kinds.contrastive import Contrastive
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.kinds.on_triplets import OnTriplets

TOKENS_A_WORD = 1.4
LONGEST = 256  # tokens of a document that a teacher reads, where its kind does not say
VOCABULARY = 30_000  # tokens that `embed` reads alone, where the teacher does not say
SHORT = 19  # tokens of an alignment text
BACKWARD = 3  # a training step against reading the same texts
FIXED = {"candidates": 6.0, "mine": 4.0, "rank": 20.0, "teach": 20.0, "generate": 15.0, "embed": 15.0, "score": 15.0,
         "distill": 18.0, "index": 20.0, "release": 16.0, "evaluate": 35.0}  # fmt: skip
STATIC = 3e9  # operations a text of a token table's batch, in time rather than in truth
DENOISER = 1e9  # the same for each text that the small BART trains on or writes


@dataclass(frozen=True)
class Data:
    """Documents, tokens of one as the teacher reads it, training queries, and alignment texts."""

    documents: int
    document_tokens: float
    train_queries: int
    texts: int


def measure(ingest: Path, params: Params) -> Data:
    """What the tables of `ingest` hold, counted roughly."""
    teacher = params.teach.described(params.teach.index)
    limit = teacher.max_document_length if isinstance(teacher, OnTriplets) else LONGEST
    documents, tokens, words = 0, 0.0, 0
    for batch in corpus_batches(ingest, ["content"]):
        counts = pc.add(pc.count_substring(batch["content"], " "), 1)
        documents += batch.num_rows
        words += pc.sum(counts).as_py() or 0
        tokens += sum(min(limit, TOKENS_A_WORD * count + 6) for count in counts.to_pylist())
    train = pc.sum(pc.equal(read_table(ingest, "queries")["split"], "train")).as_py() or 0
    unlabelled = pq.read_metadata(table_path(ingest, "unlabelled_queries")).num_rows
    part_limit = params.embed.max_part_texts or 10**9
    sources = _sources(train, documents, params.generate)
    parts = {"train_queries": train, "generated_queries": 2 * sources,
             "titles": documents, "sentences": words // 15, "unlabelled_queries": unlabelled,
             "spans": documents * params.embed.spans_per_document}  # fmt: skip
    texts = sum(min(part_limit, parts.get(part, 0)) for part in params.embed.parts)
    texts += min(words, max(0, params.embed.least_texts - texts))  # about a span a word is what documents can give
    return Data(documents, tokens / max(1, documents), train, texts)


def forecast(
    data: Data, params: Params, layer: float, layers: int, speed: float, vocabulary: int = VOCABULARY
) -> dict[str, float]:
    """Seconds of each stage; `layer`: operations of one of a teacher's `layers` a token, `speed`: operations/s.

    `vocabulary`: tokens that it knows, each of which `embed` reads. All teachers are taken to be as large as that of
    the index.
    """
    tower = layer * layers
    embedded = data.documents
    if params.ingest.document_vectors:  # of which a sample is compared
        embedded = min(embedded, params.embed.check.documents * len(params.ingest.sources))
    work: dict[str, float] = {
        "candidates": tower * data.documents * data.document_tokens * ("dense" in params.candidates.searchers),
        "mine@click": 0,
        "mine@judged": 0,
        "mine@relevance": 0,
        "generate": 0 if params.generate.model else DENOISER * _denoised(data, params.generate),
        "embed": tower * (embedded * data.document_tokens + SHORT * data.texts + 3 * vocabulary)
        + _compared(data, params, layer),
        "index": 0,
        "evaluate": tower * SHORT * 4_000,
    }
    for name in params.rank.rankers:
        ranker = params.rank.described(name)
        trained = _pairs(ranker, data)
        count = min(ranker.max_queries or data.train_queries, data.train_queries) + ranker.dev_queries
        scored = count * min(ranker.depth, params.candidates.depth)
        pairs = BACKWARD * trained + scored * len(params.candidates.searchers)
        work[f"rank@{name}"] = tower * ranker.max_length * pairs
    for name in params.teach.teachers:
        teacher = params.teach.described(name)
        if isinstance(teacher, CrossEncoder):
            pairs = BACKWARD * _pairs(teacher, data) + teacher.dev_queries * teacher.dev_documents
            work[f"teach@{name}"] = tower * teacher.max_length * pairs
        if not isinstance(teacher, OnTriplets):
            continue  # of other kinds nothing is known here
        rounds = teacher.rounds.more if isinstance(teacher, Contrastive) else 0
        sampled = min(teacher.max_triplets or 4 * data.train_queries, 4 * data.train_queries)
        triplets = sampled * teacher.epochs * (1 + rounds)
        compared = teacher.dev_queries + teacher.dev_documents if triplets else 0
        searched = data.documents * rounds
        amount = triplets * 2.2 * BACKWARD + 2 * compared + searched
        work[f"teach@{name}"] = tower * data.document_tokens * amount
        if triplets and name == params.teach.index and params.evaluate.earlier_towers:
            work["evaluate"] += tower * data.documents * data.document_tokens * (1 + rounds)
    for name in params.score.teachers:
        count = min(params.score.texts_of(name) or data.texts, data.texts)
        scorer = params.teach.teacher.get(name) or params.rank.ranker[name]
        nearest = min(params.score.depth or params.embed.neighbours, params.embed.neighbours)
        amount = min(data.documents, count * nearest) * data.document_tokens + SHORT * count
        layered = nearest if params.score.layers else 0  # documents that are read again for their layers
        if isinstance(scorer, CrossEncoder | CrossEncoderParams):  # reads each text with each of its documents
            pairs = count * (nearest + layered + min(params.score.pairs, nearest))
            amount = pairs * min(scorer.max_length, data.document_tokens + SHORT)
        elif isinstance(scorer, LateInteraction):
            amount += count * layered * data.document_tokens
        work[f"score@{name}"] = tower * amount
    for name in params.distill.students:
        student = params.distill.student[name]
        text_work, time_limit = _text(student, layer, layers), 60 * params.distill.convergence.max_minutes * speed
        phases = [(phase.epochs, _texts(phase, student, data, params) * text_work) for phase in student.phases]
        work[f"distill@{name}"] = sum(
            min(needed, time_limit) if epochs == "auto" else needed for epochs, needed in phases
        )
        work[f"release@{name}"] = 0
    return {stage: FIXED[stage.partition("@")[0]] + operations / speed for stage, operations in work.items()}


def _pairs(ranker: CrossEncoder | CrossEncoderParams, data: Data) -> float:
    """Pairs that a cross encoder is trained on."""
    lists = min(ranker.max_triplets or 4 * data.train_queries, 4 * data.train_queries)
    return ranker.epochs * lists * (1 + ranker.negatives + ranker.random_negatives)


def _sources(train_queries: int, documents: int, params: GenerateParams) -> int:
    """Texts from which `generate` writes."""
    queries = min(train_queries, params.max_queries)
    return queries + min(documents, max(0, params.least_sources - queries)) if params.max_queries else 0


def _compared(data: Data, params: Params, layer: float) -> float:
    """Operations of comparing each text with the documents, whose vectors are as wide as the teacher."""
    width = math.sqrt(layer / 24)  # of a layer whose inner size is four times that
    return 2 * width * data.texts * min(data.documents, params.embed.neighbour_documents or data.documents)


def _denoised(data: Data, params: GenerateParams) -> float:
    """Texts that the small BART trains on, as often as it does, and those that it writes."""
    small, sources = params.small, _sources(data.train_queries, data.documents, params)
    trained = data.train_queries or sources
    trained = min(trained, small.max_queries or trained) + small.corpus_texts
    return small.epochs * trained + len(params.sigmas) * sources if sources else 0


def _texts(phase: Phase, student: StudentParams, data: Data, params: Params) -> float:
    """Texts that a training phase reads; a guess for a phase that ends when it has converged."""
    if phase.epochs == "auto":
        limits = params.distill.convergence
        epoch = data.texts if phase is student.phases[0] else 0
        steps = max(limits.min_steps, min(epoch / student.batch_size, limits.max_steps))
        return 1.25 * steps * student.batch_size
    return data.texts * phase.epochs


def _text(student: StudentParams, layer: float, layers: int) -> float:
    """Operations of training a student on one text."""
    match student.start:
        case Static():
            return STATIC / student.batch_size
        case Layers(layers=chosen):
            depth = len(chosen)
        case Fresh(fresh=described):
            depth = described.layers
        case Base():
            depth = layers
        case Adapter():
            return SHORT * layer * layers  # no step goes back through it
        case _:
            assert_never(student.start)
    return BACKWARD * SHORT * layer * depth


def layer_operations(base: Path) -> tuple[float, int] | None:
    """Operations of one layer a token, and the number of layers, by config.json; None if it does not say."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
        hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        return 2.0 * (4 * hidden**2 + 2 * hidden * inner), int(config["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def vocabulary_size(base: Path) -> int:
    """Tokens that a model knows by config.json; VOCABULARY where it does not say."""
    try:
        return int(json.loads((base / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return VOCABULARY


def speed(precision: str, seconds: float = 0.6) -> float:
    """Floating-point operations/s of products as large as a small tower's, with the activation behind them."""
    import torch

    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts, weight = (torch.randn(shape, device=device).to(kind) for shape in ((2048, 384), (384, 1536)))
    done, start = 0, 0.0
    with torch.inference_mode():
        for turn in range(10**6):
            if turn == 2:  # the first ones warm up
                done, start = 0, time.perf_counter()
            torch.nn.functional.gelu(texts @ weight)
            done += 1
            if turn > 3 and time.perf_counter() - start > seconds:
                break
    if device == "cuda":
        torch.cuda.synchronize()
    return done * 2.0 * texts.shape[0] * weight.numel() / (time.perf_counter() - start)


def in_words(seconds: float) -> str:
    """A time that was guessed, as a person says it."""
    return f"{round(seconds / 60)} minutes" if seconds >= 90 else "a minute" if seconds >= 45 else "less than a minute"
