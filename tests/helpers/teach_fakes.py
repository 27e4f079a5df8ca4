"""A small world for the teacher: forty documents, their queries, and a tiny random tower."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from rows import row
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from steps.core.tables import table_from_rows, write_table
from steps.teach.kinds.base import LossParams, RoundParams
from steps.teach.kinds.dual_encoder import DualEncoder

ASKED_AS = {"sum": "add", "sort": "order", "merge": "join", "plot": "show", "filter": "pick", "scale": "resize"}
ASKED_AS |= {"draw": "sketch", "count": "tally", "rows": "records", "columns": "fields", "vectors": "arrays"}
ASKED_AS |= {"images": "pictures", "tables": "frames"}
"""Words of the documents and those of the queries: only training can bring them together."""
VERBS, THINGS = list(ASKED_AS)[:8], list(ASKED_AS)[8:]

PARAMS = DualEncoder(
    kind="dual_encoder",
    base="set by the test",
    epochs=2.0,
    batch_size=8,
    learning_rate=1e-3,
    max_query_length=16,
    max_document_length=32,
    max_triplets=100,
    checkpoint_steps=2,
    dev_queries=10,
    dev_documents=20,
    precision="fp32",
    seed=3,
)

EVERY_TERM = LossParams(both_directions=True, dims=[4, 8], hard_negatives="both", margin=0.2, margin_weight=0.5)
# no score lies within 0.001 of the margin, so that every processor draws the same negatives
EVERYTHING = PARAMS.model_copy(
    update={
        "loss": EVERY_TERM,
        "rounds": RoundParams(more=1, skip=0, depth=500, margin=0.0632, ranker=""),
        "source_weights": {"click_one_hop": 2.0},
    }
)


def documents() -> list[dict[str, Any]]:
    """Forty documents, one a verb and thing."""
    pairs = [(verb, thing) for verb in VERBS for thing in THINGS]
    return [
        row("corpus", f"d/{verb}-{thing}", "d", f"{verb} {thing}", "", f"to {verb} all {thing} at once")
        for verb, thing in pairs
    ]


def queries() -> list[dict[str, Any]]:
    """A query a document; every eighth is a dev query."""
    texts = [" ".join(ASKED_AS[word] for word in document["title"].split()) for document in documents()]
    return [
        row("queries", f"d/q{number}", "d", f"how to {text}", "train" if number % 8 else "dev")
        for number, text in enumerate(texts)
    ]


def triplets() -> list[dict[str, Any]]:
    """A triplet a training query, its negative the next document."""
    ids = [document["doc_id"] for document in documents()]
    return [
        row("triplets", query["query_id"], ids[number], ids[(number + 1) % len(ids)], "click_one_hop", "", 1.0)
        for number, query in enumerate(queries())
        if query["split"] == "train"
    ]


def qrels() -> list[dict[str, Any]]:
    """Each query's own document."""
    return [
        row("qrels", query["query_id"], "d", document["doc_id"], 1, query["split"])
        for query, document in zip(queries(), documents(), strict=True)
    ]


def write_world(
    folder: Path, asked: list[dict[str, Any]] | None = None, mined: list[dict[str, Any]] | None = None
) -> tuple[Path, Path]:
    """Write the tables of ingest and mine; returns their folders."""
    ingest, mine = folder / "ingest", folder / "mine"
    for name, rows in (("corpus", documents()), ("queries", asked or queries()), ("qrels", qrels())):
        write_table(ingest, name, table_from_rows(name, rows))
    write_table(ingest, "impressions", table("impressions", []))
    write_table(mine, "triplets", table("triplets", triplets() if mined is None else mined))
    return ingest, mine


def write_clicks(ingest: Path) -> None:
    """Let each query have clicks on every document of its own verb."""
    rows = documents()
    impression = {"session_id": "s", "rank": 1, "clicked": True, "timestamp": 0}
    clicks = [
        impression | {"query_id": query["query_id"], "doc_id": negative["doc_id"]}
        for query, row in zip(queries(), rows, strict=True)
        for negative in rows
        if negative["title"].split()[0] == row["title"].split()[0]
    ]
    write_table(ingest, "impressions", table("impressions", clicks))


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the named table."""
    return table_from_rows(name, rows)


def write_tower(folder: Path) -> Path:
    """A two-layer BERT of width 16 with random weights, as a SentenceTransformer folder."""
    folder.mkdir(parents=True)
    words = sorted({*ASKED_AS, *ASKED_AS.values(), "how", "to", "all", "at", "once"})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(str(folder / "bert"))
    tokenizer.save_pretrained(str(folder / "bert"))
    tower = SentenceTransformer(modules=[Transformer(str(folder / "bert")), Pooling(16), Normalize()], device="cpu")
    tower.save_pretrained(str(folder / "tower"), create_model_card=False)
    return folder / "tower"
