"""What the saved configuration of a tower says, read without torch."""

from pathlib import Path
from typing import TypedDict

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.names import inner_path


class TowerFacts(TypedDict):
    """Kinds of the modules in their order, pooling modes (none for a token table), normalisation, prompt by role."""

    modules: list[str]
    pooling: list[str]
    normalised: bool
    prompts: dict[str, str]


def tower_facts(tower: Path) -> TowerFacts:
    """Read `modules.json` and what it names in a sentence-transformers folder; UserError for a missing file.

    UserError, too, for a module that lies elsewhere.
    """
    modules = read_json(tower / "modules.json")
    for module in modules:
        if path := module.get("path"):  # empty: the folder itself
            _check_inside(tower, path)
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    pooling = [
        str(read_json(tower / module["path"] / "config.json").get("pooling_mode", "mean"))
        for module, kind in zip(modules, kinds, strict=True)
        if kind == "Pooling"
    ]
    return {
        "modules": kinds,
        "pooling": pooling,
        "normalised": "Normalize" in kinds,
        "prompts": read_json(tower / "config_sentence_transformers.json").get("prompts", {}),
    }


def _check_inside(tower: Path, path: str) -> None:
    try:
        inner_path(path)
    except ValueError as error:
        raise UserError(
            f"{tower}/modules.json: path {path!r}: {error}; run `dvc repro` to make the tower again"
        ) from None


def query_pooling(facts: TowerFacts) -> str:
    """How a query tower makes one vector of its tokens'; a token table has no module for it and takes the mean."""
    return ", ".join(facts["pooling"]) or "mean"
