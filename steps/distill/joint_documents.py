"""The index teacher's document tower, training along with a small query tower: ScalingNote's baseline ScalingDoc."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from slimtower.common.errors import UserError
from steps.distill.checks import check_document_tokens
from steps.distill.losses.base import Targets
from steps.distill.students import Student, TransformerStudent
from steps.distill.targets import Teachers
from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision
from steps.encoders.towers import load_tower, trains_with_plain_attention


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
