"""Methods: the objectives that a student is trained on, one phase after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.distill.candidates import Candidates, positives_of
from steps.distill.checks import check_candidates, check_document_tokens
from steps.distill.losses.embedding import LOSSES, QueryDistillation
from steps.distill.objectives import Embeddings, Objective, Rankings
from steps.distill.params import (
    AlignmentParams,
    DistillParams,
    EmbedDistillParams,
    QkdParams,
    Ranking,
    StudentParams,
)
from steps.distill.sources import Sources
from steps.distill.students import Student
from steps.distill.tokens import Tokens
from steps.distill.trainer import Timetable


@dataclass(frozen=True)
class Phase:
    """One training of the student."""

    objective: Objective
    timetable: Timetable


def phases(
    chosen: StudentParams,
    made: Student,
    teacher: SentenceTransformer,
    sources: Sources,
    training: np.ndarray,
    params: DistillParams,
) -> Iterator[Phase]:
    """The student's own method and, where it is asked for, its refinement; each is made when its turn comes.

    `training` are the rows of the texts that train.
    """
    timetable = Timetable(
        name=f"distill {chosen.method}",
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        learning_rate=chosen.learning_rate,
        warmup_ratio=chosen.warmup_ratio,
        weight_decay=chosen.weight_decay,
        token_rate=chosen.token_rate,
        documents_first=chosen.documents_first,
    )
    make = Maker(teacher, sources, training, params)
    yield Phase(make.objective(chosen, made), timetable)
    if chosen.refine:
        timetable = replace(
            timetable,
            name="refine",
            prefix="refine.",
            epochs=chosen.refine.epochs,
            learning_rate=chosen.refine.learning_rate,
            documents_first=0.0,
        )
        yield Phase(make.rankings(chosen.refine), timetable)


@dataclass(frozen=True)
class Maker:
    """Makes objectives from what the stages before have written."""

    teacher: SentenceTransformer
    sources: Sources
    training: np.ndarray
    params: DistillParams

    def objective(self, chosen: StudentParams, made: Student) -> Objective:
        """The objective of the student's method."""
        vectors = self.sources.vectors
        match chosen:
            case EmbedDistillParams(towers="symmetric"):
                return self.rankings(chosen, self._document_tokens(made, chosen.max_document_length))
            case EmbedDistillParams():
                return self.rankings(chosen)
            case QkdParams():
                return Embeddings("qkd", QueryDistillation(chosen.cosine_weight), vectors, chosen.widths)
            case AlignmentParams():
                return Embeddings(chosen.loss, LOSSES[chosen.loss](), vectors, chosen.widths)
        return Embeddings(chosen.loss, LOSSES[chosen.loss](), vectors, [])

    def rankings(self, ranking: Ranking, document_tokens: Tokens | None = None) -> Rankings:
        """The terms over candidate documents; UserError when a label term has no labelled text to train on."""
        vectors, documents = self.sources.vectors, self.sources.documents
        cosine = self.teacher.similarity_fn_name == "cosine"
        nearest = self.sources.nearest(ranking.neighbours)
        if ranking.labels == "teacher":
            positives = {row: nearest[row, :1] for row in range(len(nearest))}
        else:
            positives = self._known_positives()
        parts = np.array(self.sources.texts["part"].to_pylist())[self.training]
        seen = np.isin(parts, [part for part, weight in self.params.mixture.items() if weight > 0])
        check_candidates(ranking, positives, self.training[seen])
        candidates = Candidates(positives, nearest, self.params.seed)
        return Rankings(ranking, vectors, documents, candidates, document_tokens, cosine=cosine)

    def _known_positives(self) -> dict[int, np.ndarray]:
        known = self.sources
        return positives_of(known.texts, known.training_queries(), known.positives(), known.document_ids())

    def _document_tokens(self, made: Student, max_length: int) -> Tokens:
        tokens = made.read(self.sources.document_texts(), max_length)
        check_document_tokens(made, tokens)
        return tokens
