"""What a step minimises: the weighted sum of the losses' means over the texts of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from steps.distill.candidates import CandidateBatch, Candidates
from steps.distill.losses.base import Batch, Loss, Need, Outputs, Units
from steps.distill.providers import Provider
from steps.distill.student import Student
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
        providers: Mapping[str, Provider] | None = None,
    ) -> None:
        """`candidates` if a loss compares documents; `document_tokens` for a symmetric student; `units` None = 1."""
        self.losses = {loss.name: loss for loss in losses}
        self.names: Sequence[str] = list(self.losses)
        self.teachers, self.candidates, self.document_tokens = teachers, candidates, document_tokens
        self.units, self.providers = units or Units(), dict(providers or {})
        self.heads = {name: provider.head for name, provider in self.providers.items() if provider.head is not None}
        self.last: tuple[int, np.ndarray, CandidateBatch] | None = None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What trains, or changes, besides the student: teachers, and heads and modules of losses."""
        modules = {f"teacher.{at}": module for at, module in enumerate(self.teachers.modules)}
        modules |= {f"head.{name}": head for name, head in self.heads.items()}
        of_providers = {name: provider.module for name, provider in self.providers.items()}
        return modules | {f"module.{name}": module for name, module in of_providers.items() if module is not None}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that it reads besides the texts and the teacher's vectors of them."""
        arrays: dict[str, np.ndarray] = {}
        if self.candidates is not None:  # else what teachers have is not read
            arrays |= {**self.teachers.arrays, **self.candidates.arrays}
        if self.document_tokens is not None:
            arrays |= self.document_tokens.arrays("documents")
        for loss, provider in self.providers.items():
            arrays |= {f"{loss}.{name}": array for name, array in provider.arrays.items()}
        return arrays

    def forward(
        self, student: Student, tokens: Tokens, piece: np.ndarray, rows: np.ndarray, step: int
    ) -> dict[str, Tensor]:
        """What the terms of `piece`, a part of the batch `rows`, are computed from, by name; with gradient.

        `queries` are the student's embeddings before their normalisation, `(n, dim)`, `documents` a symmetric
        student's of the batch's candidates, `(m, dim)`; besides them what providers and running teachers make.
        """
        candidates = self._draw_candidates(rows, step)
        documents = _NONE if candidates is None else candidates.documents
        for provider in self.providers.values():
            provider.prepare(step, rows, candidates)
        tensors = self._embed(student, "queries", tokens, piece)
        if self.document_tokens is not None and len(documents):
            tensors |= self._embed(student, "documents", self.document_tokens, documents)
        for loss, provider in self.providers.items():
            tensors |= {f"{loss}.{name}": tensor for name, tensor in provider.forward(tokens, piece).items()}
        return tensors | self.teachers.forward(piece, documents)

    def _embed(self, student: Student, name: str, tokens: Tokens, rows: np.ndarray) -> dict[str, Tensor]:
        for loss, provider in self.providers.items():
            if (pair := provider.embed(tokens, rows)) is not None:
                embeddings, states = pair
                return {name: embeddings, f"{loss}.{name}.states": states}
        return {name: student.embed(tokens, rows)}

    def terms(
        self, student: Student, tensors: Mapping[str, Tensor], piece: np.ndarray, rows: np.ndarray, step: int
    ) -> dict[str, Tensor]:
        """The share of `piece` in each weighted term of the batch, by name: scalars."""
        candidates = self._draw_candidates(rows, step)
        documents = _NONE if candidates is None else candidates.documents
        targets = self.teachers.targets(tensors, piece, documents).measured_in(self.units)
        provided = {}
        for name, provider in self.providers.items():
            computed = {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
            provided[name] = provider.values({**tensors, **computed}, piece, documents)
        targets = replace(targets, provided=provided)
        outputs = Outputs(
            queries=student.normalised(tensors["queries"]),
            raw=tensors["queries"],
            documents=student.normalised(tensors["documents"]) if "documents" in tensors else None,
        ).measured_in(self.units)
        batch, labelled = self._batch(candidates, piece, rows, outputs.raw)
        terms: dict[str, Tensor] = {}
        fixed = targets.fixed()
        for name, loss in self.losses.items():
            loss_targets = targets if loss.moves_teacher else fixed
            values = [loss.values(outputs, loss_targets, batch)]
            values += [loss.values(outputs.truncate(dim), loss_targets.truncate(dim), batch) for dim in loss.dims]
            counted = labelled if Need.LABELS in loss.needs else len(rows)
            terms[name] = loss.weight * torch.stack(values).mean(dim=0).sum() / max(1, counted)
        return terms

    def _draw_candidates(self, rows: np.ndarray, step: int) -> CandidateBatch | None:
        if self.candidates is None:
            return None
        if self.last is None or self.last[0] != step or not np.array_equal(self.last[1], rows):
            self.last = step, rows, self.candidates.of(rows, step)
        return self.last[2]

    def _batch(
        self, candidates: CandidateBatch | None, piece: np.ndarray, rows: np.ndarray, like: Tensor
    ) -> tuple[Batch, int]:
        if candidates is None:
            nothing = torch.zeros((len(piece), 0), dtype=torch.bool, device=like.device)
            return Batch(nothing, nothing, nothing), 0
        positions = np.searchsorted(rows, piece)
        return candidates.batch(positions, like.device), int(candidates.label.sum())
