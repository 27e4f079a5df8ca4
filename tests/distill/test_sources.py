"""Which documents are right for a text, by the kinds of labels."""

from pathlib import Path

import numpy as np
import pytest

from steps.core.tables import table_from_rows, write_table
from steps.distill.params import Labels
from steps.distill.sources import Sources

DOCUMENTS = {"own/1": "History", "own/2": "Birds", "own/3": "history!"}
TEXTS = [
    ("own/2", "titles", "Birds"),
    ("own/1", "train_queries", "birds of prey"),  # a query, whose id a document has too
    ("own/3", "spans", "History"),
    ("own/1", "documents", "History. Of the world."),
    ("own/1", "unlabelled_queries", "birds"),
    ("own/9", "sentences", "Birds."),  # of a document that is gone
    ("own/1", "titles", "History"),  # and of another document
]
NEAREST = np.array([[0, 1], [2, 0], [1, 2], [2, 1], [1, 0], [2, 1], [2, 0]])


@pytest.mark.parametrize(("kind", "expected"), [("pseudo", [0, 2, 1, 2, 1, 2, 2]), ("source", [1, 2, 2, 0, 1, 2, 2])])
def test_a_text_of_one_document_is_labelled_with_it_and_any_other_with_the_nearest(
    tmp_path: Path, kind: Labels, expected: list[int]
) -> None:
    corpus = [
        {"doc_id": doc_id, "dataset": "own", "title": title, "topic": "", "content": ""}
        for doc_id, title in DOCUMENTS.items()
    ]
    texts = [
        {"text_sha": str(row), "text": text, "part": part, "role": "query", "source_id": source_id}
        for row, (source_id, part, text) in enumerate(TEXTS)
    ]
    write_table(tmp_path, "corpus", table_from_rows("corpus", corpus))
    write_table(tmp_path, "alignment_texts", table_from_rows("alignment_texts", texts))
    sources = Sources(tmp_path, tmp_path, tmp_path, tmp_path)
    labels = sources.labels(kind, NEAREST)
    assert [labels[row].tolist() for row in range(len(TEXTS))] == [[document] for document in expected]
