"""The programs of docs/without-python.md, as they stand, make the vectors that a release makes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import load_release

pytestmark = pytest.mark.integration  # fetches two packages of npm

PAGE = Path(__file__).parents[2] / "docs/without-python.md"
TEXTS = ["draw a histogram", "Naïve café, 1,000 rows!", "日本語 テスト", "word " * 200, "x" * 300, " ", "a_b.c(d=3)"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's programs and what they import."""
    if not shutil.which("npm"):
        pytest.skip("needs Node.js with npm")
    folder = tmp_path_factory.mktemp("node")
    for name, block in zip(
        ("table.mjs", "graph.mjs"), re.findall(r"```javascript\n(.*?)```", PAGE.read_text(), re.S), strict=True
    ):
        (folder / name).write_text(block)
    packages = ["@huggingface/tokenizers", "onnxruntime-node"]
    subprocess.run(["npm", "install", "--ignore-scripts", "--silent", *packages], cwd=folder, check=True, timeout=300)
    return folder


@pytest.mark.parametrize(("program", "student"), [("table.mjs", "static"), ("graph.mjs", "2l")])
def test_vectors_equal_the_release(program: str, student: str, programs: Path, released: Path) -> None:
    folder = released / "models/release" / student
    expected = load_release(folder).encode(TEXTS)
    for text, vector in zip(TEXTS, expected, strict=True):
        done = subprocess.run(
            ["node", program, str(folder), text], cwd=programs, check=True, capture_output=True, text=True, timeout=60
        )
        assert np.array(json.loads(done.stdout)) == pytest.approx(vector, abs=1e-6), text


def test_the_program_reads_a_narrow_table(programs: Path, released: Path, tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    shutil.copytree(released / "models/release/static/serving", serving)
    described = json.loads((serving / "serving.json").read_text()) | {"precision": "fp32", "width": 6}
    (serving / "serving.json").write_text(json.dumps(described))
    draw, rows = np.random.default_rng(5), len(np.load(serving / "table.npy"))
    np.save(serving / "table.npy", draw.standard_normal((rows, 6), dtype=np.float32))
    np.save(serving / "projection.npy", draw.standard_normal((6, described["dim"]), dtype=np.float32))
    expected = load_query_encoder(serving).encode(TEXTS[:1])[0]
    command = ["node", "table.mjs", str(tmp_path), TEXTS[0]]
    done = subprocess.run(command, cwd=programs, check=True, capture_output=True, text=True, timeout=60)
    assert np.array(json.loads(done.stdout)) == pytest.approx(expected, abs=1e-6)
