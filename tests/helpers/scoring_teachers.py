"""A late interaction model and a cross encoder that can train along with a student, and such students."""

from pathlib import Path
from typing import Any

import torch
from late_fakes import write_late_teacher
from rank_fakes import write_cross_teacher
from stages import FAST

from steps.retrieval.rankers import load_ranker

START = {"layers": [0, 1, -1]}
LAYERS = {"kind": "layer_distillation", "layers": 2, "temperature": 0.7}
LABELS = {"kind": "label_softmax", "temperature": 0.2, "own_candidates": True}


def joint(name: str, **changes: Any) -> dict[str, Any]:
    """A student with whom this teacher trains along on all of LEAD's losses."""
    taught = [
        {"kind": "teacher_label_softmax", "teacher": name, "temperature": 1.5},
        {"kind": "mutual_kl", "teacher": name, "temperature": 0.2, "teacher_temperature": 1.5},
        LAYERS | {"teacher": name},
    ]
    return FAST | {"start": START, "targets": "joint", "teacher_top_k": 2, "losses": [LABELS, *taught]} | changes


def write_scoring_teachers(root: Path, encoder: Path) -> None:
    """Write the teachers `late` and `cross` of a run; neither has scored anything."""
    write_late_teacher(root / "models/teach/late", encoder)
    tower = write_cross_teacher(root / "models/teach/cross", root / "encoder") / "tower"
    ranker: Any = load_ranker(tower)
    with torch.no_grad():
        ranker.model.classifier.weight.mul_(20)  # random networks tell texts apart by little
    ranker.save_pretrained(str(tower), create_model_card=False)
