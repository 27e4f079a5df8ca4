"""The template of documents' texts: what is embedded, and what of it is embedded anew when it changes."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from recorder import Recorder
from stages import EMBED, run_embed, run_index

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.files import read_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.embed.run import run as embed

pytestmark = pytest.mark.medium

WITH_TOPIC = 16  # documents 0 to 15


def embed_with(root: Path, template: str) -> float:
    """Embed below `root` with another template; returns how many documents were embedded anew."""
    corpus = read_table(root / "data/ingest", "corpus")
    write_table(root / "data/ingest", "corpus", corpus, metadata=DocumentTemplate(template).metadata)
    notes = Recorder()
    embed(root / "data/ingest", root / "data/generate", root / "models/teach/dense", root / "data/embed", EMBED, notes)
    return notes.last["embedded.documents"]


def shas(index: Path) -> list[str]:
    return pq.read_table(index / "one/doc_ids.parquet")["text_sha"].to_pylist()


def test_a_topic_in_the_template_is_embedded_and_no_other_text_anew(tiny_tower: Path, tmp_path: Path) -> None:
    run_embed(tmp_path, tiny_tower)
    rows = read_table(tmp_path / "data/ingest", "corpus").to_pylist()
    rows[2] |= {"title": rows[0]["title"], "content": rows[0]["content"]}
    rows = [row | {"topic": f"topic {at}" if at < WITH_TOPIC else ""} for at, row in enumerate(rows)]
    write_table(tmp_path / "data/ingest", "corpus", table_from_rows("corpus", rows))
    assert embed_with(tmp_path, "{title}. {content}") == 0  # the text of each was embedded before: topics are ignored
    before = np.load(tmp_path / "data/embed/documents.npy")
    np.testing.assert_array_equal(before[0], before[2])
    digests = shas(run_index(tmp_path))

    template = "{title}. {topic}. {content}"
    assert embed_with(tmp_path, template) == WITH_TOPIC
    after = np.load(tmp_path / "data/embed/documents.npy")
    assert np.abs(after[0] - after[2]).max() > 1e-3
    np.testing.assert_array_equal(after[WITH_TOPIC:], before[WITH_TOPIC:])
    changed = [new != old for new, old in zip(shas(run_index(tmp_path)), digests, strict=True)]
    assert changed == [bool(row["topic"]) for row in rows if row["dataset"] == "one"]
    assert read_json(tmp_path / "models/index/manifest.json")["document"] == template
