"""Code in README and docs: Python compiles, JSON parses, commands are the shell's, and name what the project has.

Python of extending.md runs in tests/pipeline/test_extending.py, that of README and serving.md in tests/serving.
"""

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)
BLOCKS = [
    pytest.param(match[2], re.sub(rf"(?m)^{match[1]}", "", match[3]), id=f"{page.stem}-{number}")
    for page in PAGES
    for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), start=1)
]


def commands(block: str) -> str:
    """What a reader types: lines behind `$`, with the lines that go on from them, placeholders filled."""
    typed: list[str] = []
    terminator = ""  # of a document that a command reads
    for line in block.splitlines():
        if line.startswith("$ "):
            typed.append(line[2:])
            terminator = match[1] if (match := re.search(r"<<(\w+)", line)) else ""
        elif typed and (terminator or typed[-1].endswith("\\")):
            typed.append(line)
            terminator = "" if line == terminator else terminator
    return re.sub(r"<[a-z][\w ]*>", "x", "\n".join(typed))


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_a_block_is_what_it_says(language: str, block: str) -> None:
    match language:
        case "python":
            compile(block, "block", "exec")
        case "json":
            json.loads(block)
        case "javascript":
            pass  # tests/serving/test_without_python.py runs it
        case "console":
            typed = commands(block)
            assert typed
            subprocess.run(["bash", "-n"], input=typed, text=True, check=True)
            _check_names(typed)
        case _:
            raise AssertionError(f"no test knows blocks of {language}")


def _check_names(typed: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"(?m)(?:^|&& )make ([a-z-]+)", typed)) <= targets
    for module in re.findall(r"python -m ((?:steps|pipeline|bench)[\w.]*)", typed):
        assert find_spec(module), module
    for path in re.findall(r"(?<![\w/.])((?:recipes|containers|requirements)/[\w./-]+)", typed):
        assert (PROJECT / path).exists() or re.search(rf"\bcp \S+ {path}", typed), path
