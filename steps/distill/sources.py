"""What students are distilled from: alignment texts, the teacher's vectors, and documents that are right for texts."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.positives import positive_rows
from steps.core.tables import FROM_DOCUMENTS, TITLES, read_table
from steps.core.texts import fold
from steps.distill.params import Labels
from steps.distill.score_tables import PairTable, ScoreTable


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
    def strings(self) -> list[str]:
        """The texts themselves."""
        strings: list[str] = self.texts["text"].to_pylist()
        return strings

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

    @property
    def neighbours(self) -> int:
        """How many of the documents nearest to each text are known."""
        return int(np.load(self.embed / "nearest.npy", mmap_mode="r").shape[1])

    def nearest(self, count: int) -> np.ndarray:
        """Rows of the `count` documents nearest to each text, `(texts, count)`; UserError for more than there are."""
        rows = np.load(self.embed / "nearest.npy", mmap_mode="r")
        if count > rows.shape[1] and rows.shape[1] < len(self.documents):
            raise UserError(
                f"distill.student: teacher_top_k is {count}, but {self.embed / 'nearest.npy'} holds {rows.shape[1]}"
                f" documents of each text; set embed.neighbours to {count} or more"
            )
        return rows[:, :count]

    @cached_property
    def positives(self) -> dict[int, np.ndarray]:
        """Rows of the documents known to answer each text that is a training query, ascending, by text row."""
        return positive_rows(self.ingest, self.mine, self.texts)

    @cached_property
    def origins(self) -> np.ndarray:
        """Row of the document that each text is from, `(texts,)`; -1 for a query and a title of several documents."""
        parts, source_ids = (self.texts[name].to_pylist() for name in ("part", "source_id"))
        titles = {fold(text) for text, part in zip(self.strings, parts, strict=True) if part == TITLES}
        doc_ids = {doc_id for doc_id, part in zip(source_ids, parts, strict=True) if part in FROM_DOCUMENTS}
        rows: dict[str, int] = {}
        seen, shared = set[str](), set[str]()
        for row, (doc_id, title) in enumerate(corpus_columns(self.ingest, ["doc_id", "title"])):
            if doc_id in doc_ids:
                rows[doc_id] = row
            if titles and (key := fold(title)) in titles:
                (shared if key in seen else seen).add(key)
        origins = [
            rows.get(doc_id, -1) if part in FROM_DOCUMENTS and not (part == TITLES and fold(text) in shared) else -1
            for doc_id, part, text in zip(source_ids, parts, self.strings, strict=True)
        ]
        return np.array(origins)

    def labels(self, kind: Labels, nearest: np.ndarray) -> dict[int, np.ndarray]:
        """Rows of the right documents by text row, as a student's `labels` say; `nearest` `(texts, k)`, best first."""
        if kind == "train":
            return self.positives
        first = nearest[:, :1]
        if kind == "source":
            first = np.where(self.origins[:, None] >= 0, self.origins[:, None], first)
        return dict(enumerate(first))

    def scores(self, teacher: str, count: int) -> ScoreTable:
        """A teacher's scores of the `count` nearest documents and of known positives; UserError if it scored others."""
        documents, positions = self._listed(teacher, count)
        return ScoreTable(documents, positions, read_table(self.score / teacher, "scores")["score"].to_numpy())

    def layer_scores(self, teacher: str, count: int) -> ScoreTable:
        """The same by each of its layers; UserError where these did not score."""
        path = self.score / teacher / "layers.npy"
        if not path.is_file():
            raise UserError(
                f"{path}: not found; set score.layers: true, for a teacher that is late_interaction or a cross_encoder,"
                " and run `dvc repro score`"
            )
        return ScoreTable(*self._listed(teacher, count), np.load(path, mmap_mode="r"))

    def _listed(self, teacher: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        folder = self.score / teacher
        table = read_table(folder, "scores")
        text_rows, rows = (table[name].to_numpy() for name in ("text_row", "doc_row"))
        nearest = self.nearest(count)
        scored, starts, counts = np.unique(text_rows, return_index=True, return_counts=True)
        rank = np.arange(len(rows)) - np.repeat(starts, counts)  # in a text's own list
        if not len(scored) or scored[-1] >= len(nearest) or (np.diff(text_rows) < 0).any():
            raise UserError(f"{folder}: is of other texts than data/embed; run `dvc repro score`")
        first = rank < nearest.shape[1]
        listed = rows[first].reshape(len(scored), -1) if counts.min() >= nearest.shape[1] else None
        if listed is None or not np.array_equal(listed, nearest[scored]):
            raise UserError(
                f"distill.student: teacher_top_k is {count}, but {folder} has no scores of the {nearest.shape[1]}"
                f" documents nearest to each text; set score.depth to 0, or to {count} or more, and run `dvc repro"
                " score`"
            )
        more = ~first
        if more.any():
            owners = np.repeat(list(self.positives), [len(docs) for docs in self.positives.values()]).astype(np.int64)
            answers = np.concatenate([*self.positives.values(), np.zeros(0, dtype=np.int64)])
            size = len(self.documents)
            more &= np.isin(text_rows * np.int64(size) + rows, owners * size + answers)
        extra = np.bincount(text_rows[more], minlength=len(nearest))  # positives of each text
        documents = np.full((len(nearest), nearest.shape[1] + int(extra.max(initial=0))), -1, dtype=np.int32)
        positions = np.full(documents.shape, -1, dtype=np.int64)
        column = np.arange(int(more.sum())) - np.repeat(np.cumsum(extra) - extra, extra)
        for mask, at in ((first, rank[first]), (more, nearest.shape[1] + column)):
            documents[text_rows[mask], at], positions[text_rows[mask], at] = rows[mask], np.flatnonzero(mask)
        return documents, positions

    def pairs(self, teacher: str, embeds: str) -> PairTable:
        """A teacher's embeddings of texts with their nearest documents; UserError if `embeds` says otherwise."""
        path = self.score / teacher / "pairs.npy"
        report = read_json(path.with_name("report.json")).get("pairs") or {}
        if report.get("embeds") != embeds:
            pooling = "special_tokens or segments" if embeds == "pooled" else "cls"
            raise UserError(
                f"{path}: holds {report.get('embeds', 'no')} embeddings of pairs, but a student learns {embeds} ones;"
                f" let it learn from a cross encoder whose pooling is {pooling}, and set score.pairs to 1 or more"
            )
        values = np.load(path, mmap_mode="r")
        documents = np.asarray(self.nearest(values.shape[1]))
        scored = np.unique(read_table(path.parent, "scores")["text_row"].to_numpy())
        if len(scored) != len(values) or values.shape[1] != documents.shape[1] or scored[-1] >= len(documents):
            raise UserError(f"{path}: is not of the texts that have scores; run `dvc repro score`")
        positions = np.full(len(documents), -1, dtype=np.int64)
        positions[scored] = np.arange(len(scored))
        return PairTable(documents, values, positions)

    def document_texts(self) -> list[str]:
        """What a document tower reads."""
        return list(CorpusTexts(self.ingest))
