"""Hard negatives that a tower finds in the whole corpus for its own training queries.

They are drawn from a query's best documents (ANCE, Xiong et al. 2021) that stay a share of its positive's score below
that (NV-Retriever, Moreira et al. 2024, TopK-PercPos). `sentence_transformers.util.mine_hard_negatives` does the same
with all texts and vectors in memory; here documents are read piece by piece, and vectors from a file.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from scipy.special import log_expit
from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from slimtower.common.files import staged_file
from slimtower.common.fingerprints import fingerprint
from steps.core.corpus import CorpusRows, CorpusTexts, corpus_template
from steps.core.progress import progress
from steps.core.texts import fold
from steps.encoders.precision import Precision
from steps.encoders.towers import encode
from steps.encoders.vector_cache import embed_once
from steps.retrieval.exact_search import best_documents
from steps.retrieval.rankers import Pair, load_ranker, pair_scores
from steps.teach.contrastive_training import cut_to_tokens
from steps.teach.kinds.base import Contrastive, RoundParams
from steps.teach.training_triplets import TextTriplet
from steps.training.checkpoint_files import load_checkpoint_or_none

BLOCK = 8192  # triplets whose negatives are found before they are kept: texts of all that these may have are in memory
_PAIRS = 32  # read by the ranker at once
Texts = Callable[[np.ndarray], Iterable[str]]
"""Texts of ascending rows of the corpus."""
ENCODE_BATCH = 64
RANKER_MARGIN = 0.5  # share by which the ranker's probability (sigmoid) of a negative must be below the positive's
_SHARD = 2048  # documents between two savings of their vectors
_QUERIES = 32_768  # searched with at once, for each time that the documents are read


@dataclass(frozen=True)
class SearchedCorpus:
    """The documents of `ingest`, the ids of the positives of each query by its folded text, and a ranker's folder."""

    ingest: Path
    positives: Mapping[str, Set[str]]
    ranker: Path | None = None

    def digest(self) -> str:
        """Hex sha256 of all of them."""
        digest = hashlib.sha256(corpus_template(self.ingest).template.encode())
        for fields in CorpusRows(self.ingest, ["doc_id", "dataset", "title", "topic", "content"]):
            digest.update(repr(fields).encode())
        for query in sorted(self.positives):
            digest.update(repr((query, sorted(self.positives[query]))).encode())
        if self.ranker:
            digest.update(fingerprint(self.ranker).id.encode())
        return digest.hexdigest()

    def texts(self, rows: np.ndarray | None = None) -> CorpusTexts:
        """Documents as a tower reads them, of ascending rows of the corpus or all."""
        return CorpusTexts(self.ingest, rows)

    def ids(self, rows: np.ndarray) -> list[str]:
        """Ids of the documents of ascending rows of the corpus."""
        selected = set(rows.tolist())
        return [doc_id for row, (doc_id,) in enumerate(CorpusRows(self.ingest, ["doc_id"])) if row in selected]


def mine_negatives(
    tower: SentenceTransformer,
    triplets: Sequence[TextTriplet],
    searched: SearchedCorpus,
    params: Contrastive,
    number: int,
    scratch: Path,
) -> np.ndarray:
    """A new negative for each triplet as a row of the corpus, -1 if there is none: int64 `(triplets,)`.

    See `allowed_rows` and, with a ranker, `checked_negatives`. A killed search finds its vectors in `scratch` again.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    embed_once(
        tower,
        scratch.parent.name,
        "document",
        searched.texts(),
        scratch / "documents.npy",
        dtype="float32",
        precision=params.precision,
        batch_size=ENCODE_BATCH,
        shard_texts=_SHARD,
        caption="embed documents",
        caches=scratch,
    )
    vectors = np.load(scratch / "documents.npy", mmap_mode="r")
    positive_ids = [searched.positives[fold(triplet.query)] for triplet in triplets]
    rows, datasets = _locate_documents(searched.ingest, set().union(*positive_ids))
    positive_rows = np.array([rows[triplet.positive_id] for triplet in triplets])
    query_of, hits, scores, positive_scores = _search(tower, triplets, positive_rows, vectors, datasets, params, number)
    used = np.unique(np.concatenate([hits.ravel(), np.array(list(rows.values()), dtype=np.int64)]))
    keys = _text_keys(searched, used[used >= 0], len(vectors))

    def fit(index: int) -> np.ndarray:
        query, positive = query_of[index], float(positive_scores[index])
        positives = np.array([rows[doc_id] for doc_id in positive_ids[index] if doc_id in rows])
        return allowed_rows(hits[query], scores[query], positive, positives, keys, params.rounds)

    fits, seed = map(fit, range(len(triplets))), (params.seed, number)
    if searched.ranker:
        return checked_negatives(
            fits, triplets, searched.texts, searched.ranker, RANKER_MARGIN, params.precision, seed, scratch
        )
    draws = zip(np.random.default_rng(seed).random(len(triplets)), fits, strict=True)
    negatives = [choices[int(share * len(choices))] if len(choices) else -1 for share, choices in draws]
    return np.array(negatives, dtype=np.int64)


def allowed_rows(
    rows: np.ndarray, scores: np.ndarray, positive: float, positives: np.ndarray, keys: np.ndarray, rule: RoundParams
) -> np.ndarray:
    """Which of a query's hits `(depth,)`, best first, may be its negative, as ascending rows.

    Ranks `skip + 1` to `depth`, no text of one of its positives (rows; `keys` of all documents' texts), and a score of
    at most `positive - margin * abs(positive)`: below 0 too a margin keeps hits away from the positive.
    """
    ranked, reached = rows[rule.skip : rule.depth], scores[rule.skip : rule.depth]
    far = (ranked >= 0) & (reached <= positive - rule.margin * abs(positive))
    return np.sort(ranked[far & ~np.isin(keys[ranked], keys[positives])])


def _locate_documents(ingest: Path, doc_ids: Set[str]) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Rows of the documents `doc_ids` by id, and those of all documents of each data set, ascending."""
    rows: dict[str, int] = {}
    codes: dict[str, int] = {}

    def code_of_each() -> Iterator[int]:
        for row, (doc_id, dataset) in enumerate(CorpusRows(ingest, ["doc_id", "dataset"])):
            if doc_id in doc_ids:
                rows[doc_id] = row
            yield codes.setdefault(dataset, len(codes))

    of_row = np.fromiter(code_of_each(), dtype=np.int32)
    return rows, {dataset: np.flatnonzero(of_row == code) for dataset, code in codes.items()}


def _search(
    tower: SentenceTransformer,
    triplets: Sequence[TextTriplet],
    positive_rows: np.ndarray,
    vectors: np.ndarray,
    datasets: Mapping[str, np.ndarray],
    params: Contrastive,
    number: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Search the data set of each triplet's query.

    Which of the queries each triplet has `(triplets,)`; their best documents as rows of the corpus and scores, best
    first, `(queries, depth)`, -1 where there are fewer; the scores of positives `(triplets,)`.
    """
    queries = sorted({(triplet.dataset, triplet.query) for triplet in triplets})
    row_of = {query: row for row, query in enumerate(queries)}
    texts = cut_to_tokens(tower, [text for _, text in queries], params.max_query_length)
    query = np.array([row_of[triplet.dataset, triplet.query] for triplet in triplets])
    hits = np.full((len(queries), params.rounds.depth), -1, dtype=np.int32)
    scores = np.full(hits.shape, -np.inf, dtype=np.float32)
    positive_scores = np.zeros(len(triplets), dtype=np.float32)
    blocks = list(_blocks([dataset for dataset, _ in queries]))
    for dataset, block in progress(blocks, len(blocks), f"search for round {number}"):
        query_vectors = encode(tower, texts[block], "query", precision=params.precision, batch_size=ENCODE_BATCH)
        own_rows = datasets.get(dataset, np.zeros(0, np.int64))
        best_scores, rows = best_documents(query_vectors, vectors, params.rounds.depth, own_rows)
        hits[block, : rows.shape[1]], scores[block, : rows.shape[1]] = rows, best_scores
        members = np.flatnonzero((query >= block.start) & (query < block.stop))
        positive_scores[members] = np.einsum(
            "td,td->t", query_vectors[query[members] - block.start], vectors[positive_rows[members]]
        )
    return query, hits, scores, positive_scores


def _blocks(datasets: Sequence[str]) -> Iterator[tuple[str, slice]]:
    start = 0
    for dataset, group in groupby(datasets):
        end = start + sum(1 for _ in group)
        for first in range(start, end, _QUERIES):
            yield dataset, slice(first, min(first + _QUERIES, end))
        start = end


def _text_keys(searched: SearchedCorpus, rows: np.ndarray, count: int) -> np.ndarray:
    """A number for the folded text of each of these documents, uint64 `(count,)`; 0 for the others."""
    keys = np.zeros(count, dtype=np.uint64)
    for row, text in zip(rows, searched.texts(rows), strict=True):
        keys[row] = int.from_bytes(hashlib.sha256(fold(text).encode()).digest()[:8], "big")
    return keys


def ranker_of(rankers: Path, rule: RoundParams) -> Path | None:
    """Folder of the ranker that checks the rounds' negatives, None without one; UserError where it is not there."""
    if not rule.more or not rule.ranker:
        return None
    tower = rankers / rule.ranker / "tower"
    if not tower.is_dir():
        raise UserError(
            f"{tower}: not found, and rounds.ranker of the teacher names it; run the stage `rank` first"
            f' (rank.rankers: [{rule.ranker}]), or set rounds.ranker: ""'
        )
    return tower


def is_far(scores: np.ndarray, positives: np.ndarray, margin: float) -> np.ndarray:
    """Whether `sigmoid(score) <= (1 - margin) * sigmoid(positive)`, by logarithms, for logits: bool `(n,)`."""
    far: np.ndarray = log_expit(np.float64(scores)) <= log_expit(np.float64(positives)) + np.log1p(-margin)
    return far


def checked_negatives(
    fits: Iterable[np.ndarray],
    triplets: Sequence[TextTriplet],
    texts: Texts,
    ranker: Path,
    margin: float,
    precision: Precision,
    seed: tuple[int, int],
    scratch: Path,
) -> np.ndarray:
    """A negative for each triplet that the ranker calls far from its positive, -1 where it has none: int64 `(n,)`.

    Rows of `fits` are tried in an order drawn by `seed`. Blocks of triplets are kept in `scratch`, for a killed run.
    """
    remaining = iter(fits)
    model = load_ranker(ranker)

    def scores(pairs: list[Pair]) -> np.ndarray:
        logits = pair_scores(model, pairs, precision=precision, batch_size=_PAIRS)
        if not np.isfinite(logits).all():
            raise UserError(
                f"teach: the ranker gives a query and a document the score {logits[~np.isfinite(logits)][0]}; set the"
                ' teacher\'s precision: fp32, or rounds.ranker: ""'
            )
        return logits

    starts = range(0, len(triplets), BLOCK)
    parts = [np.zeros(0, dtype=np.int64)]
    for start in progress(starts, len(starts), "ranker checks negatives"):
        block, path = list(islice(remaining, BLOCK)), scratch / f"checked-{start}.npy"
        if (rows := load_checkpoint_or_none(path, np.load, "teach")) is None:
            rows = _first_far(block, triplets[start : start + BLOCK], texts, scores, margin, (*seed, start))
            with staged_file(path) as staging, staging.open("wb") as file:
                np.save(file, rows)
        parts.append(rows)
    return np.concatenate(parts)


def _first_far(
    fits: list[np.ndarray],
    triplets: Sequence[TextTriplet],
    texts: Texts,
    scores: Callable[[list[Pair]], np.ndarray],
    margin: float,
    seed: tuple[int, ...],
) -> np.ndarray:
    random = np.random.default_rng(seed)
    orders = [random.permutation(fit).tolist() for fit in fits]
    rows = np.unique(np.concatenate([*fits, np.zeros(0, dtype=np.int64)]).astype(np.int64))
    text = dict(zip(rows.tolist(), texts(rows), strict=True))
    negatives = np.full(len(fits), -1, dtype=np.int64)
    pending = [index for index, order in enumerate(orders) if order]
    positives = np.full(len(fits), np.nan)
    positives[pending] = scores([(triplets[index].query, triplets[index].positive) for index in pending])
    while pending:
        tried = [orders[index].pop(0) for index in pending]
        pairs = [(triplets[index].query, text[row]) for index, row in zip(pending, tried, strict=True)]
        far = is_far(scores(pairs), positives[pending], margin)
        negatives[np.array(pending)[far]] = np.array(tried)[far]
        pending = [index for index, done in zip(pending, far.tolist(), strict=True) if not done and orders[index]]
    return negatives
