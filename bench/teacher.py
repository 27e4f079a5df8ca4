"""Where a run's teacher lies."""

from pathlib import Path

from steps.core.params import load_index_teacher


def index_teacher(root: Path = Path()) -> Path:
    """Folder of the teacher that made the index of the run in `root`."""
    return root / "models/teach" / load_index_teacher(root / "params.yaml")
