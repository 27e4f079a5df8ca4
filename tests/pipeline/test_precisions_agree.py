"""The same students on a processor with bf16 and on one without: their quality differs no more than that of seeds.

bf16 is forced, so a processor without it computes it slowly, but as one that has it. The corpus is a small part of the
demo's, with its own teacher and two of its students.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_run import run_ingest

from pipeline.params import Params, check_params
from pipeline.recipe import overlay
from slimtower.common.settings import read_mapping
from steps.core.corpus import corpus_columns
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.measures import ndcg_at_10_of_matrix
from steps.core.tables import SCHEMAS, write_table
from steps.encoders.towers import encode, load_tower
from steps.tracking.runs import NullRun

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]
SEEDS = (1, 2, 3)
STUDENTS = ("static", "1l")
ROUNDING = 0.006  # nDCG@10 that may differ besides: what a few of 100 queries gain or lose by rounding
SMALL: dict[str, Any] = {
    "ingest": {
        "sources": [
            {"name": "api", "kind": "api_docs", "packages": ["networkx"], "max_documents": 220,
             "test_queries": 100, "dev_queries": 20}
        ]
    },
    "teach": {"teacher": {"dense": {"epochs": 0.0, "max_document_length": 48}}},
    "embed": {"parts": ["train_queries", "titles", "sentences"], "least_texts": 0},
    "distill": {
        "students": list(STUDENTS),
        "max_length": 32,
        "repeats": {"generated_queries": 0.0, "unlabelled_queries": 0.0},
        "student": {"static": {"epochs": 24.0, "batch_size": 256}, "1l": {"epochs": 2.0, "batch_size": 64}},
    },
}  # fmt: skip


def taught(root: Path, params: Params) -> None:
    """The tables, no mined triplets, no generated queries, and the zero-shot teacher."""
    from steps.teach.run import run as teach

    run_ingest(root, params)
    for name, folder in (("triplets", "mine"), ("generated_queries", "generate")):
        write_table(root / folder, name, SCHEMAS[name].empty_table())
    teach(root / "data/ingest", root / "mine", root / "teach", params.teach.described("dense"), NullRun())


def quality(root: Path, params: Params, precision: str) -> dict[str, np.ndarray]:
    """nDCG@10 on test of the teacher, `(1,)`, and of each student, `(seeds,)`, all computed in one precision."""
    from steps.distill.run import run as distill
    from steps.embed.run import run as embed

    folder, ingest, run = root / precision, root / "data/ingest", NullRun()
    embed(ingest, root / "generate", root / "teach", folder / "embed", params.embed, run)
    documents = np.load(folder / "embed/documents.npy")
    (judged,) = read_judged_sets(ingest, ["test"])
    doc_ids = [doc_id for (doc_id,) in corpus_columns(ingest, ["doc_id"])]
    ndcg_by_system = {"teacher": [ndcg(root / "teach/tower", judged, documents, doc_ids)]}
    for student in STUDENTS:
        for seed in SEEDS:
            output = folder / student / str(seed)
            seeded = params.distill.model_copy(update={"seed": seed})
            distill(
                student=student,
                ingest=ingest,
                mine=root / "mine",
                embed=folder / "embed",
                score=folder / "score",
                teach=root / "teach",
                output=output,
                params=seeded,
                run=run,
            )
            ndcg_by_system.setdefault(student, []).append(ndcg(output / "query_encoder", judged, documents, doc_ids))
    return {name: np.array(values) for name, values in ndcg_by_system.items()}


def ndcg(tower: Path, judged: JudgedSet, documents: np.ndarray, doc_ids: list[str]) -> float:
    """Mean nDCG@10 of exact search."""
    scores = encode(load_tower(tower), judged.texts, "query") @ documents.T
    return float(ndcg_at_10_of_matrix(judged.qrels, judged.query_ids, doc_ids, scores).mean())


def test_quality_does_not_depend_on_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = check_params(overlay(read_mapping(Path("params.yaml")), SMALL), "small")
    taught(tmp_path, params)
    by_precision = {}
    for precision in ("fp32", "bf16"):
        monkeypatch.setenv("SLIMTOWER_PRECISION", precision)
        by_precision[precision] = quality(tmp_path, params, precision)
    fp32, bf16 = by_precision["fp32"], by_precision["bf16"]
    assert fp32["teacher"][0] > 0.4  # or nothing would be compared
    for name, values in fp32.items():
        spread = np.sqrt((values.var(ddof=1) + bf16[name].var(ddof=1)) / len(values)) if len(values) > 1 else 0.0
        assert abs(values.mean() - bf16[name].mean()) <= 3 * spread + ROUNDING, (name, by_precision)
        assert values.mean() >= 0.8 * fp32["teacher"][0], (name, by_precision)
