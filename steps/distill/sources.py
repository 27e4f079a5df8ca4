"""What students are distilled from: alignment texts, the teacher's vectors, and known positives."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.errors import UserError
from steps.core.tables import read_table


@dataclass(frozen=True)
class Sources:
    """Folders of the stages, and what is read from them when it is needed."""

    ingest: Path
    mine: Path
    embed: Path

    @cached_property
    def texts(self) -> pa.Table:
        """The table `alignment_texts`."""
        return read_table(self.embed, "alignment_texts")

    @cached_property
    def vectors(self) -> np.ndarray:
        """The teacher's vectors of the texts, `(texts, dim)`, memory-mapped."""
        return np.load(self.embed / "alignment.npy", mmap_mode="r")

    @cached_property
    def documents(self) -> np.ndarray:
        """The teacher's vectors of the documents, `(documents, dim)`, memory-mapped."""
        return np.load(self.embed / "documents.npy", mmap_mode="r")

    def nearest(self, count: int) -> np.ndarray:
        """Rows of the `count` documents nearest to each text, best first: `(texts, count)`; all where there are fewer.

        UserError when `embed` kept fewer.
        """
        stored = np.load(self.embed / "nearest.npy", mmap_mode="r")
        if stored.shape[1] < min(count, len(self.documents)):
            raise UserError(
                f"distill.student: neighbours is {count}, but embed.neighbours kept {stored.shape[1]} documents of each"
                " text; raise embed.neighbours, or ask for fewer"
            )
        return stored[:, :count]

    def document_ids(self) -> list[str]:
        """Ids of the documents, in the order of their vectors."""
        return [doc_id for (doc_id,) in corpus_columns(self.ingest, ["doc_id"])]

    def document_texts(self) -> list[str]:
        """What a document tower reads."""
        return list(CorpusTexts(self.ingest))

    def training_queries(self) -> dict[str, str]:
        """Text of every training query, by its id."""
        rows = read_table(self.ingest, "queries").to_pylist()
        return {row["query_id"]: row["text"] for row in rows if row["split"] == "train"}

    def positives(self) -> Iterator[tuple[str, str]]:
        """(query_id, doc_id) of mined positives and of what was judged relevant to training queries."""
        triplets = read_table(self.mine, "triplets")
        yield from zip(triplets["query_id"].to_pylist(), triplets["positive_id"].to_pylist(), strict=True)
        for row in read_table(self.ingest, "qrels").to_pylist():
            if row["split"] == "train" and row["grade"] > 0:
                yield row["query_id"], row["doc_id"]
