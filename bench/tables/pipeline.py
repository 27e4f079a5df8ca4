"""What a pipeline's run left up to `embed`: all that students are distilled from and judged by."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from bench.tables.expected import Mixture
from bench.teacher import index_teacher
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.dims import truncate
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.measures import ndcg_at_10
from steps.core.tables import Part, read_table
from steps.distill.mixture import epoch_rows, hold_out, rows_of, with_documents
from steps.distill.params import DistillParams, Repeats
from steps.distill.run import run as distill
from steps.encoders.towers import load_tower
from steps.tracking.runs import NullRun

_EMBEDDED = (
    "alignment_texts.parquet", "alignment.npy", "lengths.npy", "nearest.npy", "documents.npy", "tokens.npy",
)  # fmt: skip
HITS = 100  # more than the 10 that count, so that ties at the tenth are broken by document id

Scores = dict[str, dict[str, list[float]]]  # split -> data set -> nDCG@10 of each query


@dataclass(frozen=True)
class Pipeline:
    """A pipeline's folder in which `embed` is done."""

    root: Path

    @property
    def ingest(self) -> Path:
        """Corpora, queries and judgements."""
        return self.root / "data/ingest"

    @property
    def mine(self) -> Path:
        """Mined triplets."""
        return self.root / "data/mine/relevance"

    @property
    def rankers(self) -> Path:
        """Rankers' scores and towers, a folder each; there only where the run has one."""
        return self.root / "data/rank"

    @property
    def embed(self) -> Path:
        """Alignment texts, their vectors, and the documents'."""
        return self.root / "data/embed"

    @property
    def score_tables(self) -> Path:
        """Other teachers' scores, a folder each; there only where the run has such teachers."""
        return self.root / "data/score"

    @property
    def teach(self) -> Path:
        """Folder of the teacher that made the index."""
        return index_teacher(self.root)

    @cached_property
    def params(self) -> DistillParams:
        """The run's own section `distill`."""
        return load_params(self.root / "params.yaml").distill

    @cached_property
    def judged_sets(self) -> list[JudgedSet]:
        """Judged dev and test queries."""
        return read_judged_sets(self.ingest, ["dev", "test"])

    @cached_property
    def parts(self) -> np.ndarray:
        """Name of each alignment text's part."""
        return np.array(read_table(self.embed, "alignment_texts")["part"].to_pylist())

    @cached_property
    def teacher(self) -> SentenceTransformer:
        """Its query tower, zero-shot or trained."""
        return load_tower(self.teach / "tower", "query")

    @cached_property
    def depth(self) -> int:
        """How many layers the teacher has."""
        first: Any = self.teacher[0]
        return int(first.auto_model.config.num_hidden_layers)

    @cached_property
    def data_digest(self) -> str:
        """Hex sha256 over corpora, queries and judgements."""
        names = ("corpus.parquet", "queries.parquet", "qrels.parquet")
        return hashlib.sha256(" ".join(sha256_file(self.ingest / name) for name in names).encode()).hexdigest()

    @cached_property
    def digest(self) -> str:
        """Hex sha256 over what the figures of every student depend on, but for params and code."""
        digest = hashlib.sha256(str(asdict(fingerprint(self.teach / "tower"))).encode())
        for name in ("corpus.parquet", "queries.parquet", "qrels.parquet"):
            digest.update(sha256_file(self.ingest / name).encode())
        digest.update(sha256_file(self.mine / "triplets.parquet").encode())
        for name in _EMBEDDED:
            digest.update(sha256_file(self.embed / name).encode())
        return digest.hexdigest()

    def unscored(self, student: dict[str, Any]) -> list[str]:
        """Teachers whose scores a student, as params.yaml would describe it, learns, and that have not scored here."""
        phases = [student, *student.get("then", [])]
        wanted = {
            (loss["teacher"], "layers.npy" if loss["kind"] == "layer_distillation" else "scores.parquet")
            for phase in phases
            for loss in phase.get("losses", [])
            if loss.get("teacher") and phase.get("targets") != "joint"
        }
        return sorted({name for name, file in wanted if not (self.score_tables / name / file).is_file()})

    def untaught(self, student: dict[str, Any]) -> list[str]:
        """Teachers that train along with a student, by their names in its losses, and that are not here."""
        moved = [phase for phase in [student, *student.get("then", [])] if phase.get("targets") == "joint"]
        wanted = {loss.get("teacher") for phase in moved for loss in phase.get("losses", [])} - {None, ""}
        return sorted(name for name in wanted if not (self.teacher_of(name) / "tower").is_dir())

    def teacher_of(self, name: str) -> Path:
        """Folder of a teacher."""
        return self.root / "models/teach" / name

    def distil(self, student: str, params: DistillParams, output: Path) -> None:
        """Distil a student that the params describe from what the run left."""
        distill(
            student=student,
            ingest=self.ingest,
            mine=self.mine,
            embed=self.embed,
            score=self.score_tables,
            teach=self.teach,
            output=output,
            params=params,
            run=NullRun(),
        )

    def orders(self) -> dict[str, dict[str, float]]:
        """What `score` found of each teacher's order beside the index's, on known answers of training queries."""
        reports = {path.parent.name: read_json(path) for path in sorted(self.score_tables.glob("*/report.json"))}
        return {name: report["orders"] for name, report in reports.items() if report.get("orders")}

    def scores_digest(self, teacher: str) -> str:
        """Hex sha256 of what another teacher said of texts and documents; UserError when it scored nothing."""
        path = self.score_tables / teacher / "scores.parquet"
        if not path.is_file():
            raise UserError(f"{path}: not found; name {teacher} in score.teachers of that run and run `score` there")
        others = [path.with_name(name) for name in ("pairs.npy", "layers.npy")]
        return "".join(sha256_file(each) for each in (path, *others) if each.is_file())

    @cached_property
    def documents(self) -> np.ndarray:
        """The teacher's embeddings of the documents, `(documents, dim)`, memory-mapped."""
        return np.load(self.embed / "documents.npy", mmap_mode="r")

    @cached_property
    def corpus(self) -> dict[str, tuple[np.ndarray, list[str]]]:
        """Rows in `documents` and document ids of each data set."""
        names, ids = zip(*corpus_columns(self.ingest, ["dataset", "doc_id"]), strict=True)
        rows = {name: np.flatnonzero(np.array(names) == name) for name in sorted(set(names))}
        return {name: (own, [ids[row] for row in own]) for name, own in rows.items()}

    def document_texts(self) -> list[str]:
        """What a document tower reads, in the order of `documents`."""
        return list(CorpusTexts(self.ingest))

    def missing(self, mixture: Mixture) -> list[Part]:
        """Parts with a share of which there is no text."""
        present = set(self.parts.tolist())
        return sorted(part for part, share in mixture.items() if share > 0 and part not in present)

    def repeats(self, mixture: Mixture, texts: int, validation_texts: int, seed: int) -> dict[Part, Repeats]:
        """What distill.repeats must be for epochs that draw, from each part, its share of `texts` texts."""
        training, _ = hold_out(rows_of(self.parts, mixture), self.parts, validation_texts, seed)
        counts = {part: int((self.parts[training] == part).sum()) for part in mixture}
        return {part: round(share * texts) / max(1, counts[part]) for part, share in mixture.items() if share > 0}

    def drawn(self, params: DistillParams, document_share: float, texts_seen: float) -> dict[str, dict[str, int]]:
        """Of each part: texts in the first epoch, and how many different ones all epochs begun draw from it."""
        rows, seed = rows_of(self.parts, params.repeats), params.seed
        training, _ = hold_out(rows, self.parts, params.validation_texts, seed)
        training, repeats = with_documents(training, self.parts, params.repeats, document_share)
        epochs = [epoch_rows(training, self.parts, repeats, seed, 0)]
        begun = range(1, int(np.ceil(texts_seen / len(epochs[0]))))
        epochs += [epoch_rows(training, self.parts, repeats, seed, epoch) for epoch in begun]
        first, different = self.parts[epochs[0]], self.parts[np.unique(np.concatenate(epochs))]
        return {
            part: {"an_epoch": int((first == part).sum()), "different": int((different == part).sum())}
            for part in sorted(repeats)
        }

    def nearest(
        self, dataset: str, queries: np.ndarray, documents: np.ndarray, dim: int, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Exact search in a data set: values and places in its `corpus`, `(queries, count)` or fewer, best first.

        By the first `dim` dimensions; 0 = all.
        """
        asked = truncate(queries, dim or documents.shape[1])
        held = truncate(documents[self.corpus[dataset][0]], dim or documents.shape[1])
        if self.teacher.similarity_fn_name == "cosine":
            faiss.normalize_L2(asked)
            faiss.normalize_L2(held)
        index = faiss.IndexFlatIP(held.shape[1])
        index.add(held)
        values, hits = index.search(asked, min(count, len(held)))
        return values, hits

    def score(self, queries: Mapping[str, np.ndarray], documents: np.ndarray, dims: Sequence[int]) -> dict[str, Scores]:
        """nDCG@10 by exact search, by dimension ("0" = whole embeddings), of every evaluation set.

        `queries` `(n, dim)` by "<split>/<data set>", in the order of `judged_sets`; `documents` `(documents, dim)`.
        """
        found: dict[str, Scores] = {}
        for dim in dims or [0]:
            scores: Scores = {}
            for item in self.judged_sets:
                ids = self.corpus[item.dataset][1]
                asked = queries[f"{item.split}/{item.dataset}"]
                values, hits = self.nearest(item.dataset, asked, documents, dim, HITS)
                names = [[ids[hit] for hit in line] for line in hits.tolist()]
                ndcg = ndcg_at_10(item.qrels, item.query_ids, names, list(values))
                scores.setdefault(item.split, {})[item.dataset] = [round(value, 6) for value in ndcg.tolist()]
            found[str(dim)] = scores
        return found


def open_pipeline(root: Path) -> Pipeline:
    """UserError unless `embed` is done there."""
    if not (root / "data/embed/report.json").is_file():
        raise UserError(
            f"{root}: no data/embed there; run its recipe first, such as `make run RECIPE=recipes/scifact_medquad.yaml"
            " DATA=... STAGES=embed` for runs/scifact_medquad, or give the folder of another run with --run"
        )
    if absent := [name for name in _EMBEDDED if not (root / "data/embed" / name).is_file()]:
        raise UserError(f"{root}/data/embed: has no {', '.join(absent)}; run `embed` there again, as it is today")
    return Pipeline(root)
