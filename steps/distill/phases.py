"""The trainings of a student, one after the other, each with its objective."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.distill.candidates import Candidates
from steps.distill.checks import check_candidates, check_document_tokens, check_temperatures
from steps.distill.joint import JointScores, JointTeacher, TrainedTower, joint_documents
from steps.distill.losses.base import Need, Units
from steps.distill.objective import Objective
from steps.distill.params import DistillParams, Phase, StudentParams
from steps.distill.providers import Provider, Setting
from steps.distill.score_tables import ScoreTable
from steps.distill.sources import Sources
from steps.distill.starts import Static
from steps.distill.student import Student, readable_tokens
from steps.distill.targets import OnlineTeacher, StoredTeachers, Teachers, units_of
from steps.distill.tokens import Tokens
from steps.distill.trainer import Schedule
from steps.encoders.towers import load_tower
from steps.retrieval.late_interaction import digest_of_texts
from steps.scorers import open_network
from steps.scorers.base import Network


@dataclass(frozen=True)
class Trainings:
    """The student's own training, then those of `then`: what their losses need is loaded, nothing else.

    `teacher` is the index teacher's folder; `training` are the rows of the texts that train.
    """

    chosen: StudentParams
    student: Student
    teacher: Path
    cosine: bool
    sources: Sources
    training: np.ndarray
    params: DistillParams
    tables: dict[tuple[str, int], ScoreTable] = field(default_factory=dict)  # by teacher and documents a text
    networks: dict[str, Network] = field(default_factory=dict)  # those that train along, by teacher
    automatic: dict[str, dict[str, float]] = field(default_factory=dict)  # knobs that were `auto`, by the loss' name

    def __iter__(self) -> Iterator[tuple[Objective, Schedule, np.ndarray]]:
        """Each with its texts' rows, made when its turn comes; a static embedding's rate follows vectors' length."""
        chosen, longer = self.chosen, self.units.queries if isinstance(self.chosen.start, Static) else 1.0
        for number, phase in enumerate(chosen.phases if chosen.trains else ()):
            schedule = Schedule(
                name="distill" if number == 0 else f"distill, phase {number + 1}",
                prefix="" if number == 0 else f"phase{number + 1}.",
                epochs=phase.epochs,
                batch_size=chosen.batch_size,
                learning_rate=phase.learning_rate * longer,
                warmup_ratio=chosen.warmup_ratio,
                weight_decay=chosen.weight_decay,
                embedding_lr_multiplier=chosen.embedding_lr_multiplier,
                at_least_an_epoch=number == 0,  # later phases see the same texts again
            )
            objective = self.objective(phase)
            yield objective, schedule, self.rows(phase, objective.providers.values())

    @cached_property
    def units(self) -> Units:
        """Mean lengths of the teacher's vectors."""
        return units_of(self.sources.vectors, self.sources.documents)

    def objective(self, phase: Phase) -> Objective:
        """The objective of a phase; UserError when a loss has nothing to compare."""
        candidates = self._candidates(phase) if phase.needs(Need.CANDIDATES) else None
        document_tokens = self._document_tokens() if self.chosen.towers == "symmetric" else None
        teachers = self._teachers(phase, candidates)
        tables = {name: self._scores(name, phase.teacher_top_k) for name in phase.teachers}
        check_temperatures(phase.losses, tables, phase.teacher_top_k)
        setting = Setting(
            student=self.student,
            teacher=self.teacher,
            teachers=teachers,
            sources=self.sources,
            candidates=candidates,
            document_tokens=document_tokens,
            training=self.training,
            units=self.units,
            cosine=self.cosine,
            precision=self.params.precision,
            seed=self.params.seed,
        )
        losses = []
        for loss in phase.losses:
            if knobs := loss.automatic(setting):
                self.automatic[loss.name] = knobs
            losses.append(loss.model_copy(update=knobs))
        with torch.random.fork_rng():
            torch.manual_seed(self.params.seed)  # what is random in providers
            pairs = [(loss.name, loss.provider(setting)) for loss in losses]
        providers = {name: provider for name, provider in pairs if provider is not None}
        return Objective(losses, teachers, candidates, document_tokens, self.units, providers)

    def rows(self, phase: Phase, providers: Iterable[Provider]) -> np.ndarray:
        """Rows of the texts that a phase trains on: all, or those with scores, or of a provider; UserError for none."""
        scored = [self._scores(name, phase.teacher_top_k).scored for name in phase.teachers]
        scored += [provider.has for provider in providers if provider.has is not None]
        if not scored:
            return self.training
        rows: np.ndarray = self.training[np.any(scored, axis=0)[self.training]]
        if not len(rows):
            teachers = ", ".join(phase.all_teachers)
            raise UserError(f"distill.student: no training text has scores of {teachers}; raise score.max_texts")
        return rows

    def _scores(self, teacher: str, count: int) -> ScoreTable:
        if (teacher, count) not in self.tables:
            self.tables[teacher, count] = self.sources.scores(teacher, count)
        return self.tables[teacher, count]

    def _teachers(self, phase: Phase, candidates: Candidates | None) -> Teachers:
        stored = StoredTeachers(
            vectors=self.sources.vectors,
            documents=self.sources.documents,
            cosine=self.cosine,
            scores={name: self._scores(name, phase.teacher_top_k) for name in phase.teachers},
        )
        teachers: Teachers = stored
        precision, longest = self.params.precision, self.chosen.max_document_length
        if phase.trained and candidates is not None:
            return self._joint_scores(phase, phase.trained, candidates, stored)
        if phase.targets == "joint":
            longest_query = readable_tokens(self.params.max_length, self.trained_tower.towers["query"].tower)
            queries = self.trained_tower.tokenize("query", self.sources.strings, longest_query)
            documents = self.trained_tower.tokenize("document", self.sources.document_texts(), longest)
            return JointTeacher(stored, precision, "", self.trained_tower, queries, documents)
        if phase.targets == "online":
            teachers = OnlineTeacher(load_tower(self.teacher, "query"), self.sources.strings, stored, precision)
        if self.chosen.towers == "joint":
            return joint_documents(self.teacher, self.sources.document_texts(), longest, precision, teachers)
        return teachers

    def _joint_scores(self, phase: Phase, name: str, candidates: Candidates, stored: StoredTeachers) -> JointScores:
        """The teacher of that name, which trains along: one for all phases, as `trained_tower`."""
        folder = self.teacher.parents[1] / name
        lengths = self.params.max_length, self.chosen.max_document_length
        if name not in self.networks:
            self.networks[name] = open_network(folder, *lengths)
        texts, documents = self.sources.strings, self.sources.document_texts()
        digest = digest_of_texts((fingerprint(folder / "tower").id, lengths), [*texts, *documents])
        network = self.networks[name]
        scores_batch = (phase.joint_candidates or network.candidates) == "batch"
        precision = self.params.precision
        return JointScores(stored, precision, name, network, texts, documents, digest, candidates, scores_batch)

    @cached_property
    def trained_tower(self) -> TrainedTower:
        """The teacher of `targets: joint`: one for all phases, each of which goes on where the last one ended."""
        return TrainedTower(self.teacher, self.params.precision)

    def _candidates(self, phase: Phase) -> Candidates:
        nearest = np.asarray(self.sources.nearest(phase.teacher_top_k))  # no memory map: its rows are slow to take
        positives = self.sources.labels(phase.labels, nearest)
        parts = np.array(self.sources.texts["part"].to_pylist())[self.training]
        seen = np.isin(parts, [part for part, times in self.params.repeats.items() if times > 0])
        check_candidates(phase, positives, self.training[seen])
        return Candidates(positives, nearest, self.params.seed)

    def _document_tokens(self) -> Tokens:
        tokens = self.student.tokenize(self.sources.document_texts(), self.chosen.max_document_length)
        check_document_tokens(self.student, tokens)
        return tokens
