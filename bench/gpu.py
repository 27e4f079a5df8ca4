"""python -m bench.gpu [--run runs/llm_teacher] [--sizes 0.5B,1.5B]: what the kinds of teachers cost on a GPU.

Takes a run in which `mine` is done (`make run RECIPE=recipes/llm_teacher.yaml DATA=<folder> STAGES=mine@relevance`).
Towers of causal language models, of Qwen2.5's shapes and random weights, are trained by the stage `teach` as
recipes/llm_teacher.yaml has it, with LoRA and, the smallest, whole; beside them a dual encoder, a ColBERT and a cross
encoder made of all-MiniLM-L6-v2. Then each reads the corpus, or scores pairs. Speed depends on shapes, not on what the
weights say; no quality is told. Writes bench/results/gpu.json, with the name of the GPU.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from bench.machine import recording, write_record
from bench.teachers.cells import LastMetrics
from pipeline.recipe import fill
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.settings import parse_mapping, read_text, validated
from steps.core.corpus import CorpusTexts
from steps.core.judged import read_judged_sets
from steps.encoders.towers import encode, load_tower
from steps.scorers import open_reranker
from steps.teach import run as stage
from steps.teach.kinds.base import Teacher
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder

RESULT = Path("bench/results/gpu.json")
RECIPE = Path("recipes/llm_teacher.yaml")
BASE = "all-MiniLM-L6-v2"
VOCABULARY = 151_936  # rows of Qwen2.5's token table; the corpus' own words need fewer
WORDS = 8000
QUERIES, CANDIDATES = 64, 100  # pairs that a re-ranker scores
END = "<|endoftext|>"


@dataclass(frozen=True)
class Shape:
    """Of a Qwen2 network."""

    layers: int
    width: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int = VOCABULARY


SHAPES = {  # as their configurations on the hub say
    "tiny": Shape(2, 64, 128, 2, 1, WORDS),
    "0.5B": Shape(24, 896, 4864, 14, 2),
    "1.5B": Shape(28, 1536, 8960, 12, 2),
    "3B": Shape(36, 2048, 11008, 16, 2),
}


def write_language_model(folder: Path, shape: Shape, texts: list[str]) -> None:
    """A causal language model of a shape with random weights in bf16, its tokenizer a BPE of the texts' words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS - 8, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END).save_pretrained(str(folder))
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.key_value_heads, intermediate_size=shape.inner,
        max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=0, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        network: Any = Qwen2ForCausalLM(config)
    network.to(torch.bfloat16).save_pretrained(str(folder))


def teachers(base: Path, sizes: list[str], steps: int) -> dict[str, Teacher]:
    """What is trained, by name, so that each takes about as many steps; `base` has a language model of each size."""
    recipe = parse_mapping(fill(read_text(RECIPE), {"DATA": "."}, RECIPE), str(RECIPE))
    described = recipe["teach"]["teacher"]["llm"]
    shared = {"dev_queries": 0, "checkpoint_steps": 10_000}
    small = {"base": BASE, "batch_size": 128, "max_document_length": 128, "max_triplets": 128 * steps, **shared}
    lists = 64 * steps  # a cross encoder's step reads as many pairs as 64 lists have
    by_name: dict[str, Teacher] = {}
    for number, size in enumerate(sizes):
        for way in ["lora", "whole"] if number == 0 else ["lora"]:
            change: dict[str, Any] = {
                "base": str(base / size),
                "max_triplets": described["batch_size"] * steps,
                **shared,
            }
            change |= {} if way == "lora" else {"lora": None, "learning_rate": 1e-5}
            by_name[f"llm_dual_encoder.{size}.{way}"] = validated(LlmDualEncoder, described | change, str(RECIPE))
    by_name["dual_encoder"] = validated(DualEncoder, {"kind": "dual_encoder", **small}, __file__)
    by_name["late_interaction"] = validated(LateInteraction, {"kind": "late_interaction", **small}, __file__)
    cross = {"kind": "cross_encoder", "loss": "softmax", "max_length": 128}
    cross |= small | {"batch_size": 256, "max_triplets": lists}
    del cross["max_document_length"]
    by_name["cross_encoder"] = validated(CrossEncoder, cross, __file__)
    return by_name


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes, the GPU's included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def peak_gib() -> float | None:
    """GPU memory that was in use at most since the last call, GiB; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated() / 2**30
    gc.collect()  # a trainer and its model hold each other
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 2)


def measure(name: str, teacher: Any, root: Path, documents: int) -> dict[str, Any]:
    ingest, mine = root / "data/ingest", root / "data/mine/relevance"
    run = LastMetrics()
    peak_gib()
    with TemporaryDirectory(prefix="bench-gpu.") as scratch:
        output = Path(scratch) / "teacher"
        stage_seconds = timed(lambda: stage.run(ingest=ingest, mine=mine, output=output, params=teacher, run=run,
                                        rankers=root / "data/rank"))  # fmt: skip
        report = read_json(output / "report.json")
        if report.get("note"):
            raise UserError(f"{root}: {name} was not trained ({report['note']}); give it data with triplets")
        lists = report["triplets"] if "triplets" in report else report["lists"]  # of three pairs or four
        trained = {
            "triplets": lists,
            "batch_size": teacher.batch_size,
            "training_seconds": round(run.values["training_seconds"], 2),
            "triplets_per_second": round(lists / run.values["training_seconds"], 1),
            "stage_seconds": round(stage_seconds, 1),
            "training_peak_gib": peak_gib(),
        }
        reads = reading(teacher, output, Path(scratch), ingest, documents)
    return {"kind": teacher.kind, **trained, **reads, "reading_peak_gib": peak_gib()}


def reading(teacher: Any, output: Path, scratch: Path, ingest: Path, documents: int) -> dict[str, Any]:
    """How fast it embeds documents, or scores pairs; after a few that do not count."""
    rows = np.arange(documents)
    if "vectors" in teacher.gives:
        texts = list(CorpusTexts(ingest, rows))
        tower = load_tower(output / "tower")
        encode(tower, texts[:64], "document", precision="auto")
        seconds = timed(lambda: encode(tower, texts, "document", precision="auto", batch_size=128))
        weights = sum(weight.numel() for weight in load_tower(output / "tower", "document").parameters())
        return {"documents": len(texts), "documents_per_second": round(len(texts) / seconds), "parameters": weights}
    query_texts = read_judged_sets(ingest, ["dev", "test"])[0].texts[:QUERIES]
    candidates = [
        np.sort(np.random.default_rng(at).choice(documents, CANDIDATES, replace=False))
        for at in range(len(query_texts))
    ]
    reranker = open_reranker(output, scratch / "vectors", "auto", 256)

    def score(queries: list[str], candidate_rows: list[np.ndarray]) -> None:
        reranker.scores(queries, candidate_rows, lambda rows: list(CorpusTexts(ingest, rows)))

    score(query_texts[:1], [candidates[0][:1]])
    seconds = timed(lambda: score(query_texts, candidates))
    pairs = sum(map(len, candidates))
    return {"pairs": pairs, "pairs_per_second": round(pairs / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/llm_teacher"), help="in which mine is done")
    parser.add_argument("--sizes", default="0.5B,1.5B", help=f"of language models, of {', '.join(SHAPES)}")
    parser.add_argument("--steps", type=int, default=16, help="of each training, about")
    parser.add_argument("--documents", type=int, default=5000, help="that each reads")
    words = parser.parse_args()
    sizes = words.sizes.split(",")
    if unknown := [size for size in sizes if size not in SHAPES]:
        raise UserError(f"--sizes: no {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    if not (words.run / "data/mine/relevance/triplets.parquet").is_file():
        raise UserError(f"{words.run}: no triplets; `make run RECIPE={RECIPE} DATA=<folder> STAGES=mine@relevance`")
    rows: dict[str, Any] = {}
    with TemporaryDirectory(prefix="bench-gpu.") as folder:
        os.environ["SLIMTOWER_CACHE"] = folder  # no training goes on from an earlier one
        texts = list(CorpusTexts(words.run / "data/ingest"))
        documents = min(words.documents, len(texts))
        for size in sizes:
            write_language_model(Path(folder) / size, SHAPES[size], texts)
        for name, teacher in teachers(Path(folder), sizes, words.steps).items():
            rows[name] = measure(name, teacher, words.run, documents)
            print(f"gpu: {name}: {rows[name]}", flush=True)
    write_record(RESULT, {"transformers": transformers.__version__, "rows": rows})


if __name__ == "__main__":
    recording(main)
