"""The loss of attention maps: feature distillation, FD in LEAD, Sec. 4.3.2, after VIRT (Li et al. 2021)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.distill.losses.base import Batch, Loss, Outputs, Targets
from steps.distill.providers import Provider, Setting
from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision, device


class Attention(Loss):
    """`mean_{l,h} 1/|q| sum_x ||a^t_lhx - a^s_lhx||^2`: how tokens x of a text look at it, in layer l and head h.

    Each layer of a student of M layers is compared with every (N/M)th of the teacher's N.
    """

    takes_teacher: ClassVar[bool] = True
    is_single: ClassVar[bool] = True
    looks_inside: ClassVar[bool] = True
    undivided: ClassVar[str] = "compares maps"

    kind: Literal["attention"]
    """The attention maps of the query tower, which runs along; for start: {layers: [...]} alone. Another `teacher`, of
    the same tokens, reads the query and no document.
    """

    def provider(self, setting: Setting) -> Provider:
        from steps.encoders.towers import load_tower  # seconds: params are read without it

        if not self.teacher:
            network = getattr(load_tower(setting.teacher, "query")[0], "auto_model", None)
            return AttentionMaps(setting.student, network, setting.precision)
        folder = setting.teacher.parents[1] / self.teacher / "tower"
        network = other_network(folder, setting.student)
        return AttentionMaps(setting.student, network, setting.precision, fingerprint(folder).id)

    def complain_of_start(self, start: str) -> str:
        return "" if start == "layers" else "compares maps over the teacher's tokens; use start: {layers: [...]}"

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        student, teacher = targets.provided[self.name]
        distances = (teacher - student).square().sum(dim=(3, 4)).mean(dim=(1, 2))
        looking = (teacher.sum(dim=4) > 0).sum(dim=3).amax(dim=(1, 2))
        return distances / torch.clamp(looking, min=1)


class AttentionMaps(Provider):
    """A student and a teacher's transformer, frozen; both compute plain attention from here on."""

    def __init__(self, student: Any, network: Any, precision: Precision, teacher: str = "") -> None:
        """UserError for another number of heads, or none; `teacher`: hex fingerprint of one that is not the index's."""
        self.network, self.precision, self.teacher = network, precision, teacher
        if not hasattr(student, "features") or self.network is None:  # a table of tokens has no attention
            raise UserError(
                "distill.student: the loss attention compares transformers; start from layers of the teacher"
            )
        self.student = student
        heads = [network.config.num_attention_heads for network in (self.network, student.network)]
        if heads[0] != heads[1]:
            raise UserError(
                f"distill.student: the loss attention compares head by head, but the teacher has {heads[0]} and the"
                f" student {heads[1]}; start from layers of the teacher"
            )
        for network in (self.network, student.network):
            network.set_attn_implementation("eager")
        depth, student_depth = (network.config.num_hidden_layers for network in (self.network, student.network))
        self.layers = [(layer + 1) * depth // student_depth - 1 for layer in range(student_depth)]

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"teacher": np.frombuffer(bytes.fromhex(self.teacher), dtype=np.uint8)} if self.teacher else {}

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> tuple[Tensor, Tensor]:
        return tensors["student"], tensors["teacher"]

    def forward(self, tokens: Tokens, rows: np.ndarray) -> dict[str, Tensor]:
        """Maps of `student`, with gradient, and `teacher`, its every (N/M)th: `(n, layers, heads, length, length)`."""
        from steps.encoders.towers import autocast

        features = self.student.features(tokens, rows)
        with torch.no_grad(), autocast(self.precision):
            teacher_maps = attention_maps(self.network, features)[:, self.layers]
        return {"student": attention_maps(self.student.network, features), "teacher": teacher_maps}


def other_network(folder: Path, student: Any) -> Any:
    """The transformer of a teacher of any kind; UserError without one, or if its tokens are not the student's."""
    from transformers import AutoModel, AutoTokenizer

    from steps.encoders.model_loading import loading

    with loading(folder, "a teacher of this run, which has trained: the loss attention compares with a transformer"):
        network: Any = AutoModel.from_pretrained(str(folder), trust_remote_code=False, dtype=torch.float32)
        vocabulary = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False).get_vocab()
    if not student.tower.tokenizer.get_vocab().items() <= vocabulary.items():
        raise UserError(
            f"{folder}: has other tokens than the student, so no attention maps to compare; name a teacher that began"
            " as the index's did"
        )
    return network.to(device()).eval()


def attention_maps(network: Any, features: dict[str, Tensor]) -> Tensor:
    """How much each token looks at each other one, `(n, layers, heads, length, length)`; 0 for rows of padding."""
    maps = torch.stack(network(**features, output_attentions=True).attentions, dim=1)
    return maps.float() * features["attention_mask"][:, None, None, :, None]
