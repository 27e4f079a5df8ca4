"""dvc.yaml as a graph of tasks: every stage, or cell of a matrix, and what it waits for. Reads YAML, never runs DVC.

A stage waits for another when one of its dependencies is, contains or lies in one of the other's outputs: DVC's rule.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

_TEMPLATE = re.compile(r"\$\{\s*([\w.\-]+)\s*\}")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_WORDS = re.compile(r"[\w, -]+")  # not a place of data, nor a template


class SettingsError(ValueError):
    """A deployment, dvc.yaml, params.yaml or a recipe cannot be used; one line names file and key, and says why."""


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml or one cell of its matrix."""

    name: str
    cell: str = ""
    deps: frozenset[PurePosixPath] = field(default=frozenset(), repr=False)
    outs: frozenset[PurePosixPath] = field(default=frozenset(), repr=False)

    @property
    def address(self) -> str:
        """How DVC calls it: `teach`, `distill@2l`."""
        return f"{self.name}@{self.cell}" if self.cell else self.name

    @property
    def task_id(self) -> str:
        """How Airflow calls it: `teach`, `distill-2l`."""
        return self.address.replace("@", "-")


@dataclass(frozen=True)
class Graph:
    """Stages by address, in the order of dvc.yaml, and the addresses that each one waits for.

    `steps` names all that dvc.yaml has, also one whose matrix is empty and which is therefore no stage.
    """

    stages: dict[str, Stage]
    upstream: dict[str, frozenset[str]]
    steps: frozenset[str]

    @property
    def roots(self) -> list[str]:
        return [address for address, before in self.upstream.items() if not before]

    @property
    def direct(self) -> dict[str, frozenset[str]]:
        """`upstream` without what a stage already waits for through another one (the transitive reduction)."""
        behind: dict[str, frozenset[str]] = {}  # each: all that end before it starts
        try:
            order = list(TopologicalSorter(self.upstream).static_order())
        except CycleError as error:
            raise SettingsError(f"dvc.yaml: stages wait for each other: {', '.join(error.args[1])}") from None
        for address in order:
            before = self.upstream[address]
            behind[address] = before.union(*(behind[earlier] for earlier in before))
        return {
            address: before - frozenset[str]().union(*(behind[earlier] for earlier in before))
            for address, before in self.upstream.items()
        }

    @property
    def leaves(self) -> list[str]:
        awaited = frozenset[str]().union(*self.upstream.values())
        return [address for address in self.stages if address not in awaited]


def read_graph(root: Path, recipe: str = "", variables: Mapping[str, str] | None = None) -> Graph:
    """The graph of a project with a recipe, filled with `variables`, laid over it; SettingsError names the fault."""
    params = read_mapping(root / "params.yaml")
    if recipe:
        params = overlay(params, _recipe(root / recipe, variables or {}))
    stages: dict[str, Stage] = {}
    entries = read_mapping(root / "dvc.yaml").get("stages", {})
    for name, entry in entries.items():
        for stage in _cells(name, entry, params):
            if stage.task_id in {existing.task_id for existing in stages.values()}:
                raise SettingsError(f"dvc.yaml: two stages would be the task {stage.task_id}; rename one")
            stages[stage.address] = stage
    if not stages:
        raise SettingsError(f"{root / 'dvc.yaml'}: no stages; dags/ must lie in a checkout of the project")
    upstream = {
        consumer.address: frozenset(
            producer.address
            for producer in stages.values()
            if producer is not consumer and any(_touch(dep, out) for dep in consumer.deps for out in producer.outs)
        )
        for consumer in stages.values()
    }
    return Graph(stages, upstream, frozenset(entries))


def read_variables(root: Path, recipe: str = "") -> list[str]:
    """Names of the `${NAME}`s that a recipe of the project in `root` reads, sorted, but for those of the window."""
    names = {match[1] for match in _VARIABLE.finditer(_uncommented(root / recipe))} if recipe else set()
    return sorted(names - {"SINCE", "UNTIL"})


def all_variables(root: Path, recipe: str = "") -> list[str]:
    """The same of all recipes of the project, any of which a run may name, and of `recipe`."""
    names = {f"recipes/{path.name}" for path in (root / "recipes").glob("*.yaml")} | {recipe}
    return sorted({variable for name in names for variable in read_variables(root, name)})


def overlay(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it: mappings merge, everything else replaces, and so does a student's start."""
    merged = dict(base)
    for key, value in change.items():
        old, replaces = merged.get(key), key == "start"  # of two starts in one mapping none would count
        merged[key] = (
            overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) and not replaces else value
        )
    return merged


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a file of YAML. Raises SettingsError."""
    return _parsed(_text(path), path)


def _recipe(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """A recipe with its `${VARIABLE}`s filled: by words, which may name stages, else by their defaults."""

    def filled(match: re.Match) -> str:
        value = variables.get(match[1], "")
        return value if value and _WORDS.fullmatch(value) else match[2] or ""

    return _parsed(_VARIABLE.sub(filled, _uncommented(path)), path)


def _uncommented(path: Path) -> str:
    return "\n".join(line for line in _text(path).splitlines() if not line.lstrip().startswith("#"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); is it in the checkout?") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path}: must be a mapping, is {type(loaded).__name__}")
    return loaded


def _cells(name: str, entry: dict[str, Any], params: dict[str, Any]) -> Iterator[Stage]:
    """The stage itself, or the cells of its `foreach` or `matrix`, named as DVC names them."""
    if "matrix" in entry:
        axes = {axis: _resolved(values, params, name) for axis, values in entry["matrix"].items()}
        for picked in itertools.product(*(enumerate(values) for values in axes.values())):
            item = {axis: value for axis, (_, value) in zip(axes, picked, strict=True)}
            keys = (
                f"{axis}{at}" if isinstance(value, dict | list) else str(value)
                for axis, (at, value) in zip(axes, picked, strict=True)
            )
            cell = "-".join(keys)
            yield _stage(name, cell, entry, params | {"item": item, "key": cell})
    elif "foreach" in entry:
        items = _resolved(entry["foreach"], params, name)
        if isinstance(items, list):
            plain = not any(isinstance(item, dict | list) for item in items)
            items = {str(item) if plain else str(at): item for at, item in enumerate(items)}
        for cell, item in items.items():
            yield _stage(name, str(cell), entry["do"], params | {"item": item, "key": cell})
    else:
        yield _stage(name, "", entry, params)


def _stage(name: str, cell: str, entry: dict[str, Any], context: dict[str, Any]) -> Stage:
    def paths(*keys: str) -> frozenset[PurePosixPath]:
        items = (item for key in keys for item in entry.get(key, []))
        names = (next(iter(item)) if isinstance(item, dict) else item for item in items)
        return frozenset(PurePosixPath(str(_resolved(path, context, name))) for path in names)

    return Stage(name, cell, paths("deps"), paths("outs", "metrics", "plots"))


def _resolved(value: Any, context: dict[str, Any], stage: str) -> Any:
    """A value with its `${key.of.params}` filled in; a lone one keeps the type of what it names."""
    if isinstance(value, list):
        return [_resolved(item, context, stage) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item, context, stage) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if lone := _TEMPLATE.fullmatch(value):
        return _look_up(lone[1], context, stage)
    return _TEMPLATE.sub(lambda match: str(_look_up(match[1], context, stage)), value)


def _look_up(path: str, context: dict[str, Any], stage: str) -> Any:
    value: Any = context
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            raise SettingsError(f"params.yaml: {path} is not there; stage {stage} of dvc.yaml names it")
        value = value[part]
    return value


def _touch(first: PurePosixPath, second: PurePosixPath) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)
