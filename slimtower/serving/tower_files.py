"""What the saved configuration of a tower says, read without torch."""

from pathlib import Path
from typing import TypedDict

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, read_json
from slimtower.common.names import ROLES, Role, inner_path


class TowerFacts(TypedDict):
    """Kinds of the modules in their order, pooling modes (none for a token table), normalisation, prompt by role."""

    modules: list[str]
    pooling: list[str]
    normalised: bool
    prompts: dict[str, str]


def tower_facts(tower: Path, role: Role) -> TowerFacts:
    """Read what a sentence-transformers folder, or a Router's route, says of the tower that reads a role's texts."""
    modules = [(kind, path) for kind, path in _modules(tower, role) if kind != "Router"]
    kinds = [kind for kind, _ in modules]
    configs = [read_json(path / "config.json") for kind, path in modules if kind == "Pooling"]
    return {
        "modules": kinds,
        "pooling": [str(config.get("pooling_mode", "mean")) for config in configs],
        "normalised": "Normalize" in kinds,
        "prompts": read_json(tower / "config_sentence_transformers.json").get("prompts", {}),
    }


def transformer_layers(tower: Path, role: Role) -> int | None:
    """Layers of the transformer that reads texts of a role; 0 for a tower without one, None if its config is silent."""
    for kind, path in _modules(tower, role):
        if kind == "Transformer":
            config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
            names = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
            return next((config[name] for name in names if isinstance(config.get(name), int)), None)
    return 0


def tower_bytes(tower: Path, role: Role) -> int:
    """Size in bytes of a tower's folder; of a Router without what only another route reads."""
    own_folders = {path for _, path in _modules(tower, role)}
    total = folder_bytes(tower)
    for folder in {path for route in ROLES for _, path in _modules(tower, route)} - own_folders:
        total -= folder_bytes(folder)
    return total


def _modules(tower: Path, role: Role) -> list[tuple[str, Path]]:
    """Kind and folder of the modules that read texts of a role, a Router before those of its route."""
    modules = []
    for module in read_json(tower / "modules.json"):
        kind, path = _class_name(module["type"]), _inside(tower, module.get("path") or "")
        modules.append((kind, path))
        if kind == "Router":
            routes = read_json(path / "router_config.json")
            modules += [(_class_name(routes["types"][name]), _inside(path, name)) for name in routes["structure"][role]]
    return modules


def _class_name(reference: str) -> str:
    return reference.rpartition(".")[2]


def _inside(tower: Path, path: str) -> Path:
    """The folder of a module; UserError for one outside the tower's."""
    try:
        return tower / inner_path(path) if path else tower  # empty: the folder itself
    except ValueError as error:
        raise UserError(
            f"{tower}/modules.json: path {path!r}: {error}; run `dvc repro` to make the tower again"
        ) from None


def query_pooling(facts: TowerFacts) -> str:
    """How a query tower makes one vector of its tokens'; a token table has no module for it and takes the mean."""
    return ", ".join(facts["pooling"]) or "mean"
