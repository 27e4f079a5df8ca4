"""Before anything is taught: do the index's teacher's layers suit the students that start from them?"""

from pathlib import Path

from pipeline.params import Params
from slimtower.common.errors import UserError
from steps.distill.starts import Layers
from steps.teach.kinds.dual_encoder import DualEncoder


def check_layers(params: Params) -> None:
    """UserError for students that start from layers which a teacher in a folder here does not have.

    The network is built without weights. What cannot be read is left to `teach`, which says why.
    """
    starts = {name: params.distill.student[name].start for name in params.distill.students}
    layered = {name: start.layers for name, start in starts.items() if isinstance(start, Layers)}
    teacher = params.teach.described(params.teach.index)
    if not layered or not isinstance(teacher, DualEncoder) or not Path(teacher.base).is_dir():
        return
    depth = _depth(Path(teacher.base))
    if isinstance(depth, str):
        remaining = ", ".join(name for name in starts if name not in layered) or "none of them"
        raise UserError(
            f"params.yaml: distill.students: {', '.join(layered)} cannot start from the layers of {teacher.base}, as no"
            f" list of layers is found in {depth}; of your students can start: {remaining}; let the others start from"
            " static, base or fresh"
        )
    for name, layers in layered.items():
        if depth is not None and (outside := [layer for layer in layers if not -depth <= layer < depth]):
            raise UserError(
                f"params.yaml: distill.student.{name}: layers {outside} do not exist; those of {teacher.base} are 0 to"
                f" {depth - 1}"
            )


def _depth(base: Path) -> int | str | None:
    """How many layers a model's transformer lists; the network's kind if none, None where it cannot be built."""
    import torch
    from transformers import AutoConfig, AutoModel

    from steps.distill.initialisation import blocks_of

    folder = next((path.parent for path in sorted(base.glob("**/config.json")) if _names_network(path)), None)
    if folder is None:
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            network = AutoModel.from_config(config, trust_remote_code=False)
    except Exception:
        return None
    try:
        return len(blocks_of(network, base)[2])
    except UserError:
        return type(network).__name__


def _names_network(path: Path) -> bool:
    """Whether a config.json is that of a network of transformers."""
    return '"model_type"' in path.read_text(encoding="utf-8", errors="replace")
