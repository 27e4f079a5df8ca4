"""How good a teacher is, before and after it trained along with a student."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.tables.pipeline import Pipeline, Scores
from slimtower.common.files import read_json, sha256_file, write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import Role
from steps.core.corpus import CorpusTexts
from steps.core.measures import ndcg_at_10
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode, load_tower
from steps.scorers import open_reranker

_ROLES: tuple[Role, Role] = ("query", "document")
DEPTH = 20  # hits of the index's teacher that one of scores orders anew: 20 times as many pairs as queries
QUERIES = 300  # of a split and data set that it is asked at most, drawn by seed
_BATCH = 32
_CODE = sha256_file(Path(__file__))  # as it is when it is imported


def of_index(folder: Path, pipeline: Pipeline, precision: Precision) -> Scores:
    """nDCG@10 of an index teacher's tower for each query, over documents as it embeds them."""
    asking, answering = (load_tower(folder, role) for role in _ROLES)
    documents = encode(
        answering, pipeline.document_texts(), "document", precision=precision, caption="teacher's documents"
    )
    queries = {f"{item.split}/{item.dataset}": encode(asking, item.texts, "query") for item in pipeline.judged_sets}
    return pipeline.score(queries, documents, ())["0"]


def of_scores(teach: Path, pipeline: Pipeline, precision: Precision) -> Scores:
    """nDCG@10 of a teacher of scores, as `teach` leaves one: some queries' first hits of the index, in its order."""
    found: Scores = {}
    with TemporaryDirectory(prefix="bench-distill.") as scratch:
        reranker = open_reranker(teach, Path(scratch), precision, _BATCH)
        for item in pipeline.judged_sets:
            rows, ids = pipeline.corpus[item.dataset]
            chosen = np.sort(np.random.default_rng(7).permutation(len(item.texts))[:QUERIES]).tolist()
            texts, query_ids = [item.texts[at] for at in chosen], [item.query_ids[at] for at in chosen]
            asked = encode(pipeline.teacher, texts, "query")
            _, hits = pipeline.nearest(item.dataset, asked, pipeline.documents, 0, DEPTH)
            scored = reranker.scores(texts, list(rows[hits]), lambda wanted: list(CorpusTexts(pipeline.ingest, wanted)))
            names = [[ids[place] for place in own] for own in hits.tolist()]
            found.setdefault(item.split, {})[item.dataset] = ndcg_at_10(item.qrels, query_ids, names, scored).tolist()
    return found


def before(name: str, pipeline: Pipeline, precision: Precision, cells: Path) -> Scores:
    """`of_scores` of a teacher as the run has it; kept in the folder `cells`."""
    folder = pipeline.teacher_of(name)
    what = (pipeline.digest, fingerprint(folder / "tower").id, resolve_precision(precision), DEPTH, QUERIES, _CODE)
    path = cells / f"reranked.{hashlib.sha256(repr(what).encode()).hexdigest()}.json"
    if not path.is_file():
        write_json(path, of_scores(folder, pipeline, precision))
    return read_json(path)
