"""Tiny late interaction teachers."""

from pathlib import Path

from teach_fakes import PARAMS

from slimtower.common.files import write_json
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.late_interaction import late_interaction_model

LATE = LateInteraction.model_validate(
    PARAMS.model_dump(include=set(LateInteraction.model_fields))
    | {"kind": "late_interaction", "dim": 8, "temperature": 0.5, "hard_negatives": "softmax"}
)


def write_late_teacher(folder: Path, base: Path) -> Path:
    """What `teach` leaves of an untrained one of 8 dimensions a token; returns the folder."""
    model = late_interaction_model(LATE.model_copy(update={"base": str(base)}))
    model.save_pretrained(str(folder / "tower"), create_model_card=False)
    write_json(folder / "report.json", {"kind": "late_interaction"})
    return folder
