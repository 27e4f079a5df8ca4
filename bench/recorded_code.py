"""What each record of bench/results measures, and the digests of that code."""

import ast
import fnmatch
import hashlib
import io
import json
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from slimtower.common.errors import UserError
from slimtower.common.settings import Strict

RESULTS = Path("bench/results")
_HEX = 16  # digits of a digest that a record keeps


class RecordEntry(Strict):
    """What a record measures.

    `code`: packages, modules and files, such as steps.distill and params.yaml. `command`: what measures it again;
    `{name}` in it is the record's name without its folder.
    """

    code: list[str] = Field(min_length=1)
    command: str = Field(min_length=1)


def record_name(path: Path) -> str:
    """Its path below bench/results, without `.json`; its stem if it lies elsewhere."""
    _, found, below = path.with_suffix("").as_posix().rpartition(f"{RESULTS.as_posix()}/")
    return below if found else path.stem


def entry_of(name: str, records: Mapping[str, RecordEntry]) -> RecordEntry:
    """The first entry whose pattern a record's name matches, with the record's own command; UserError without any."""
    for pattern, entry in records.items():
        if fnmatch.fnmatchcase(name, pattern):
            return entry.model_copy(update={"command": entry.command.replace("{name}", name.rpartition("/")[2])})
    raise UserError(f"bench/expected.yaml: `records` has no entry for bench/results/{name}.json; add what it measures")


def origins(value: Any, code: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Each part of a record that names its commit, with the digests that stand beside it or above it."""
    if isinstance(value, dict):
        code = value.get("code_digests", code)
        if isinstance(value.get("git_commit"), str):
            yield {"git_commit": value["git_commit"], "code_digests": dict(code or {})}
        for item in value.values():
            yield from origins(item, code)
    elif isinstance(value, list):
        for item in value:
            yield from origins(item, code)


def code_digests(names: Iterable[str], root: Path = Path()) -> dict[str, str]:
    """A digest of each package, module or file below `root`; "" of one that is not there.

    Comments, docstrings and blank lines do not count, nor do layout and comments of a YAML file.
    """
    return {name: _digest(name, root) for name in names}


def _digest(name: str, root: Path) -> str:
    base = root / name if "/" in name or name.endswith(".yaml") else root.joinpath(*name.split("."))
    files = [path for path in (base, base.with_suffix(".py")) if path.is_file()] or sorted(base.rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\n{_essence_of(path)}\n".encode())
    return digest.hexdigest()[:_HEX] if files else ""


def _essence_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return essence(text)
    return json.dumps(yaml.safe_load(text), sort_keys=True, default=str) if path.suffix == ".yaml" else text


@cache
def essence(source: str) -> str:
    """Python source without comments, blank lines and strings that stand alone, as docstrings of fields do."""
    rows = source.splitlines(keepends=True)
    spans = [
        (token.start, token.end)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            spans.append(_span(node, rows))
    for (first_row, start), (last_row, end) in sorted(spans, reverse=True):
        rest = rows[last_row - 1][end:]
        rows[first_row - 1 : last_row] = [rows[first_row - 1][:start] + rest, *[""] * (last_row - first_row)]
    return "\n".join(row.rstrip() for row in rows if row.strip())


def _span(node: ast.stmt, rows: list[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a statement begins and ends: rows from 1, characters from 0."""
    end_row, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    starts = len(rows[node.lineno - 1].encode()[: node.col_offset].decode())
    return (node.lineno, starts), (end_row, len(rows[end_row - 1].encode()[:end].decode()))
