"""Teachers that train along with a student: the index's with both towers or its documents alone, or one that scores."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.common.names import ROLES, Role
from steps.distill.candidates import Candidates
from steps.distill.checks import check_document_tokens
from steps.distill.layer_pooling import depth_of, pooling_of
from steps.distill.layer_teachers import LayerTargets, LayerTeacher, compared
from steps.distill.losses.base import Scores, Targets
from steps.distill.student import Student
from steps.distill.students import TransformerStudent
from steps.distill.targets import StoredTeachers, Teachers
from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision, device
from steps.encoders.towers import autocast, load_tower, route, trains_with_plain_attention
from steps.scorers.base import Network


class TrainedTower:
    """The index teacher, to be trained: reads texts of either role as its prompts say, cut to a student's lengths."""

    def __init__(self, folder: Path, precision: Precision) -> None:
        self.model = load_tower(folder).eval()
        self.precision = precision
        self.towers = {role: TransformerStudent(route(self.model, role)) for role in ROLES}
        self.depth = min(depth_of(student.tower) for student in self.towers.values())

    def tokenize(self, role: Role, texts: list[str], max_length: int) -> Tokens:
        """The texts' tokens, their prompt in front; UserError as of `joint_documents`."""
        return _prompted_tokens(self.towers[role], role, texts, max_length)


@dataclass
class TrainedTeacher(Teachers, LayerTeacher):
    """A teacher that trains along: its scores and its layers' have a gradient; what it does not give is `stored`."""

    stored: StoredTeachers
    precision: Precision
    name: str  # "" = the index's
    paired: Sequence[int] = field(default=(), init=False)  # layers, numbered from 0, whose scores a step has too

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many layers it has."""

    def pair(self, layers: Sequence[int]) -> None:
        self.paired = layers

    def forward(self, rows: np.ndarray, documents: np.ndarray) -> dict[str, Tensor]:
        return self.read(rows, documents, self.paired)

    @abstractmethod
    def read(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> dict[str, Tensor]:
        """What `forward` computes, with these layers."""

    def scores(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> LayerTargets:
        with torch.no_grad(), autocast(self.precision):
            tensors = self.read(rows, documents, layers)
        return self.layer_targets({name: tensor.float() for name, tensor in tensors.items()}, rows, documents, layers)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write its weights as they became."""


@dataclass
class JointTeacher(TrainedTeacher):
    """Targets of a tower that trains: its embeddings of texts and documents and its layers' scores, with gradient."""

    tower: TrainedTower
    texts: Tokens
    documents: Tokens

    @property
    def depth(self) -> int:
        return self.tower.depth

    @property
    def modules(self) -> Sequence[nn.Module]:
        return [self.tower.model]

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {**self.stored.arrays, **self.texts.arrays("joint"), **self.documents.arrays("joint documents")}

    def read(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> dict[str, Tensor]:
        queries, states = self.tower.towers["query"].embed_layers(self.texts, rows, layers)
        tensors = {"teacher.queries": queries, "teacher.query_layers": states}
        if len(documents):
            vectors, document_states = self.tower.towers["document"].embed_layers(self.documents, documents, layers)
            tensors |= {"teacher.documents": vectors, "teacher.document_layers": document_states}
        return tensors

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        queries = self.tower.towers["query"].normalised(tensors["teacher.queries"])
        vectors = tensors.get("teacher.documents", queries[:0])
        return self.stored.with_scores(queries, self.tower.towers["document"].normalised(vectors), rows, documents)

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        states = tensors["teacher.query_layers"]
        return compared(states, tensors.get("teacher.document_layers", states[:0]))

    def save(self, folder: Path) -> None:
        self.tower.model.save_pretrained(str(folder), create_model_card=False)


@dataclass(frozen=True)
class JointDocuments(Teachers):
    """Teachers whose vectors of documents are those of a tower that trains: their scores stay the stored ones."""

    reader: Student
    tokens: Tokens  # of all documents
    stored: Teachers

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {**self.stored.arrays, **self.tokens.arrays("documents")}

    @property
    def code(self) -> Sequence[str]:
        return self.stored.code

    @property
    def modules(self) -> Sequence[nn.Module]:
        return [*self.stored.modules, self.reader.tower]

    def forward(self, rows: np.ndarray, documents: np.ndarray) -> dict[str, Tensor]:
        tensors = self.stored.forward(rows, documents)
        if len(documents):
            tensors["joint documents"] = self.reader.normalised(self.reader.embed(self.tokens, documents))
        return tensors

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        targets = self.stored.targets(tensors, rows, documents)
        return replace(targets, documents=tensors["joint documents"]) if len(documents) else targets


def joint_documents(
    teacher: Path, texts: list[str], max_length: int, precision: Precision, stored: Teachers
) -> JointDocuments:
    """The document tower of the teacher in a folder.

    UserError if it writes a language model's prompt around texts, or leaves a prompt out when it pools.
    """
    tower = load_tower(teacher, "document")
    reader = TransformerStudent(tower, plain_attention=trains_with_plain_attention(precision, max_length))
    return JointDocuments(reader, _prompted_tokens(reader, "document", texts, max_length), stored)


def _prompted_tokens(reader: TransformerStudent, role: Role, texts: list[str], max_length: int) -> Tokens:
    tower = reader.tower
    if getattr(tower.tokenizer, "chat_template", None):
        raise UserError(
            "distill.student: joint trains an encoder, and the teacher of the index is a language model; set towers:"
            " asymmetric and targets: stored, or teach.index to a dual_encoder"
        )
    prompt = tower.prompts.get(role) or ""
    if prompt and not pooling_of(tower, "the teacher").include_prompt:
        raise UserError("distill.student: joint takes no teacher that leaves its prompt out when it pools")
    tokens = reader.tokenize([prompt + text for text in texts], max_length)
    check_document_tokens(reader, tokens)
    return tokens


@dataclass
class JointScores(TrainedTeacher):
    """Scores of a late interaction model or a cross encoder that trains, beside the index teacher's vectors."""

    network: Network
    texts: Sequence[str]
    documents: Sequence[str]
    digest: str  # hex, of the tower as it began and of how it reads these texts
    candidates: Candidates
    whole_batch: bool  # it reads all candidates of the batch with each text; else the text's own

    @property
    def depth(self) -> int:
        return self.network.depth

    @property
    def modules(self) -> Sequence[nn.Module]:
        return [self.network.model]

    @property
    def code(self) -> Sequence[str]:
        return [type(self.network).__module__]

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {**self.stored.arrays, "joint.scores": np.frombuffer(bytes.fromhex(self.digest), dtype=np.uint8)}

    def read(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> dict[str, Tensor]:
        """Scores of the documents, `(n, 1 + len(layers), m)`: its own, then the layers'; 0 where it reads none."""
        text, column = np.nonzero(self._pair_mask(rows, documents).numpy())
        used, document = np.unique(column, return_inverse=True)
        texts = [self.texts[row] for row in rows.tolist()]
        pair_scores = self.network.scores(
            texts, [self.documents[row] for row in documents[used].tolist()], np.stack([text, document]), layers
        )
        matrix = pair_scores.new_zeros(len(rows), len(documents), pair_scores.shape[1])
        at = tuple(torch.from_numpy(indices).to(pair_scores.device) for indices in (text, column))
        return {"teacher.scores": matrix.index_put(at, pair_scores).transpose(1, 2)}

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        targets = self.stored.targets(tensors, rows, documents)
        scores = Scores(tensors["teacher.scores"][:, 0], self._pair_mask(rows, documents).to(device()))
        return replace(targets, scores={**targets.scores, self.name: scores})

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        return LayerTargets(tensors["teacher.scores"][:, 1:], self._pair_mask(rows, documents).to(device()))

    def save(self, folder: Path) -> None:
        self.network.model.save_pretrained(str(folder / "tower"), create_model_card=False)
        write_json(folder / "report.json", {"kind": self.network.kind})

    def _pair_mask(self, rows: np.ndarray, documents: np.ndarray) -> Tensor:
        if self.whole_batch:
            return torch.ones((len(rows), len(documents)), dtype=torch.bool)
        return torch.from_numpy(self.candidates.own_mask(rows, documents))
