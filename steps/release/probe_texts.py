"""The queries by which a release recognises its encoder."""

from pathlib import Path

from steps.core.tables import read_table
from steps.core.texts import sentences


def probe_texts(ingest: Path, count: int) -> list[str]:
    """The first training queries by id; titles, then first sentences of documents where there are too few."""
    queries = [row for row in read_table(ingest, "queries").to_pylist() if row["split"] == "train"]
    texts = [row["text"] for row in sorted(queries, key=lambda row: row["query_id"])]
    if len(texts) < count:
        corpus = read_table(ingest, "corpus").to_pylist()
        texts += [row["title"] for row in corpus if row["title"]]
        texts += [found[0] for row in corpus if (found := sentences(row["content"]))]
    return texts[:count]
