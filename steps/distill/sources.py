"""What students are distilled from: alignment texts, the teacher's vectors, and known positives."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.tables import read_table
from steps.distill.targets import PairTable, ScoreTable


@dataclass(frozen=True)
class Sources:
    """Folders of the stages, and what is read from them when it is needed."""

    ingest: Path
    mine: Path
    embed: Path
    score: Path

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

    @cached_property
    def lengths(self) -> np.ndarray:
        """Lengths of the teacher's vectors of the texts before its normalisation, `(texts,)`."""
        return np.load(self.embed / "lengths.npy", mmap_mode="r")

    def nearest(self, count: int) -> np.ndarray:
        """Rows of the `count` documents nearest to each text, `(texts, count)`, best first; all where there are fewer.

        UserError for more than `embed` looked for.
        """
        found = np.load(self.embed / "nearest.npy", mmap_mode="r")
        if count > found.shape[1] and found.shape[1] < len(self.documents):
            raise UserError(
                f"distill.student: teacher_top_k is {count}, but {self.embed / 'nearest.npy'} holds {found.shape[1]}"
                f" documents of each text; set embed.neighbours to {count} or more"
            )
        return found[:, :count]

    def scores(self, teacher: str, count: int) -> ScoreTable:
        """A teacher's scores of the `count` documents nearest to each text that it scored.

        UserError where it scored other documents, or fewer.
        """
        folder = self.score / teacher
        table = read_table(folder, "scores")
        documents: np.ndarray = np.full(self.nearest(count).shape, -1, dtype=np.int32)
        scored, starts = np.unique(table["text_row"].to_numpy(), return_index=True)
        each = table.num_rows // max(1, len(scored))  # of a text; a scorer may have read more than are asked for
        if not np.array_equal(starts, each * np.arange(len(scored))) or len(scored) * each != table.num_rows:
            raise UserError(f"{folder}: scores more documents of some texts than of others; run `dvc repro score`")
        if each < documents.shape[1] and len(scored):
            raise UserError(
                f"distill.student: teacher_top_k is {count}, but {folder} has scores of {each} documents of a text; set"
                f" score.depth to 0, or to {count} or more"
            )
        rows = table["doc_row"].to_numpy().reshape(len(scored), -1)[:, :count]
        if not len(scored) or scored[-1] >= len(documents) or not np.array_equal(rows, self.nearest(count)[scored]):
            raise UserError(f"{folder}: scores other documents than those nearest to each text; run `dvc repro score`")
        scores = np.zeros(documents.shape, dtype=np.float32)
        documents[scored], scores[scored] = rows, table["score"].to_numpy().reshape(len(scored), -1)[:, :count]
        return ScoreTable(documents, scores)

    def pairs(self, teacher: str, embeds: str) -> PairTable:
        """A teacher's embeddings of texts with the documents nearest to them; UserError where it embeds another thing.

        `embeds` is what is wanted, pooled or joint: see `Scorer` of the stage `score`.
        """
        path = self.score / teacher / "pairs.npy"
        found = read_json(path.with_name("report.json")).get("pairs") or {}
        if found.get("embeds") != embeds:
            pooling = "special_tokens or segments" if embeds == "pooled" else "cls"
            raise UserError(
                f"{path}: holds {found.get('embeds', 'no')} embeddings of pairs, but a student learns {embeds} ones;"
                f" let it learn from a cross encoder whose pooling is {pooling}, and set score.pairs to 1 or more"
            )
        values = np.load(path, mmap_mode="r")
        documents = np.asarray(self.nearest(values.shape[1]))
        scored = np.unique(read_table(path.parent, "scores")["text_row"].to_numpy())
        if len(scored) != len(values) or values.shape[1] != documents.shape[1] or scored[-1] >= len(documents):
            raise UserError(f"{path}: is not of the texts that have scores; run `dvc repro score`")
        place = np.full(len(documents), -1, dtype=np.int64)
        place[scored] = np.arange(len(scored))
        return PairTable(documents, values, place)

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
