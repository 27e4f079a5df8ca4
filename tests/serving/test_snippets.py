"""The Python of README and docs/serving.md, as it stands but for folder and data set, finds what the release finds."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import pytest
from stages import INDEX, run_release

from slimtower.serving.dims import truncate
from slimtower.serving.index_files import shards_of
from slimtower.serving.release import load_release
from steps.evaluate.systems import student_tower

pytestmark = pytest.mark.medium

PROJECT = Path(__file__).parents[2]
PAGES = (PROJECT / "README.md", PROJECT / "docs" / "serving.md")
SETTINGS: dict[str, Callable[[Any], int]] = {
    "nprobe": lambda index: faiss.extract_index_ivf(index).nprobe,
    "efSearch": lambda index: faiss.downcast_index(index).hnsw.efSearch,
}
FOUND = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)]
BLOCKS = sorted({block for block in FOUND if "models/release/" in block})


def test_both_ways_are_shown() -> None:
    assert any("load_release" in block for block in BLOCKS)
    assert any("SentenceTransformer" in block and "faiss.read_index" in block for block in BLOCKS)


@pytest.fixture(scope="module")
def narrow_shards(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of half the dimensions, whose approximate index lies in shards, at settings only the manifest has."""
    project = tmp_path_factory.mktemp("narrow") / "project"
    shutil.copytree(released, project, ignore=shutil.ignore_patterns("release", "cache"))
    sharded = {"dim": 16, "kind": "hnsw", "factory": "HNSW8", "shard_vectors": 10}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(project / "cache"))
        folder = run_release(project, "2l", index=INDEX.model_copy(update=sharded))
    assert len(list(folder.glob("index/one/ann.*.faiss"))) == 4
    return folder


@pytest.mark.parametrize("which", ["whole", "narrow shards"])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_snippet_runs(
    block: str, which: str, released: Path, narrow_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = narrow_shards if which == "narrow shards" else released / "models/release/2l"
    names: dict[str, Any] = {}
    exec(block.replace("models/release/4l", str(folder)).replace("index/api", "index/one"), names)
    printed = capsys.readouterr().out
    release = load_release(folder)
    (text,) = re.findall(r'(?:query|encode_query)\(\[?"([^"]+)"', block)
    vectors = release.encode([text]) if "load_release" in block else student_tower(release).encode_query([text])
    for hit in release.hits("one", truncate(vectors, release.manifest.dim), 5)[0]:
        assert hit.id in printed
        assert hit.title in printed
    if "settings" in names:  # the search is set up as the release's own
        scores = [hit.score for hit in release.hits("one", truncate(vectors, release.manifest.dim), 5)[0]]
        assert names["scores"][0].tolist() == pytest.approx(scores, abs=1e-5)
        assert names["settings"]
        for ours, theirs in zip(shards_of(release.index("one")), names["shards"], strict=True):
            for name in names["settings"]:
                assert SETTINGS[name](ours) == SETTINGS[name](theirs)
