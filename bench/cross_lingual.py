"""python -m bench.cross_lingual [--run FOLDER]: queries of one language on documents of another.

For corpora that have the same documents in several languages under the same ids, as recipes/multilingual.yaml reads
them, each a data set of the run. The test queries of every language search the documents of every language exactly: by
the teacher's vectors, and by those of each released student. Writes bench/results/cross_lingual.json: nDCG@10 of each
pair of languages, and what a student keeps of the teacher's mean, within a language and across languages.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.machine import recording, write_record
from bench.tables.pipeline import HITS, Pipeline, open_pipeline
from slimtower.common.errors import UserError
from slimtower.serving.release import load_release
from steps.core.judged import JudgedSet
from steps.core.measures import ndcg_at_10
from steps.encoders.towers import encode

RESULT = Path("bench/results/cross_lingual.json")

Matrix = dict[str, dict[str, float]]  # language of the queries -> language of the documents -> nDCG@10


def relevant_in(judged: JudgedSet, language: str) -> dict[str, dict[str, int]]:
    """The judgements of a language's queries, on the same documents of another language."""
    return {
        query: {f"{language}/{doc_id.partition('/')[2]}": grade for doc_id, grade in grades.items()}
        for query, grades in judged.qrels.items()
    }


def search_languages(pipeline: Pipeline, vectors: Mapping[str, np.ndarray]) -> Matrix:
    """nDCG@10 of each language's test queries, given as `vectors` `(queries, dim)`, on each language's documents."""
    matrix: Matrix = {}
    for judged in judged_on_test(pipeline):
        for language, (_, doc_ids) in pipeline.corpus.items():
            scores, rows = pipeline.nearest(language, vectors[judged.dataset], pipeline.documents, 0, HITS)
            hits = [[doc_ids[row] for row in line] for line in rows.tolist()]
            ndcg = ndcg_at_10(relevant_in(judged, language), judged.query_ids, hits, list(scores))
            matrix.setdefault(judged.dataset, {})[language] = round(float(ndcg.mean()), 4)
    return matrix


def judged_on_test(pipeline: Pipeline) -> list[JudgedSet]:
    """The judged test queries, a set for each language."""
    return [judged for judged in pipeline.judged_sets if judged.split == "test"]


def mean_ndcg(matrix: Matrix, *, across: bool) -> float:
    """Mean over the pairs of two languages, or over the languages by themselves."""
    return fmean(
        value for query, row in matrix.items() for document, value in row.items() if (query != document) == across
    )


def measure(root: Path) -> dict[str, Any]:
    """The teacher's matrix, each released student's, and the shares that students keep of its two means.

    UserError unless the run has several data sets and a released student.
    """
    pipeline = open_pipeline(root)
    releases = sorted(path.parent for path in (root / "models/release").glob("*/manifest.json"))
    sets = judged_on_test(pipeline)
    if len(sets) < 2 or not releases:
        raise UserError(f"{root}: has no release of several data sets; run recipes/multilingual.yaml first")
    teacher = search_languages(
        pipeline, {judged.dataset: encode(pipeline.teacher, judged.texts, "query") for judged in sets}
    )
    students: dict[str, Any] = {}
    for folder in releases:
        release = load_release(folder)
        matrix = search_languages(pipeline, {judged.dataset: release.encode(judged.texts) for judged in sets})
        shares = {
            kind: round(mean_ndcg(matrix, across=across) / mean_ndcg(teacher, across=across), 4)
            for kind, across in (("within", False), ("across", True))
        }
        students[folder.name] = {"ndcg": matrix, "retention": shares}
        print(
            f"{folder.name}: keeps {shares['within']:.1%} within a language, {shares['across']:.1%} across", flush=True
        )
    queries = {judged.dataset: len(judged.query_ids) for judged in sets}
    return {"corpus": pipeline.data_digest, "queries": queries, "teacher": {"ndcg": teacher}, "students": students}


def main() -> None:
    """Read the command line and write the record."""
    parser = argparse.ArgumentParser(prog="python -m bench.cross_lingual", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/multilingual"), help="the folder of a pipeline's run")
    write_record(RESULT, measure(parser.parse_args().run))


if __name__ == "__main__":
    recording(main)
