"""python -m bench.generation: students with and without the generated queries, on the dev queries of the present run.

Needs the outputs of `dvc repro`. Writes bench/results/generation.json: nDCG@10 of each student and seed with
`repeats.generated_queries` as in params.yaml and at 0, and a paired t-test over queries (seeds averaged first).
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import faiss
import numpy as np
from scipy import stats

from bench.machine import machine
from bench.teacher import index_teacher
from pipeline.params import load_params
from steps.core.files import read_json, write_json
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.measures import ndcg_at_10
from steps.core.tables import read_table
from steps.core.towers import encode, load_tower
from steps.core.tracking import NullRun
from steps.distill.params import DistillParams
from steps.distill.run import run as distill

INGEST, MINE, EMBED = Path("data/ingest"), Path("data/mine/relevance"), Path("data/embed")
SCORE = Path("data/score")


def ndcg(tower_folder: Path, judged_sets: list[JudgedSet]) -> np.ndarray:
    """nDCG@10 of each dev query by exact search, `(queries,)`."""
    corpus = read_table(INGEST, "corpus")
    names, ids = np.array(corpus["dataset"].to_pylist()), np.array(corpus["doc_id"].to_pylist())
    documents = np.load(EMBED / "documents.npy", mmap_mode="r")
    tower = load_tower(tower_folder)
    values = []
    for item in judged_sets:
        rows = np.flatnonzero(names == item.dataset)
        index = faiss.IndexFlatIP(documents.shape[1])
        index.add(np.ascontiguousarray(documents[rows]))
        scores, hits = index.search(encode(tower, item.texts, "query"), 100)
        found = [[str(ids[rows[hit]]) for hit in line] for line in hits]
        values.append(ndcg_at_10(item.qrels, item.query_ids, found, list(scores)))
    return np.concatenate(values)


def measure(student: str, params: DistillParams, times: float, seed: int, judged_sets: list[JudgedSet]) -> np.ndarray:
    """Distil with an epoch that repeats the generated queries `times`, and score on dev."""
    repeats = {**params.repeats, "generated_queries": times}
    changed = params.model_copy(update={"repeats": repeats, "seed": seed})
    with TemporaryDirectory() as folder:
        output = Path(folder) / student
        distill(student, INGEST, MINE, EMBED, SCORE, index_teacher(), output, changed, NullRun())
        return ndcg(output / "query_encoder", judged_sets)


def main() -> None:
    """Measure `static` and `2l` over three seeds."""
    params = load_params().distill
    judged_sets = read_judged_sets(INGEST, ["dev"])
    seeds = [1, 2, 3]
    used = params.repeats.get("generated_queries", 0.0) or 1.0
    result: dict[str, object] = {"machine": machine(), "seeds": seeds, "weight": used, "students": {}}
    students: dict[str, object] = {}
    for student in sys.argv[1:] or ["static", "2l"]:
        values = {
            label: np.stack([measure(student, params, times, seed, judged_sets) for seed in seeds])
            for label, times in (("with", used), ("without", 0.0))
        }
        test = stats.ttest_rel(values["with"].mean(axis=0), values["without"].mean(axis=0))
        students[student] = {
            label: {"mean": float(seeded.mean()), "by_seed": seeded.mean(axis=1).tolist()}
            for label, seeded in values.items()
        } | {"p_value": float(test.pvalue), "dev_queries": int(values["with"].shape[1])}
        print(student, students[student], flush=True)
    result["students"] = students
    result["generation"] = read_json(Path("data/generate/report.json"))
    write_json(Path("bench/results/generation.json"), result)


if __name__ == "__main__":
    main()
