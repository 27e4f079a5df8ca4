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
from steps.distill.layer_alignment import LayerAlignment, layer_alignment
from steps.distill.layer_store import ScoredLayers, WholeTeacher
from steps.distill.losses.base import Need, Units
from steps.distill.losses.layer import LayerDistillation
from steps.distill.objective import Objective
from steps.distill.params import DistillParams, Phase, StudentParams
from steps.distill.providers import Provider, Setting
from steps.distill.sources import Sources
from steps.distill.starts import Static
from steps.distill.students import Student
from steps.distill.targets import OnlineTeacher, ScoreTable, StoredTeachers, Teachers, units_of
from steps.distill.tokens import Tokens
from steps.distill.trainer import Schedule
from steps.encoders.towers import load_tower
from steps.retrieval.late_interaction import digest_of_texts
from steps.scorers import open_network
from steps.scorers.base import Network


@dataclass(frozen=True)
class Training:
    """One training of the student, and the rows of the texts that it sees."""

    objective: Objective
    schedule: Schedule
    rows: np.ndarray


def trainings(
    chosen: StudentParams,
    student: Student,
    teacher: Path,
    sources: Sources,
    training: np.ndarray,
    params: DistillParams,
    *,
    cosine: bool,
) -> Iterator[Training]:
    """The student's own training, then those of `then`; each is made when its turn comes. None with epochs: 0.0.

    `teacher` is the index teacher's folder, which compares by `cosine` or by inner product; `training` are the rows of
    the texts that train. The learning rate of a static embedding is one of vectors of length 1, and follows theirs.
    """
    units = units_of(sources.vectors, sources.documents)
    make = ObjectiveMaker(chosen, student, teacher, cosine, sources, training, params, units)
    longer = units.queries if isinstance(chosen.start, Static) else 1.0  # a table is as long as the vectors
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
        objective = make.objective(phase)
        yield Training(objective, schedule, make.rows(phase, objective.providers.values()))


@dataclass(frozen=True)
class ObjectiveMaker:
    """Makes objectives from what the stages before have written: what the losses need is loaded, nothing else."""

    chosen: StudentParams
    student: Student
    teacher: Path
    cosine: bool
    sources: Sources
    training: np.ndarray
    params: DistillParams
    units: Units
    tables: dict[tuple[str, int], ScoreTable] = field(default_factory=dict)  # by teacher and documents a text
    networks: dict[str, Network] = field(default_factory=dict)  # those that train along, by teacher

    def objective(self, phase: Phase) -> Objective:
        """The objective of a phase; UserError when a loss has nothing to compare."""
        candidates = self._candidates(phase) if phase.needs(Need.CANDIDATES) else None
        document_tokens = self._document_tokens() if self.chosen.towers == "symmetric" else None
        teachers = self._teachers(phase, candidates)
        tables = {name: self._scores(name, phase.teacher_top_k) for name in phase.teachers}
        check_temperatures(phase.losses, tables, phase.teacher_top_k)
        layers = self._layers(phase, teachers, candidates)
        providers = self._providers(phase)
        return Objective(phase.losses, teachers, candidates, document_tokens, self.units, providers, layers)

    def rows(self, phase: Phase, providers: Iterable[Provider]) -> np.ndarray:
        """Rows of the texts of a phase: all that train, or only those with scores or with something that
        a loss' provider has.

        UserError without any.
        """
        scored = [self._scores(name, phase.teacher_top_k).scored for name in phase.teachers]
        scored += [provider.has for provider in providers if provider.has is not None]
        if not scored:
            return self.training
        rows: np.ndarray = self.training[np.any(scored, axis=0)[self.training]]
        if not len(rows):
            raise UserError(
                f"distill.student: no training text has scores of {', '.join(phase.all_teachers)};"
                " raise score.max_texts"
            )
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
            lengths=self.sources.lengths if phase.needs(Need.LENGTHS) else None,
            scores={name: self._scores(name, phase.teacher_top_k) for name in phase.teachers},
        )
        teachers: Teachers = stored
        if phase.trained and candidates is not None:
            return self._joint_scores(phase, phase.trained, candidates, stored)
        if phase.targets == "joint":
            queries = self.trained_tower.tokenize(
                "query", self.sources.texts["text"].to_pylist(), self.params.max_length
            )
            texts, longest = self.sources.document_texts(), self.chosen.max_document_length
            return JointTeacher(
                self.trained_tower, queries, self.trained_tower.tokenize("document", texts, longest), stored
            )
        if phase.targets == "online":
            texts = self.sources.texts["text"].to_pylist()
            teachers = OnlineTeacher(load_tower(self.teacher, "query"), texts, stored, self.params.precision)
        if self.chosen.towers == "joint":
            documents, longest = self.sources.document_texts(), self.chosen.max_document_length
            return joint_documents(self.teacher, documents, longest, self.params.precision, teachers)
        return teachers

    def _joint_scores(self, phase: Phase, name: str, candidates: Candidates, stored: StoredTeachers) -> JointScores:
        """The teacher of that name, which trains along: one for all phases, as `trained_tower`."""
        folder = self.teacher.parents[1] / name
        lengths = self.params.max_length, self.chosen.max_document_length
        if name not in self.networks:
            self.networks[name] = open_network(folder, *lengths)
        texts, documents = self.sources.texts["text"].to_pylist(), self.sources.document_texts()
        digest = digest_of_texts((fingerprint(folder / "tower").id, lengths), [*texts, *documents])
        network = self.networks[name]
        return JointScores(
            name,
            network,
            texts,
            documents,
            bytes.fromhex(digest),
            candidates,
            stored,
            self.params.precision,
            whole_batch=(phase.joint_candidates or network.candidates) == "batch",
        )

    def _providers(self, phase: Phase) -> dict[str, Provider]:
        """Those of the losses that have one; what is random in them is drawn by the seed."""
        setting = Setting(self.student, self.teacher, self.sources, self.params.precision)
        with torch.random.fork_rng():
            torch.manual_seed(self.params.seed)
            providers = {loss.name: loss.provider(setting) for loss in phase.losses}
        return {name: provider for name, provider in providers.items() if provider is not None}

    @cached_property
    def trained_tower(self) -> TrainedTower:
        """The teacher of `targets: joint`: one for all phases, each of which goes on where the last one ended."""
        return TrainedTower(self.teacher, self.params.precision)

    def _layers(self, phase: Phase, teachers: Teachers, candidates: Candidates | None) -> LayerAlignment | None:
        asking = [loss for loss in phase.losses if isinstance(loss, LayerDistillation)]
        if not asking or candidates is None:
            return None
        scorer: WholeTeacher | None = None
        if isinstance(teachers, JointTeacher | JointScores):
            scorer = teachers
        elif name := asking[0].teacher:
            scorer = ScoredLayers(self.sources.layer_scores(name, phase.teacher_top_k))
        own_documents = self.chosen.towers == "symmetric"
        return layer_alignment(
            asking[0], self.student, self.teacher, scorer, self.sources, candidates, self.training, self.params,
            own_documents=own_documents,
        )  # fmt: skip

    def _candidates(self, phase: Phase) -> Candidates:
        nearest = self.sources.nearest(phase.teacher_top_k)
        if phase.labels == "pseudo":
            positives = {row: nearest[row, :1] for row in range(len(nearest))}
        else:
            positives = self.sources.positives
        parts = np.array(self.sources.texts["part"].to_pylist())[self.training]
        seen = np.isin(parts, [part for part, times in self.params.repeats.items() if times > 0])
        check_candidates(phase, positives, self.training[seen])
        return Candidates(positives, nearest, self.params.seed)

    def _document_tokens(self) -> Tokens:
        tokens = self.student.tokenize(self.sources.document_texts(), self.chosen.max_document_length)
        check_document_tokens(self.student, tokens)
        return tokens
