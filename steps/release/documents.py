"""The documents' side of a release: the index, their titles, and BM25 where hits fused with its own are better."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from slimtower.lexical.bm25 import TOKENIZER, Bm25
from slimtower.lexical.fusion import AnyFusion
from slimtower.serving.checks import TITLES
from slimtower.serving.manifest import LexicalIndex
from slimtower.serving.release import Release
from steps.core.corpus import corpus_batches
from steps.core.judged import JudgedSet
from steps.release.quality import rows_of
from steps.retrieval.lexical import DEEPEST, STANDARD, FusionChoice, Hits, choose_on_dev, corpus_bm25

Mode = Literal["auto", "always", "never"]


def copy_index(index: Path, target: Path) -> None:
    """Copy `index`, by hard links where the file system has them: every student's release shares one index."""
    shutil.copytree(index, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(os.path.realpath(source), target)  # DVC may have left a symbolic link
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return target


def write_titles(ingest: Path, index: Path, datasets: list[str]) -> None:
    """Write `<data set>/titles.parquet`: doc_id and title, in the order of the index's rows, one data set in memory.

    UserError when the index holds a document that the corpus lacks.
    """
    for dataset in datasets:
        corpus = pa.Table.from_batches(
            [
                batch.filter(pc.equal(batch["dataset"], dataset)).select(["doc_id", "title"])
                for batch in corpus_batches(ingest, ["doc_id", "dataset", "title"])
            ]
        )
        ids = pq.read_table(index / dataset / "doc_ids.parquet", columns=["doc_id"])["doc_id"]
        rows = pc.index_in(ids, value_set=corpus["doc_id"])
        if rows.null_count:
            missing = ids.filter(pc.is_null(rows))[0].as_py()
            raise UserError(f"{index / dataset}: document {missing!r} is not in {ingest}; run `dvc repro index`")
        table = pa.table({"doc_id": ids, "title": corpus["title"].take(rows)})
        pq.write_table(table, index / dataset / TITLES, compression="zstd")


@dataclass(frozen=True)
class Verdict:
    """What becomes of one data set: its fusion, whether the release carries it, and what dev queries say of it."""

    fusion: AnyFusion
    carried: bool
    choice: FusionChoice | None
    """None: no dev query is judged."""

    def as_dict(self) -> dict[str, Any]:
        """What the report keeps of it."""
        dev = self.choice.figures() if self.choice else None
        return {"carried": self.carried, "fusion": self.fusion.model_dump(), "dev": dev}

    def as_text(self, dataset: str) -> str:
        """One line for a reader."""
        fate = "carries BM25" if self.carried else "carries no BM25"
        if self.choice is None:
            return f"{dataset}: {fate}: no dev query tells whether fused hits are better; {self.fusion}"
        choice = self.choice
        outcome = "better beyond chance" if choice.wins else "not shown to be better"
        return (
            f"{dataset}: {fate}: fused hits are {outcome} on {choice.queries} dev queries, nDCG@10 {choice.dense:.4f}"
            f" to {choice.fused:.4f} (p = {choice.p_value:.2g}); {self.fusion}"
        )


def carry_lexical(
    release: Release, ingest: Path, queries: Sequence[JudgedSet], vectors: np.ndarray, mode: Mode
) -> dict[str, Verdict]:
    """Write `lexical/<data set>/` into the release's folder for each data set that gets one, and say why.

    `vectors` `(texts, dim)` begins with the queries' embeddings as served, one data set after the other. `auto`: where
    fused hits are better on dev beyond chance; `always`: everywhere, by the standard fusion where no dev query is
    judged; `never`: nothing is tried.
    """
    verdicts = {}
    embedded = {judged.dataset: (judged, vectors[rows]) for judged, rows in zip(queries, rows_of(queries), strict=True)}
    for dataset in release.datasets if mode != "never" else ():
        if dataset not in embedded and mode == "auto":
            continue
        engine = corpus_bm25(ingest, dataset)
        choice = _choice(release, engine, *embedded[dataset]) if dataset in embedded else None
        carried = mode == "always" or bool(choice and choice.wins)
        verdicts[dataset] = Verdict(choice.fusion if choice else STANDARD, carried, choice)
        if carried:
            engine.save(release.folder / "lexical" / dataset)
    return verdicts


def lexical_index(verdicts: Mapping[str, Verdict], files: dict[str, str]) -> LexicalIndex | None:
    """What the manifest says of it, with the digests of what lies in lexical/; None if nothing is carried."""
    fusions = {dataset: verdict.fusion for dataset, verdict in verdicts.items() if verdict.carried}
    return LexicalIndex(bm25s=version("bm25s"), tokenizer=TOKENIZER, files=files, fusions=fusions) if fusions else None


def _choice(release: Release, engine: Bm25, judged: JudgedSet, vectors: np.ndarray) -> FusionChoice:
    def search(rows: slice) -> tuple[Hits, Hits]:
        scores, ids = release.search(judged.dataset, vectors[rows], DEEPEST, "ann")
        dense = [row[: len(doc_ids)] for row, doc_ids in zip(scores, ids, strict=True)], ids
        return dense, engine.search(judged.texts[rows], DEEPEST)

    return choose_on_dev(judged, search)
