"""docs/extending.md, followed to the letter: a loss, a source, a figure, an engine are one new file, a teacher two."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.plain_copy import plain_copy

ROOT = Path(__file__).parents[2]
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / "docs/extending.md").read_text("utf-8"), re.S))
TRAIN = """
from pathlib import Path
from stages import FAST, distill_params, run_distill, run_embed, write_ingest, write_mine
from slimtower.common.files import read_json
from steps.tracking.runs import NullRun
from steps.teach.params import TeachParams
from steps.teach.run import run as teach

root, tower = Path("project"), {tower!r}
described = {{"kind": "frozen", "base": tower}}
params = TeachParams.model_validate({{"teachers": ["it"], "index": "it", "teacher": {{"it": described}}}})
teach(root / "data/ingest", root / "data/mine", root / "models/it", params.described("it"), NullRun())
assert read_json(root / "models/it/report.json")["kind"] == "frozen"
run_embed(root, root / "models/it/tower")
huber = {{"kind": "huber", "delta": 0.2, "dims": [8]}}
losses = [huber, {{"kind": "rare_words"}}, {{"kind": "embedding", "weight": 0.1}}]
student = FAST | {{"start": {{"layers": [-1]}}, "losses": losses}}
folder = run_distill(root, "it", distill_params(students=["it"], student={{"it": student}}))
assert read_json(folder / "report.json")["losses"] == ["huber", "rare_words", "embedding"]
"""
FIGURE = """
from pathlib import Path
from evaluate_fakes import evaluate, fake_systems, params, write_inputs
from slimtower.common.files import read_json

root = Path("measured")
systems = fake_systems(root, write_inputs(root), **{"static": 1, "2l": 3})
reports = evaluate(systems, root, params(analyses=["query_length"]))
found = read_json(reports / "metrics.json")["query_length"]
assert set(found["api"]) == {"teacher", "static", "2l"}, found
assert "<h3>Distance by length</h3>" in (reports / "report.html").read_text()
"""
SOURCE = """
from pathlib import Path
from ingest_logs import ingest, params, reasons, rows_of, texts_by_split
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import reading_only

lines = [f"question {n}\\tanswer {n}" for n in range(1, 11)]
Path("faq.tsv").write_text("\\n".join([*lines, "no answer"]))
checked = params({"kind": "faq", "name": "help", "path": "faq.tsv"})
listed = list_sources(checked)
assert [(row["source"], row["path"]) for row in listed] == [("help", "faq.tsv")]
with reading_only(by_key(checked, listed)):
    out = ingest(Path("faq"), checked)
assert texts_by_split(out)["test"] == ["question 10", "question 5"]
assert ("help/5", "help/5") in rows_of(out, "qrels", "query_id", "doc_id")
assert reasons(out) == [("help/faq.tsv", 11, "missing_field")]
"""
DEPLOY = """
from pathlib import Path
from engines import put, put_back
from slimtower.engines.engines import open_engine

releases = Path({releases!r})
with open_engine("folder:engine") as engine:
    put(engine, releases / "static", "one")
    release, done = put(engine, releases / "2l", "one")
    assert engine.target("live") == done.collection and done.record.student == "2l"
    [hits] = engine.search("live", release.encode(["how to sum the axis"]), 10, done.record.ef)
    [exact] = release.hits("one", release.encode(["how to sum the axis"]), 10, "flat")
    assert [(hit.id, hit.title) for hit in hits] == [(hit.id, hit.title) for hit in exact]
    assert put_back(engine).record.student == "static"
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_new_files_alone_add_what_the_page_shows(tiny_tower: Path, released: Path, tmp_path: Path) -> None:
    project = tmp_path / "project copy"
    plain_copy(ROOT, project)
    assert len(BLOCKS) == 7
    for path, code in BLOCKS.items():
        assert not (project / path).exists()
        (project / path).write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{project}{os.pathsep}{ROOT / 'tests/helpers'}"}
    deploy = DEPLOY.format(releases=str(released / "models/release"))
    program = "".join((SOURCE, FIGURE, TRAIN.format(tower=str(tiny_tower)), deploy))  # torch is loaded once for all
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
