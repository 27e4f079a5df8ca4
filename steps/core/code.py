"""Which code a result was computed by: what a cache or a checkpoint must not outlive."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def code_digest(*modules: str) -> str:
    """Hex sha256 of the source of modules and of their `closure`; ValueError for a module that is not there."""
    digest = hashlib.sha256()
    for module in sorted(closure(*modules)):
        digest.update(f"{module}\n".encode() + _file(module).read_bytes())
    return digest.hexdigest()


def closure(*modules: str) -> set[str]:
    """The modules and all of the project that they import, directly or indirectly, at any place of a file.

    Imports for type checkers alone (`if TYPE_CHECKING`) do not count. ValueError for a module that is not there, and
    for a relative import.
    """
    visited: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in visited:
            visited.add(module)
            waiting += _imported(module)
    return visited


@cache
def _imported(module: str) -> list[str]:
    """Modules of the project that a module imports anywhere in its file."""
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    names: list[str] = []
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                raise ValueError(f"{module}: line {node.lineno}: a relative import; name the module in full")
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.partition(".")[0] in {"slimtower", "steps", "pipeline"} and _path(name)]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of `if TYPE_CHECKING` blocks."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _walk(child)


def _file(module: str) -> Path:
    if (path := _path(module)) is None:
        raise ValueError(f"{module}: no module of this project")
    return path


def _path(module: str) -> Path | None:
    base = _ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
