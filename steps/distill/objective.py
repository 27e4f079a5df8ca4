"""What a step minimises: the weighted sum of the losses' means over the texts of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from steps.distill.attention import AttentionPair
from steps.distill.candidates import Candidates, Drawn
from steps.distill.layer_alignment import LayerAlignment
from steps.distill.layer_pairs import Pairs
from steps.distill.losses.base import Batch, Loss, Need, Outputs, Units
from steps.distill.students import Student
from steps.distill.targets import Teachers
from steps.distill.tokens import Tokens

_NONE = np.zeros(0, dtype=np.int64)


class Objective:
    """Losses over what the student and the teachers make of a batch.

    A batch may be read in pieces, by one process or several: the shares of its pieces add up to the whole.
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        teachers: Teachers,
        candidates: Candidates | None = None,
        document_tokens: Tokens | None = None,
        units: Units | None = None,
        heads: Mapping[str, nn.Module] | None = None,
        attention: AttentionPair | None = None,
        layers: LayerAlignment | None = None,
    ) -> None:
        """`candidates` where a loss compares documents; `document_tokens` of all documents for a symmetric student.

        `units` of the vectors that losses see; None = 1. `heads` of the losses that have one, by their names.
        `attention` and `layers` where a loss compares attention maps or states of layers.
        """
        self.losses = {loss.name: loss for loss in losses}
        self.names: Sequence[str] = list(self.losses)
        self.teachers, self.candidates, self.document_tokens = teachers, candidates, document_tokens
        self.units, self.heads = units or Units(), dict(heads or {})
        self.attention, self.layers = attention, layers
        self.last: tuple[int, np.ndarray, Drawn] | None = None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What trains, or changes, besides the student: teachers, heads of losses, layers that are paired."""
        found = {f"teacher.{at}": each for at, each in enumerate(self.teachers.modules)}
        found |= {f"head.{name}": head for name, head in self.heads.items()}
        return found if self.layers is None else found | {"layers": self.layers.pairs}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that it reads besides the texts and the teacher's vectors of them."""
        found: dict[str, np.ndarray] = {}
        if self.candidates is not None:
            found = dict(self.teachers.arrays) | self.candidates.arrays
        else:  # what needs no candidates
            given = self.teachers.arrays
            found = {name: given[name] for name in given if name == "lengths" or name.startswith("pairs.")}
        if self.document_tokens is not None:
            found |= {"document_ids": self.document_tokens.ids, "document_offsets": self.document_tokens.offsets}
        if self.attention is not None and self.attention.teacher:
            found["attention.teacher"] = np.frombuffer(bytes.fromhex(self.attention.teacher), dtype=np.uint8)
        return found if self.layers is None else found | dict(self.layers.teacher.arrays)

    def forward(
        self, student: Student, tokens: Tokens, piece: np.ndarray, rows: np.ndarray, step: int
    ) -> dict[str, Tensor]:
        """What the terms of `piece`, a part of the batch `rows`, are computed from, by name; with gradient.

        `queries` are the student's embeddings before their normalisation, `(n, dim)`, `documents` a symmetric
        student's of the batch's candidates, `(m, dim)`; besides them what a running teacher makes. Where layers are
        compared, `queries.layers` and `documents.layers` are the pooled states of the student's, `(n, k, width)`.
        """
        documents = self._documents(rows, step)
        pairs = self._pairs(rows, step)
        made = self._read(student, "queries", tokens, piece, pairs)
        if self.document_tokens is not None and len(documents):
            made |= self._read(student, "documents", self.document_tokens, documents, pairs)
        if self.attention is not None:
            made |= self.attention.maps(tokens, piece)
        return made | self.teachers.forward(piece, documents, pairs.teacher if pairs else ())

    def _read(
        self, student: Student, name: str, tokens: Tokens, rows: np.ndarray, pairs: Pairs | None
    ) -> dict[str, Tensor]:
        if self.layers is None or pairs is None:
            return {name: student.embed(tokens, rows)}
        embeddings, states = self.layers.read(tokens, rows, pairs)
        return {name: embeddings, f"{name}.layers": states}

    def _pairs(self, rows: np.ndarray, step: int) -> Pairs | None:
        """Layers that are paired at this step."""
        drawn = self._drawn(rows, step)
        return None if self.layers is None or drawn is None else self.layers.at(step, rows, drawn)

    def terms(
        self, student: Student, made: Mapping[str, Tensor], piece: np.ndarray, rows: np.ndarray, step: int
    ) -> dict[str, Tensor]:
        """The share of `piece` in each weighted term of the batch, by name: scalars."""
        drawn = self._drawn(rows, step)
        documents = _NONE if drawn is None else drawn.documents
        targets = self.teachers.targets(made, piece, documents).measured_in(self.units)
        targets = replace(targets, attention=made.get("teacher_attention"))
        pairs = self._pairs(rows, step)
        if self.layers is not None and drawn is not None and pairs is not None:
            targets = replace(targets, layers=self.layers.targets(made, piece, rows, drawn, pairs))
        own = made.get("documents")
        outputs = Outputs(
            queries=student.normalised(made["queries"]),
            raw=made["queries"],
            documents=None if own is None else student.normalised(own),
            heads=self.heads,
            attention=made.get("attention"),
            layers=made.get("queries.layers"),
            document_layers=made.get("documents.layers"),
        ).measured_in(self.units)
        batch, labelled = self._batch(drawn, piece, rows, outputs.raw)
        found: dict[str, Tensor] = {}
        fixed = targets.fixed()
        for name, loss in self.losses.items():
            said = targets if loss.moves_teacher else fixed
            values = [loss.values(outputs, said, batch)]
            values += [loss.values(outputs.truncate(dim), said.truncate(dim), batch) for dim in loss.dims]
            counted = labelled if Need.LABELS in loss.needs else len(rows)
            found[name] = loss.weight * torch.stack(values).mean(dim=0).sum() / max(1, counted)
        return found

    def _documents(self, rows: np.ndarray, step: int) -> np.ndarray:
        drawn = self._drawn(rows, step)
        return _NONE if drawn is None else drawn.documents

    def _drawn(self, rows: np.ndarray, step: int) -> Drawn | None:
        """The candidates of the batch, drawn once for all its pieces."""
        if self.candidates is None:
            return None
        if self.last is None or self.last[0] != step or not np.array_equal(self.last[1], rows):
            self.last = step, rows, self.candidates.of(rows, step)
        return self.last[2]

    def _batch(self, drawn: Drawn | None, piece: np.ndarray, rows: np.ndarray, like: Tensor) -> tuple[Batch, int]:
        """Labels of the piece, and how many texts of the whole batch have one."""
        if drawn is None:
            nothing = torch.zeros((len(piece), 0), dtype=torch.bool, device=like.device)
            return Batch(nothing, nothing, nothing), 0
        own = np.searchsorted(rows, piece)
        masks = (torch.from_numpy(each[own]).to(like.device) for each in (drawn.label, drawn.counts, drawn.own))
        return Batch(*masks), int(drawn.label.sum())
