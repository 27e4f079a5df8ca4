"""The embedded data are large enough to mean something, and the same wherever the lock is."""

import json
from pathlib import Path

import pytest

from pipeline.params import load_params
from steps.core.corpus import CorpusRows, corpus_template
from steps.core.tables import SCHEMAS, read_table
from steps.embed.alignment_texts import Sources, build
from steps.ingest.run import run as ingest
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.slow

# Changes with the lock, or with how documentation is read.
DIGEST = "10ae50db1847e661b070d44f65d890a727d0428577ebb9c25fa1d20b9b493d72"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    params = load_params().ingest
    output = tmp_path_factory.mktemp("corpus") / "ingest"
    ingest(output=output, params=params, run=NullRun())
    return output


def test_sizes(folder: Path) -> None:
    queries = read_table(folder, "queries").to_pylist()
    corpus = CorpusRows(folder, ["doc_id", "title", "topic", "content"])
    assert len(corpus) >= 5000
    assert sum(row["split"] == "test" for row in queries) >= 1000
    generated = SCHEMAS["generated_queries"].empty_table()
    unlabelled = read_table(folder, "unlabelled_queries")
    sources = Sources(corpus, read_table(folder, "queries"), unlabelled, generated, corpus_template(folder))
    texts = build(sources, load_params().embed.model_copy(update={"max_part_texts": 0, "least_texts": 0}))
    assert texts.table.num_rows >= 20_000


def test_the_corpus_is_the_one_that_the_figures_were_measured_on(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["corpus_digest"] == DIGEST
    assert report["simulated"] is True
    assert {row["split"] for row in read_table(folder, "queries").to_pylist()} == {"train", "dev", "test"}
