"""BM25 over the documents of a data set, as the corpus makes texts of them."""

from pathlib import Path

from slimtower.lexical.bm25 import Bm25
from steps.core.corpus import corpus_columns, corpus_template


def corpus_bm25(ingest: Path, dataset: str) -> Bm25:
    """An index of the documents of one data set in `ingest`, in the order of the corpus."""
    template, ids, texts = corpus_template(ingest), [], []
    for doc_id, name, *fields in corpus_columns(ingest, ["doc_id", "dataset", "title", "topic", "content"]):
        if name == dataset:
            ids.append(doc_id)
            texts.append(template.text(*fields))
    return Bm25(ids, texts)
