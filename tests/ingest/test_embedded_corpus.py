"""The embedded data are large enough to mean something, and the same wherever the lock is."""

from pathlib import Path

import pytest

from pipeline.params import load_params
from slimtower.common.files import read_json
from steps.core.corpus import CorpusRows, corpus_template
from steps.core.tables import SCHEMAS, read_table
from steps.embed.alignment_texts import Sources, build
from steps.ingest.run import run as ingest
from steps.tracking.runs import NullRun

# Changes with the lock, or with how documentation is read.
DIGEST = "10ae50db1847e661b070d44f65d890a727d0428577ebb9c25fa1d20b9b493d72"


@pytest.mark.slow
@pytest.mark.nightly
def test_the_corpus_is_the_one_that_the_figures_were_measured_on(tmp_path: Path) -> None:
    ingest(output=tmp_path / "ingest", params=load_params().ingest, run=NullRun())
    report = read_json(tmp_path / "ingest/report.json")
    assert report["corpus_digest"] == DIGEST and report["simulated"] is True
    corpus = CorpusRows(tmp_path / "ingest", ["doc_id", "title", "topic", "content"])
    queries, unlabelled = (read_table(tmp_path / "ingest", name) for name in ("queries", "unlabelled_queries"))
    assert len(corpus) >= 5000
    splits = queries["split"].to_pylist()
    assert set(splits) == {"train", "dev", "test"} and splits.count("test") >= 1000
    generated = SCHEMAS["generated_queries"].empty_table()
    sources = Sources(corpus, queries, unlabelled, generated, corpus_template(tmp_path / "ingest"))
    texts = build(sources, load_params().embed.model_copy(update={"max_part_texts": 0, "least_texts": 0}))
    assert texts.table.num_rows >= 20_000
