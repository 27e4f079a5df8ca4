"""The README's Python, run as it stands but for folder and data set, finds what the release finds."""

import re
from pathlib import Path

import pytest

from steps.core.release import load_release

README = Path(__file__).parents[2] / "README.md"
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "models/release/" in block]


def test_readme_shows_both_ways() -> None:
    assert any("load_release" in block for block in BLOCKS)
    assert any("SentenceTransformer" in block and "faiss.read_index" in block for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_snippet_runs(block: str, released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = released / "models/release/2l"
    exec(block.replace("models/release/2l", str(folder)).replace("index/api/", "index/one/"), {})
    printed = capsys.readouterr().out
    release = load_release(folder)
    text = "running total along an axis"
    assert text in block
    vectors = release.encode([text]) if "load_release" in block else release.tower.encode_query([text])
    for hit in release.hits("one", vectors, 5)[0]:
        assert hit.id in printed
        assert hit.title in printed
