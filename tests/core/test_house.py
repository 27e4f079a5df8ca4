"""The house stays pleasant to live in: names say what they hold, no file is too long to be read at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]
FOLDERS = ("slimtower", "steps", "pipeline", "dags", "bench")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
LINES = 400  # of a file
CORE_LINES = 2200  # of steps/core, which holds what three or more packages of steps/ import themselves
SHARE = 0.015  # of all names that are bound
SAY_NOTHING = """
found each made own given said told asked known read wanted kept look what when held most least former other others one
now end begun whole some place places left lying drawn shown came come gone taken begins beside until besides apart
twice usual spoken
"""


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes, arguments, variables and attributes that a module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def test_names_say_what_they_hold() -> None:
    names = [name for path in FILES for name in bound_names(ast.parse(path.read_text(encoding="utf-8")))]
    empty = [name for name in names if name.strip("_").lower() in SAY_NOTHING.split()]
    assert len(names) > 20_000 and len(empty) <= SHARE * len(names), sorted(set(empty))


def test_no_file_is_too_long() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > LINES}


def imported(path: Path) -> Iterator[str]:
    """Names of modules, and of what may be one, that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_each_module_has_three_users() -> None:
    core = ROOT / "steps/core"
    users: dict[str, set[str]] = {f"steps.core.{path.stem}": set() for path in core.glob("[!_]*.py")}
    for path in (ROOT / "steps").rglob("*.py"):
        package = path.relative_to(ROOT / "steps").parts[0]
        for name in imported(path):
            if name in users and package != "core":
                users[name].add(package)
    assert not {module: packages for module, packages in users.items() if len(packages) < 3}
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in core.glob("*.py")) <= CORE_LINES
