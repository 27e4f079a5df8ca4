"""steps/core holds what three or more packages of steps/ import themselves, and is small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

STEPS = Path(__file__).parents[2] / "steps"
LINES = 2200


def imported(path: Path) -> Iterator[str]:
    """Names of modules, and of what may be one, that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.medium
def test_each_module_has_three_users() -> None:
    core = STEPS / "core"
    users: dict[str, set[str]] = {f"steps.core.{path.stem}": set() for path in core.glob("[!_]*.py")}
    for path in STEPS.rglob("*.py"):
        package = path.relative_to(STEPS).parts[0]
        for name in imported(path):
            if name in users and package != "core":
                users[name].add(package)
    assert not {module: packages for module, packages in users.items() if len(packages) < 3}
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in core.glob("*.py")) <= LINES
