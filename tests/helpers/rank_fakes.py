"""The small world of the teacher for the ranker: candidates by two searchers, and a tiny random encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import row
from teach_fakes import ASKED_AS, documents, queries, table, triplets, write_tower, write_world

from slimtower.common.files import write_json
from steps.core.tables import write_table
from steps.encoders.towers import load_tower
from steps.rank.params import CrossEncoderParams
from steps.rank.run import run as rank
from steps.retrieval.rankers import load_ranker
from steps.tracking.runs import NullRun, Run

PARAMS = CrossEncoderParams(
    kind="cross_encoder",
    base="set by the test",
    max_triplets=200,
    batch_size=16,
    learning_rate=1e-3,
    max_length=32,
    checkpoint_steps=2,
    max_queries=1000,
    dev_queries=100,
    precision="fp32",
    seed=3,
)
KNOWN = {query_word: word for word, query_word in ASKED_AS.items()}


def candidates(searcher: str) -> list[dict[str, Any]]:
    """Ten documents of each query, its own at the fifth rank of `bm25` and the third of any other."""
    random = np.random.default_rng(len(searcher))
    ids, rank_of_own = [document["doc_id"] for document in documents()], 4 if searcher == "bm25" else 2
    candidate_rows = []
    for query in queries():
        own_id = "d/" + "-".join(KNOWN[word] for word in query["text"].split()[2:])
        hits = [doc_id for doc_id in random.permutation(ids).tolist() if doc_id != own_id][:9]
        hits.insert(rank_of_own, own_id)
        candidate_rows += [
            row("candidates", query["query_id"], doc_id, at + 1, 10.0 - at) for at, doc_id in enumerate(hits)
        ]
    return candidate_rows


def liked() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Triplets and judgements: of every query the documents about rows are relevant, all others are not."""
    ids = [document["doc_id"] for document in documents()]
    good = [doc_id for doc_id in ids if doc_id.endswith("-rows")]
    bad = [doc_id for doc_id in ids if doc_id not in good]
    mined = [
        triplet | {"positive_id": good[number % len(good)], "negative_id": bad[number % len(bad)]}
        for number, triplet in enumerate(triplets())
    ]
    judged = [
        row("qrels", query["query_id"], "d", doc_id, int(doc_id in good), "dev")
        for query in queries()
        if query["split"] == "dev"
        for doc_id in ids
    ]
    return mined, judged


def write_rank_world(folder: Path, mined: list[dict[str, Any]] | None = None, **changed: Any) -> None:
    """Write what `rank` reads: tables of ingest and mine (those of `changed` anew), and candidates of two searchers."""
    ingest, _ = write_world(folder, mined=mined)
    for name, rows in changed.items():
        write_table(ingest, name, table(name, rows))
    for searcher in ("bm25", "dense"):
        write_table(folder / "candidates" / searcher, "candidates", table("candidates", candidates(searcher)))


def write_encoder(folder: Path) -> Path:
    """A two-layer BERT of width 16 whose random weights are large enough to tell texts apart; returns its folder."""
    tower = load_tower(write_tower(folder))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in tower.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator).to(weight))
    tower.save_pretrained(str(folder / "encoder"), create_model_card=False)
    return folder / "encoder"


def run_rank(folder: Path, base: Path, run: Run | None = None, name: str = "cross", **changes: Any) -> Path:
    """Run the stage on the world in a folder; returns the folder of its scores, beside which `<name>-teach` lies."""
    params = CrossEncoderParams.model_validate(PARAMS.model_dump() | {"base": str(base)} | changes)
    inputs = {part: folder / part for part in ("ingest", "candidates", "mine")}
    rank(**inputs, params=params, output=folder / name, teach=folder / f"{name}-teach", run=run or NullRun())
    return folder / name


def write_cross_teacher(folder: Path, encoder: Path) -> Path:
    """A ranker as the stage `rank` leaves it, of an encoder that is written too; returns its folder."""
    ranker = load_ranker(write_encoder(encoder), 24, seed=5)
    with torch.no_grad():
        ranker.model.classifier.weight.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    ranker.save_pretrained(str(folder / "tower"), create_model_card=False)
    write_json(folder / "report.json", {"kind": "cross_encoder"})
    return folder
