"""A small world for generation: forty queries, and a tiny random BART."""

from pathlib import Path
from typing import Any

from rows import row, write_rows

from steps.core.tables import table_from_rows, write_table
from steps.generate.denoiser import Denoiser, new_small_bart, train_tokenizer
from steps.generate.params import GenerateParams, SmallBartParams

VERBS = ("sum", "sort", "merge", "plot", "filter", "scale", "draw", "count")
THINGS = ("rows", "columns", "vectors", "images", "tables", "words", "lines", "cells", "bytes", "trees")
TEXTS = [
    f"{verb} all the {thing} of a file at once"
    for row, verb in enumerate(VERBS)
    for column, thing in enumerate(THINGS)
    if (row + column) % 2  # the other half is there to be found
]

PARAMS = GenerateParams(
    model="",
    batch_size=16,
    max_queries=1000,
    least_sources=0,
    judge="set by the test",
    seed=3,
    small=SmallBartParams(epochs=15.0),
)


def queries() -> list[dict[str, Any]]:
    """Forty train queries, a dev and a test query."""
    held_out = [("d/dev", "sum all the images of a disk", "dev"), ("d/test", "merge all the rows of a disk", "test")]
    train = [(f"d/q{number:02}", text, "train") for number, text in enumerate(TEXTS)]
    return [row("queries", query_id, "d", text, split) for query_id, text, split in train + held_out]


def write_world(folder: Path, asked: list[dict[str, Any]] | None = None) -> Path:
    """Write the tables of ingest that the stage reads; returns the folder."""
    ingest = folder / "ingest"
    content = "To {} is to work on a file. Sum all the images of a disk."
    write_rows(ingest, "corpus", [(f"d/{verb}", "d", verb, "", content.format(verb)) for verb in VERBS])
    write_table(ingest, "queries", table_from_rows("queries", queries() if asked is None else asked))
    return ingest


def random_bart() -> Denoiser:
    """An untrained BART of width 64 with a tokenizer of its own."""
    tokenizer = train_tokenizer(TEXTS, 400)
    return Denoiser(new_small_bart(len(tokenizer), 256, 0, width=64, heads=2).eval(), tokenizer)


def save_denoiser(denoiser: Denoiser, folder: Path) -> None:
    """Write a folder that `generate.model` accepts."""
    denoiser.model.save_pretrained(str(folder))
    denoiser.tokenizer.save_pretrained(str(folder))


def write_bart(folder: Path) -> Path:
    """The untrained BART as a folder that `generate.model` takes."""
    save_denoiser(random_bart(), folder)
    return folder
