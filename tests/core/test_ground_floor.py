"""steps/core holds what three or more packages of steps/ use, themselves or through another module of it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

STEPS = Path(__file__).parents[2] / "steps"


def imported(path: Path) -> Iterator[str]:
    """Names of modules, and of what may be one, that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_each_module_has_three_users() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for path in sorted(STEPS.rglob("*.py")):
        for name in imported(path):
            users[name].add(".".join(("steps", *path.relative_to(STEPS).with_suffix("").parts)))

    def packages(module: str, seen: frozenset[str]) -> set[str]:
        found: set[str] = set()
        for user in users[module] - seen:
            package = user.split(".")[1]
            found |= packages(user, seen | {user}) if package == "core" else {package}
        return found

    modules = [f"steps.core.{path.stem}" for path in (STEPS / "core").glob("*.py") if path.stem != "__init__"]
    assert not {module: found for module in modules if len(found := packages(module, frozenset({module}))) < 3}
