"""Which stages DVC would run, and which of them it would restore from its cache instead."""

from dataclasses import dataclass, field
from typing import Any

from dvc.exceptions import DvcException


@dataclass
class Pending:
    """Stages that changed, or have not run yet, or read what such a stage makes."""

    run: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)  # an equal run's outputs are in DVC's cache

    @property
    def count(self) -> int:
        return len(self.run) + len(self.restored)


def ask_dvc(targets: list[str]) -> tuple[list[str], bool]:
    """Names of all stages, cells of a matrix each for itself, and whether DVC would run none of the `targets`.

    A pipeline that DVC cannot read has no stages: `dvc repro` says why.
    """
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            names = [stage.addressing for stage in repo.index.stages]
            return names, not repo.status(targets=targets or None, with_deps=bool(targets))
    except DvcException:
        return [], False


def pending(stages: list[str], targets: list[str]) -> Pending:
    """What is left of the `targets` (of all if there are none) and what they read; all `stages` if DVC cannot tell."""
    from dvc.repo import Repo
    from networkx import topological_sort

    result, outs = Pending(), dict[str, Any]()  # path -> hash of what the stages that are restored make
    try:
        with Repo() as repo:
            graph = repo.index.graph  # from each stage to those that it reads from
            changed = {stage.addressing for name in repo.status() for stage in repo.stage.collect(name)}
            needed = {node for name in targets for node in repo.stage.collect(name, with_deps=True)} or set(graph)
            for stage in reversed([node for node in topological_sort(graph) if node in needed]):
                upstream = {node.addressing for node in graph.successors(stage)}
                if stage.addressing not in changed and not upstream & (result.run | result.restored):
                    continue
                hashes = None if upstream & result.run else _restored(repo, stage, outs)
                if hashes is None:
                    result.run.add(stage.addressing)
                else:
                    result.restored.add(stage.addressing)
                    outs |= hashes
    except DvcException:
        return Pending(set(stages))
    return result


def _restored(repo: Any, stage: Any, outs: dict[str, Any]) -> dict[str, Any] | None:
    """Hashes of the outputs that DVC's cache has of an equal run; None if it has none, or that cannot be told yet.

    `outs` are those of the restored stages before it: what reads one that is not in the workspace yet cannot be told.
    """
    try:
        for dep in stage.deps:
            if any(
                _touch(dep.def_path, out) and _in_workspace(repo, out) != hash_info for out, hash_info in outs.items()
            ):
                return None
            dep.save()
        entry = repo.stage_cache._load(stage)
        cached = entry and repo.stage_cache._create_stage(entry, wdir=stage.wdir)
        return {out.def_path: out.hash_info for out in cached.outs} if cached and cached.outs_cached() else None
    except (OSError, DvcException):
        return None


def _in_workspace(repo: Any, path: str) -> Any:
    """The hash of an output as it is on disk; None if it is not there."""
    (out,) = repo.find_outs_by_path(path, strict=True)
    return out.get_hash() if out.exists else None


def _touch(path: str, other_path: str) -> bool:
    """Whether the paths are equal, or one lies below the other."""
    return f"{path}/".startswith(f"{other_path}/") or f"{other_path}/".startswith(f"{path}/")
