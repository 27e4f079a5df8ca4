"""A teacher of scores that trains along with a student (LEAD, Sec. 3.4): what it says of a batch's candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.files import write_json
from steps.distill.candidates import Candidates
from steps.distill.losses.base import LayerTargets, Scores, Targets
from steps.distill.targets import StoredTeachers
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast, device
from steps.scorers.base import Network


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
