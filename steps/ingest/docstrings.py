"""Docstrings of an installed package, read without importing it: summaries as queries, the rest as documents."""

import ast
import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError

SUMMARY_WORDS = 40  # a longer first paragraph is prose: its first sentence is the summary
_ROLE = re.compile(r":[a-zA-Z][\w:+-]*:`~?[._]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}")
_MARK = re.compile(r"`\.(?=[A-Za-z])|`{1,2}(?:\\(?=\w)|_{1,2}(?!\w))?|\*\*(?=\S)|(?<=\S)\*\*|\[(?=`)|(?<=`)\]|(?<=`)~")
_TEMPLATE = re.compile(r"%\(\w+\)s|\$\{\w+\}|\{\w+\}")
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(\s*->\s*.+|\s*-->?)?$", re.DOTALL)
_UNDERLINE = re.compile(r"^\s*([-=~^\"*#+])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"^\s*\.\.\s+(?:[\w:-]+::|_[^:]+:|\[\w+\])\s*")
_VERSION = re.compile(r"^\s*\.\.\s+(?:version\w+|deprecated|currentmodule|index|rubric|plot|testcode)::")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_DROPPED_SECTIONS = {"see also", "examples", "example", "references"}  # other objects' summaries, code, citations
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


def docstrings(package: str, folder: Path, path: str) -> list[Docstring]:
    """Docstrings of the public functions, classes and methods of one file, in its order; SyntaxError as Python's.

    An object of a private module (`numpy._core.fromnumeric.cumsum`) is public when the source of its nearest public
    package spells its name; that package is then its module (`numpy.cumsum`).
    """
    parts = path.removesuffix(".py").split("/")
    module = [package, *(parts[:-1] if parts[-1] == "__init__" else parts)]  # fft/__init__.py of numpy: numpy, fft
    public = list(takewhile(lambda part: not part.startswith("_"), module))
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


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """(summary, content) of a docstring, markup lightly cleaned; None where either is missing or a template.

    The summary is the first paragraph that is no signature, as one line; the content never repeats it.
    """
    paragraphs = [part for part in re.split(r"\n\s*\n", inspect.cleandoc(docstring)) if part.strip()]
    while paragraphs and _SIGNATURE.match(paragraphs[0].strip()):
        del paragraphs[0]
    if len(paragraphs) < 2 and not (paragraphs and len(paragraphs[0].split()) > SUMMARY_WORDS):
        return None
    first = " ".join(paragraphs[0].split())
    rest = paragraphs[1:]
    if len(first.split()) > SUMMARY_WORDS:
        sentences = _SENTENCE.split(first, maxsplit=1)
        first, rest = sentences[0], [*sentences[1:], *rest]
    if _TEMPLATE.search(first) or _DIRECTIVE.match(first) or first.startswith((">>>", ":")):
        return None
    summary = " ".join(plain(first).split()).rstrip(" :")
    content = without_phrase(_content(rest), summary)
    return (summary, content) if summary and content else None


def plain(text: str) -> str:
    """The text without reStructuredText and Markdown marks: roles, links, literals, emphasis."""
    text = _ROLE.sub(lambda match: match[1], text)
    text = _LINK.sub(lambda match: match[1], text)
    return _MARK.sub("", _TEMPLATE.sub("", text))


def without_phrase(text: str, phrase: str) -> str:
    """The text without any occurrence of the phrase, whatever its case, spacing and punctuation."""
    tokens = re.findall(r"\w+", phrase)
    lower = text.lower()
    if not tokens or not all(token.lower() in lower for token in tokens):
        return text  # the usual case, without the cost of a pattern
    pattern = re.compile(r"\b" + r"[\W_]+".join(map(re.escape, tokens)) + r"\b[.!]?", re.IGNORECASE)
    return "\n\n".join(part for paragraph in pattern.sub("", text).split("\n\n") if (part := paragraph.strip()))


def cut_words(text: str, limit: int) -> str:
    """The first `limit` words, paragraphs kept."""
    paragraphs: list[str] = []
    for paragraph in text.split("\n\n"):
        words = paragraph.split()[:limit]
        limit -= len(words)
        if words:
            paragraphs.append(" ".join(words))
    return "\n\n".join(paragraphs)


def _content(paragraphs: list[str]) -> str:
    selected: list[str] = []
    dropping = False
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        if len(lines) > 1 and _UNDERLINE.match(lines[1]):
            dropping = lines[0].strip().lower() in _DROPPED_SECTIONS
            lines = lines[2:]
        elif lines[0].strip().rstrip(":").lower() in _DROPPED_SECTIONS and lines[0].rstrip().endswith(":"):
            continue
        if not dropping and (text := _paragraph(lines)):
            selected.append(text)
    return "\n\n".join(selected)


def _paragraph(lines: list[str]) -> str:
    selected = []
    for line in lines:
        if line.lstrip().startswith((">>>", "```")):
            break  # code and its output run to the end of their paragraph
        if _VERSION.match(line) or _UNDERLINE.match(line):
            continue
        selected.append(_DIRECTIVE.sub("", line))
    return " ".join(plain(" ".join(selected)).split())


def _skipped(part: str) -> bool:
    return part in _SKIPPED_PARTS or part.startswith(("_vendor", "test_"))


@lru_cache(maxsize=64)
def _words_of(path: Path) -> frozenset[str]:
    return frozenset(_WORD.findall(path.read_text("utf-8", errors="replace"))) if path.is_file() else frozenset()


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
    """Name and text of `add_docstr(torch.cumsum, text)` and `add_newdoc(place, "arange", text)`, for what is in C."""
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
