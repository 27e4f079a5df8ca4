"""Teachers that train along with a student: the index's with both towers or its documents alone, or one that scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.common.names import Role
from steps.distill.candidates import Candidates
from steps.distill.checks import check_document_tokens
from steps.distill.layer_pooling import depth_of, pooling_of
from steps.distill.layer_store import compared
from steps.distill.losses.base import LayerTargets, Scores, Targets
from steps.distill.students import Student, TransformerStudent
from steps.distill.targets import StoredTeachers, Teachers
from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast, device, load_tower, route, trains_with_plain_attention
from steps.scorers.base import Network

_ROLES: tuple[Role, Role] = ("query", "document")


class TrainedTower:
    """The index teacher, to be trained: reads texts of either role as its prompts say, cut to a student's lengths."""

    def __init__(self, folder: Path, precision: Precision) -> None:
        self.model = load_tower(folder).eval()
        self.precision = precision
        self.towers = {role: TransformerStudent(route(self.model, role)) for role in _ROLES}
        self.depth = min(depth_of(student.tower) for student in self.towers.values())

    def tokenize(self, role: Role, texts: list[str], max_length: int) -> Tokens:
        """The texts' tokens, their prompt in front; UserError for a pooling that leaves the prompt out."""
        tower = self.towers[role].tower
        prompt = tower.prompts.get(role) or ""
        if prompt and not pooling_of(tower, "the teacher").include_prompt:
            raise UserError(
                "distill.student: the teacher leaves its prompt out of its pooling; targets: joint takes none that does"
            )
        tokens = self.towers[role].tokenize([prompt + text for text in texts], max_length)
        check_document_tokens(self.towers[role], tokens)
        return tokens

    def embed(self, role: Role, tokens: Tokens, rows: np.ndarray, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Embeddings before their normalisation, `(n, dim)`, and pooled states `(n, len(layers), width)`."""
        return self.towers[role].embed_layers(tokens, rows, layers)


@dataclass(frozen=True)
class JointTeacher:
    """Targets of a tower that trains: its embeddings of texts and documents and its layers' scores, with gradient."""

    tower: TrainedTower
    texts: Tokens
    documents: Tokens
    stored: StoredTeachers

    @property
    def depth(self) -> int:
        """How many layers it has."""
        return self.tower.depth

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The tower."""
        return [self.tower.model]

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The stored ones and the tokens that it reads."""
        tokens = {"joint.ids": self.texts.ids, "joint.offsets": self.texts.offsets}
        tokens |= {"joint.document_ids": self.documents.ids, "joint.document_offsets": self.documents.offsets}
        return dict(self.stored.arrays) | tokens

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """Embeddings and states of these layers, of the texts and of the documents."""
        queries, states = self.tower.embed("query", self.texts, rows, layers)
        tensors = {"teacher.queries": queries, "teacher.query_layers": states}
        if len(documents):
            embeddings, document_states = self.tower.embed("document", self.documents, documents, layers)
            tensors |= {"teacher.documents": embeddings, "teacher.document_layers": document_states}
        return tensors

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """As stored ones, but for the vectors and what follows from them."""
        queries = self.tower.towers["query"].normalised(tensors["teacher.queries"])
        if not len(documents):
            return self.stored.with_scores(queries, queries[:0], rows, documents)
        vectors = self.tower.towers["document"].normalised(tensors["teacher.documents"])
        return self.stored.with_scores(queries, vectors, rows, documents)

    def scores(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> LayerTargets:
        """What these layers give the documents for the texts at present, without gradient."""
        with torch.no_grad(), autocast(self.tower.precision):
            tensors = self.forward(rows, documents, layers)
        return self.layer_targets({name: tensor.float() for name, tensor in tensors.items()}, rows, documents, layers)

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        """Scores of all documents; the student has documents of its own."""
        states = tensors["teacher.query_layers"]
        document_states = tensors["teacher.document_layers"] if len(documents) else states[:0]
        return compared(states, document_states)

    def save(self, folder: Path) -> None:
        """Write the tower."""
        self.tower.model.save_pretrained(str(folder), create_model_card=False)


@dataclass(frozen=True)
class JointDocuments:
    """Teachers whose vectors of documents are those of a tower that trains: their scores stay the stored ones."""

    reader: Student
    tokens: Tokens  # of all documents
    stored: Teachers

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Those of the teachers, and the documents' tokens."""
        tokens = {"document_ids": self.tokens.ids, "document_offsets": self.tokens.offsets}
        return {**self.stored.arrays, **tokens}

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The document tower, and what trains besides."""
        return (*self.stored.modules, self.reader.tower)

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """The tower's embeddings of the candidates, `(m, dim)`, with gradient, and what the teachers make."""
        tensors = self.stored.forward(rows, documents)
        if len(documents):
            tensors["joint documents"] = self.reader.normalised(self.reader.embed(self.tokens, documents))
        return tensors

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """What the teachers say, but for the vectors of the documents."""
        targets = self.stored.targets(tensors, rows, documents)
        return replace(targets, documents=tensors["joint documents"]) if len(documents) else targets


def joint_documents(
    teacher: Path, texts: list[str], max_length: int, precision: Precision, stored: Teachers
) -> JointDocuments:
    """The document tower of the teacher in a folder, reading `max_length` tokens of all documents.

    UserError for a tower that writes a prompt around them, as a language model's does.
    """
    tower = load_tower(teacher, "document")
    if getattr(tower.tokenizer, "chat_template", None):
        raise UserError(
            "distill.student: towers: joint trains an encoder's document tower, and the teacher of the index is a"
            " language model; set towers: asymmetric, or teach.index to a dual_encoder"
        )
    reader = TransformerStudent(tower, plain_attention=trains_with_plain_attention(precision, max_length))
    prompt = tower.prompts.get("document") or ""
    tokens = reader.tokenize([prompt + text for text in texts], max_length)
    check_document_tokens(reader, tokens)
    return JointDocuments(reader, tokens, stored)


@dataclass(frozen=True)
class JointScores:
    """Targets of a late interaction model or a cross encoder that trains: its scores and its layers', with gradient.

    The vectors stay those of the index teacher, so its documents can be what a student is scored against.
    """

    name: str
    network: Network
    texts: Sequence[str]
    documents: Sequence[str]
    digest: bytes  # of the tower as it began and of how it reads these texts
    candidates: Candidates
    stored: StoredTeachers
    precision: Precision
    whole_batch: bool  # it reads all candidates of the batch with each text; else the text's own

    @property
    def depth(self) -> int:
        """How many layers it has."""
        return self.network.depth

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The network."""
        return [self.network.model]

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The stored ones, and what it reads."""
        return dict(self.stored.arrays) | {"joint.scores": np.frombuffer(self.digest, dtype=np.uint8)}

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """Scores of the documents, `(n, 1 + len(layers), m)`: its own, then the layers'; 0 where it reads none."""
        text, column = np.nonzero(self._pair_mask(rows, documents))
        used, document = np.unique(column, return_inverse=True)
        texts = [self.texts[row] for row in rows.tolist()]
        pair_scores = self.network.scores(
            texts, [self.documents[row] for row in documents[used].tolist()], np.stack([text, document]), layers
        )
        matrix = pair_scores.new_zeros(len(rows), len(documents), pair_scores.shape[1])
        at = tuple(torch.from_numpy(indices).to(pair_scores.device) for indices in (text, column))
        return {"teacher.scores": matrix.index_put(at, pair_scores).transpose(1, 2)}

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """As stored ones, and its scores."""
        targets = self.stored.targets(tensors, rows, documents)
        scores = Scores(tensors["teacher.scores"][:, 0], self._scored_mask(rows, documents))
        return replace(targets, scores={**targets.scores, self.name: scores})

    def scores(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> LayerTargets:
        """What these layers give the documents for the texts at present, without gradient."""
        with torch.no_grad(), autocast(self.precision):
            tensors = self.forward(rows, documents, layers)
        return self.layer_targets(tensors, rows, documents, layers)

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        """Scores alone: it has no states of documents."""
        return LayerTargets(tensors["teacher.scores"][:, 1:], self._scored_mask(rows, documents))

    def save(self, folder: Path) -> None:
        """Write it as the stage `teach` leaves a teacher of its kind."""
        self.network.model.save_pretrained(str(folder / "tower"), create_model_card=False)
        write_json(folder / "report.json", {"kind": self.network.kind})

    def _pair_mask(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Which documents it reads with each text, boolean `(n, m)`."""
        if self.whole_batch:
            return np.ones((len(rows), len(documents)), dtype=bool)
        return self.candidates.own_mask(rows, documents)

    def _scored_mask(self, rows: np.ndarray, documents: np.ndarray) -> Tensor:
        return torch.from_numpy(self._pair_mask(rows, documents)).to(device())
