"""python -m bench.one_word [--seeds 1,2]: what `static` keeps of queries of one word, with the part `words` or without.

The corpus is 5,000 of Webster's definitions (bench.kinds), the queries are the words that they define, but for those
of test. Some of these words stand in other definitions too, as words of people's queries stand in a corpus. Writes
bench/results/one_word.json: shares of the teacher's nDCG@10, apart for words that the corpus has and others.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bench.any_corpus import Corpus, embedded
from bench.disguise import Corpus as Texts
from bench.disguise import disguised
from bench.kinds import KINDS, build
from bench.machine import recording, write_record
from bench.tables.expected import parse_seeds
from bench.tables.pipeline import Pipeline
from steps.core.measures import ndcg_at_10
from steps.core.texts import words
from steps.encoders.towers import encode, load_tower

RESULT = Path("bench/results/one_word.json")
KIND, CHANGES, STUDENT = "definitions", ["no_queries", "docs=5000"], "static"
SEEDS = [1, 2]


def answers(corpus: Texts) -> dict[str, set[str]]:
    """Ids of the documents of each word that they define, but for words that are queries of test."""
    by_text = {(title, text): name for name, title, text in corpus.documents}
    test = {corpus.queries[query] for query, *_ in corpus.judgements["test"]}
    documents: dict[str, set[str]] = defaultdict(set)
    for title, text, query in KINDS[KIND][0]():
        if (title, text) in by_text and query and query not in test:
            documents[query].add(by_text[title, text])
    return dict(documents)


def groups_of(queries: list[str], corpus: Texts) -> dict[str, np.ndarray]:
    """Which queries are words of the corpus, which are not, and all, `(queries,)` each."""
    corpus_words = {word for _, title, text in corpus.documents for word in words(f"{title} {text}")}
    has_word = np.array([query.lower() in corpus_words for query in queries])
    return {"words of the corpus": has_word, "others": ~has_word, "all": np.ones(len(queries), dtype=bool)}


def quality(pipeline: Pipeline, tower: SentenceTransformer, documents: Mapping[str, set[str]]) -> np.ndarray:
    """nDCG@10 of each query by exact search, `(queries,)`."""
    queries, names = [*documents], pipeline.corpus["own"][1]
    values, hits = pipeline.nearest("own", encode(tower, queries, "query"), pipeline.documents, 0, 100)
    ranking = [[names[hit].partition("/")[2] for hit in line] for line in hits.tolist()]
    qrels = {query: dict.fromkeys(doc_ids, 1) for query, doc_ids in documents.items()}
    return ndcg_at_10(qrels, queries, ranking, list(values))


def measure(seeds: list[int]) -> dict[str, Any]:
    """Retention with the part `words` and without, by group of queries, a value a seed."""
    source = build(KIND)
    corpus = disguised(source, CHANGES)
    documents = answers(corpus)
    groups = groups_of([*documents], corpus)
    report: dict[str, Any] = {
        "documents": len(corpus.documents),
        "queries": {name: int(mask.sum()) for name, mask in groups.items()},
        "retention": {},
    }
    for variant in ("without", "words"):
        described = Corpus(title=variant, source=[KIND], changes=CHANGES, words=variant == "words")
        pipeline = embedded(f"one_word_{variant}", described, {KIND: source})
        teacher = quality(pipeline, pipeline.teacher, documents)
        report["teacher"] = {name: float(teacher[mask].mean()) for name, mask in groups.items()}
        rows: dict[str, list[float]] = {name: [] for name in groups}
        for seed in seeds:
            with TemporaryDirectory(prefix="bench-words.") as folder:
                output = Path(folder) / STUDENT
                pipeline.distil(STUDENT, pipeline.params.model_copy(update={"seed": seed}), output)
                student = quality(pipeline, load_tower(output / "query_encoder"), documents)
            for name, mask in groups.items():
                rows[name].append(float(student[mask].mean() / teacher[mask].mean()))
            print(
                f"{variant}, seed {seed}: {', '.join(f'{name} {row[-1]:.1%}' for name, row in rows.items())}",
                flush=True,
            )
        report["retention"][variant] = rows
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.one_word", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", default="", help=f"absent = {SEEDS}")
    seeds = parse_seeds(parser.parse_args().seeds, SEEDS)
    write_record(RESULT, {"seeds": seeds, **measure(seeds)})


if __name__ == "__main__":
    recording(main)
