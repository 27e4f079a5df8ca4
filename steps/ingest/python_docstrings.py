"""Docstrings of an installed package, read from its source files without importing it."""

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError

# numpy.distutils is only in the wheels for Python 3.11: the corpus must not depend on Python's version
_SKIPPED_PARTS = {"tests", "test", "testing", "conftest", "vendored", "vendor", "benchmarks", "setup", "distutils"}
_WORD = re.compile(r"\w+")


class Docstring(NamedTuple):
    """A public object and its docstring; `module` is the public module that offers it."""

    module: str
    name: str  # qualified inside its module: `Class.method`
    text: str

    @property
    def title(self) -> str:
        """The name under which a user finds the object."""
        return f"{self.module}.{self.name}"


def package_folder(package: str, key: str) -> Path:
    """Folder of an installed package; UserError naming the key of params.yaml when there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"params.yaml: {key}: the package {package!r} is not installed; install it or take it off the list"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def source_paths(folder: Path) -> list[str]:
    """Paths of the package's files inside its folder, sorted, without tests and vendored copies."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.py"))
    return sorted(path.as_posix() for path in paths if not any(map(_skipped, path.with_suffix("").parts)))


def _skipped(part: str) -> bool:
    return part in _SKIPPED_PARTS or part.startswith(("_vendor", "test_"))


def docstrings(package: str, folder: Path, path: str) -> list[Docstring]:
    """Docstrings of the public functions, classes and methods of one file, in its order; SyntaxError as Python's.

    An object of a private module (`numpy._core.fromnumeric.cumsum`) is public when the source of its nearest public
    package spells its name; that package is then its module (`numpy.cumsum`).
    """
    module = module_parts(package, path)
    public = public_parts(module)
    if not public:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's docstrings
        tree = ast.parse((folder / path).read_bytes())
    file_docstrings = [Docstring(".".join(public), name, text) for name, text in _definitions(tree.body, "")]
    if public == module:
        return file_docstrings
    offered = _words_of(folder.joinpath(*public[1:], "__init__.py"))
    return [docstring for docstring in file_docstrings if docstring.name.partition(".")[0] in offered]


@lru_cache(maxsize=64)
def _words_of(path: Path) -> frozenset[str]:
    return frozenset(_WORD.findall(path.read_text("utf-8", errors="replace"))) if path.is_file() else frozenset()


def module_parts(package: str, path: str) -> tuple[str, ...]:
    """Dotted name of a file as parts: `fft/__init__.py` of numpy is (numpy, fft)."""
    parts = tuple(path.removesuffix(".py").split("/"))
    return (package, *(parts[:-1] if parts[-1] == "__init__" else parts))


def public_parts(module: tuple[str, ...]) -> tuple[str, ...]:
    """The parts before the first private one."""
    private = next((at for at, part in enumerate(module) if part.startswith("_")), len(module))
    return module[:private]


def _definitions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions(node.body, prefix)
            yield from _definitions(node.orelse, prefix)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            text = ast.get_docstring(node)
            if text:
                yield prefix + node.name, text
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif not prefix and (attached := _attached(node)):
            yield attached


def _attached(node: ast.stmt) -> tuple[str, str] | None:
    """Name and text of `add_docstr(torch.cumsum, text)` and `add_newdoc(place, "arange", text)`.

    This is how packages document what they write in C.
    """
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) >= 2):
        return None
    call = node.value
    function = call.func.id if isinstance(call.func, ast.Name) else ""
    target = call.args[0]
    if function == "add_docstr" and isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        name, text = target.attr, _constant_text(call.args[1])
    elif function == "add_newdoc" and isinstance(call.args[-2], ast.Constant):
        owner, value = call.args[-2].value, call.args[-1]
        name = owner if isinstance(owner, str) else ""
        if isinstance(value, ast.Tuple) and len(value.elts) == 2 and isinstance(value.elts[0], ast.Constant):
            name, value = f"{name}.{value.elts[0].value!s}", value.elts[1]
        text = _constant_text(value)
    else:
        return None
    public = bool(name) and not any(part.startswith("_") for part in name.split("."))
    return (name, text) if public and text else None


def _constant_text(node: ast.expr) -> str:
    """The text of a string literal, of a sum of them, or of either with `.format(...)` unapplied; else empty."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _constant_text(node.left) + _constant_text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _constant_text(node.func.value)
    return ""
