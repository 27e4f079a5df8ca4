"""An index teacher that trains along with a symmetric student (LEAD, Sec. 3.4): both towers run, on the same texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.errors import UserError
from slimtower.common.names import Role
from steps.distill.checks import check_document_tokens
from steps.distill.layer_pooling import depth_of, pooling_of
from steps.distill.layer_store import compared
from steps.distill.losses.base import LayerTargets, Targets
from steps.distill.students import TransformerStudent
from steps.distill.targets import StoredTeachers
from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast, load_tower, route


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


_ROLES: tuple[Role, Role] = ("query", "document")


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
