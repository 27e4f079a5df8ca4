"""What the saved configuration of a tower says, read without torch."""

from pathlib import Path
from typing import TypedDict

from steps.core.files import read_json


class TowerFacts(TypedDict):
    """Kinds of the modules in their order, pooling modes (none for a token table), normalisation, prompt by role."""

    modules: list[str]
    pooling: list[str]
    normalised: bool
    prompts: dict[str, str]


def tower_facts(tower: Path) -> TowerFacts:
    """Read `modules.json` and what it names in a sentence-transformers folder; UserError for a missing file."""
    modules = read_json(tower / "modules.json")
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


def query_pooling(facts: TowerFacts) -> str:
    """How a query tower makes one vector of its tokens'; a token table has no module for it and takes the mean."""
    return ", ".join(facts["pooling"]) or "mean"
