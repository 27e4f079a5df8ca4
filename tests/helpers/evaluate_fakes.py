"""Fakes for the evaluate tests: hashed bags of words as encoders, and the folders that the stage reads."""

import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from rows import write_rows

from slimtower.common.files import sha256_file, write_json
from slimtower.lexical.bm25 import Bm25
from slimtower.lexical.fusion import WeightedSum
from slimtower.serving.release import Documents
from steps.core.tables import table_from_rows, write_table
from steps.core.texts import words
from steps.evaluate import run as stage
from steps.evaluate.judging import Folders
from steps.evaluate.latency import Encode
from steps.evaluate.params import EvaluateParams
from steps.evaluate.systems import Lexical, Student, Systems, Teacher, bm25_search
from steps.retrieval.noninferiority import NonInferiority
from steps.tracking.runs import NullRun, Run

RULE = NonInferiority(margin=0.005, confidence=0.95, resamples=1000, seed=1)  # the promotion gate's
TOPICS = ("matrix", "graph", "string", "socket", "widget", "ledger", "planet", "river", "engine", "violin")


def params(**changes: object) -> EvaluateParams:
    """Small settings."""
    values: dict[str, object] = {
        "budget_ms": 0.0,
        "fused": False,
        "ignore_identical_ids": False,
        "rerankers": [],
        "rerank_depth": 10,
        "measures": ["nDCG@10", "RR@10", "AP@1000", "R@5", "R@20", "R@100"],
        "latency_queries": 10,
        "slices": {},
        "seed": 13,
    }
    return EvaluateParams.model_validate(values | changes)


def bag_of_words(texts: list[str], dim: int = 64, known: int = 10_000) -> np.ndarray:
    """Unit vectors of hashed word counts, float32 `(len(texts), dim)`; words past the first `known` are not read."""
    vectors = np.full((len(texts), dim), 1e-6, dtype=np.float32)
    for row, text in enumerate(texts):
        for word in words(text)[:known]:
            vectors[row, zlib.crc32(word.encode()) % dim] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass
class FakeRelease:
    """A release over hashed bags of words; `known` limits how much of a query its encoder reads."""

    documents_by_set: dict[str, dict[str, str]]
    known: int = 10_000
    model_bytes: int = 123_456
    searched: list[str] = field(default_factory=list)
    opened: dict[tuple[str, str], faiss.Index] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        return sorted(self.documents_by_set)

    def fusion(self, dataset: str) -> None:
        """None: it carries no BM25 index."""

    def kinds(self, dataset: str) -> list[str]:
        return ["ann", "flat"]

    @property
    def folder(self) -> Path:
        return Path("no-such-folder")

    @property
    def entries(self) -> dict[str, Any]:
        indexes = {"flat": {"settings": {}}, "ann": {"settings": {"nprobe": 2}}}
        return {name: {"indexes": indexes} for name in self.documents_by_set}

    def documents(self, dataset: str) -> Documents:
        ids = list(self.documents_by_set[dataset])
        return Documents(ids, ids)

    def index(self, dataset: str, kind: str = "ann") -> faiss.Index:
        if (dataset, kind) not in self.opened:
            vectors = bag_of_words(list(self.documents_by_set[dataset].values()))
            text = "Flat" if kind == "flat" else "IVF4,Flat"
            index = faiss.index_factory(vectors.shape[1], text, faiss.METRIC_INNER_PRODUCT)
            if kind == "ann":
                index.cp.min_points_per_centroid = 1
            index.train(vectors)
            index.add(vectors)
            self.opened[dataset, kind] = index
        return self.opened[dataset, kind]

    def index_bytes(self, dataset: str, kind: str) -> int:
        return {"flat": 1000, "ann": 100}[kind]

    def encode(self, texts: list[str]) -> np.ndarray:
        return bag_of_words(texts, known=self.known)

    def search(
        self, dataset: str, vectors: np.ndarray, k: int, kind: str = "flat", threads: int = 0
    ) -> tuple[np.ndarray, list[list[str]]]:
        self.searched.append(kind)
        ids = list(self.documents_by_set[dataset])
        scores = vectors @ bag_of_words(list(self.documents_by_set[dataset].values())).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, 1), [[ids[column] for column in row] for row in order]


class HybridRelease(FakeRelease):
    """A release that carries BM25 of every data set."""

    def fusion(self, dataset: str) -> Any:
        return WeightedSum(depth=100, weight=0.1)

    @property
    def folder(self) -> Path:
        return Path(__file__).parent

    def lexical(self, dataset: str) -> Bm25:
        documents = self.documents_by_set[dataset]
        return Bm25(list(documents), list(documents.values()))


class BetterRelease(FakeRelease):
    """A release without BM25 whose encoder reads every other query whole."""

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.concatenate([bag_of_words([text], known=9 if len(text) % 2 else 1) for text in texts])


def fake_systems(
    root: Path, documents: dict[str, dict[str, str]], teacher: Encode = bag_of_words, **words_by_student: int
) -> Systems:
    """BM25 over the corpus below `root`, a teacher that reads whole queries, and students that read so many words."""
    students = []
    for name, words_read in words_by_student.items():
        release: Any = FakeRelease(documents, known=words_read)
        students.append(Student(name, f"reads {words_read}", release, release.encode))
    complete: Any = FakeRelease(documents)
    lexical = Lexical(sha256_file(root / "ingest" / "corpus.parquet"), bm25_search(root / "ingest"))
    return Systems(lexical, Teacher("whole", complete, teacher, 1_000_000), students)


def hybrid_systems(root: Path, judged: tuple[str, ...] = ("api", "med")) -> Systems:
    """A student that reads one word and is released with BM25, and one that reads more, without."""
    documents = write_inputs(root, judged=judged)
    releases: dict[str, Any] = {"static": HybridRelease(documents, known=1), "2l": BetterRelease(documents)}
    students = [Student(name, type(release).__name__, release, release.encode) for name, release in releases.items()]
    return replace(fake_systems(root, documents), students=students)


def folders_of(root: Path) -> Folders:
    """Those below `root` that `write_inputs` writes."""
    return Folders(*(root / name for name in ("ingest", "mine", "embed", "generate", "teach", "distill")))


def evaluate(
    systems: Systems, root: Path, evaluate_params: EvaluateParams | None = None, run: Run | None = None
) -> Path:
    """Run the stage over what `write_inputs` wrote below `root`; returns its output."""
    stage.evaluate(systems, folders_of(root), root / "reports", evaluate_params or params(), RULE, run or NullRun())
    return root / "reports"


def write_inputs(
    root: Path,
    datasets: tuple[str, ...] = ("api", "med"),
    leak: str = "",
    judged: tuple[str, ...] = ("api", "med"),
    dev: bool = True,
) -> dict[str, dict[str, str]]:
    """Write what `evaluate` reads below `root`; returns the documents' texts by data set and id.

    `leak` = alignment, generated or mined plants the first dev query of the first data set there. Data sets that are
    not `judged` have no judgements of dev and test queries, and without `dev` no dev query has any; the students held
    out two texts of each data set.
    """
    corpus, queries, qrels = [], [], []
    for dataset in datasets:
        for number in range(30):
            topic = TOPICS[number % len(TOPICS)]
            content = f"about the {topic} of kind number{number}"
            corpus.append(
                {"doc_id": f"{dataset}/d{number}", "dataset": dataset, "title": topic, "topic": "", "content": content}
            )
        for number in range(30):
            split = ("test", "dev", "train")[number % 3]
            row = {"query_id": f"{dataset}/q{number}", "dataset": dataset, "split": split}
            queries.append(row | {"text": f"{TOPICS[number % len(TOPICS)]} please find number{number} {dataset}"})
            if split == "train" or (dataset in judged and (dev or split == "test")):
                qrels.append(row | {"doc_id": f"{dataset}/d{number}", "grade": 1})
    write_table(root / "ingest", "corpus", table_from_rows("corpus", corpus))
    write_table(root / "ingest", "queries", table_from_rows("queries", queries))
    write_table(root / "ingest", "qrels", table_from_rows("qrels", qrels))
    held_out = next(row for row in queries if row["split"] == "dev")
    trained = next(row for row in queries if row["split"] == "train")
    shouted = str(held_out["text"]).upper() + "!"
    _write_training(
        root,
        alignment=shouted if leak == "alignment" else "some other text",
        generated=shouted if leak == "generated" else "yet another text",
        mined=str((held_out if leak == "mined" else trained)["query_id"]),
    )
    sessions = {datasets[0]: {"sessions": {"simulated": True}}}
    write_json(root / "ingest" / "report.json", {"simulated": True, "datasets": sessions, "documents": len(corpus)})
    write_json(root / "teach" / "report.json", {"base": "all-MiniLM-L6-v2", "comparison": None})
    write_json(root / "embed" / "report.json", {"cut_documents": 0.0})
    write_json(root / "generate" / "report.json", {"rows": 1})
    write_json(root / "mine" / "report.json", {"rows": {"click_one_hop": 1}})
    held_out = [
        {"text_sha": f"{at}{name}", "text": text, "part": "sentences", "role": "query", "source_id": f"{name}/d0"}
        for name in datasets
        for at in range(20)
        for text in (f"a violin number{at} or a graph" if at % 2 else f"a matrix number{at}",)
    ]
    for student, seconds in {"static": 1.2, "2l": 12.6}.items():
        report = {"seconds": seconds, "spec": {"name": student}, "seed": 7}
        write_json(root / "distill" / student / "report.json", report)
        write_table(root / "distill" / student, "held_out", table_from_rows("held_out", held_out))
    return {
        dataset: {row["doc_id"]: f"{row['title']} {row['content']}" for row in corpus if row["dataset"] == dataset}
        for dataset in datasets
    }


def _write_training(root: Path, alignment: str, generated: str, mined: str) -> None:
    for folder in ("embed", "generate", "mine", "ingest", "teach"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    write_rows(root / "embed", "alignment_texts", [("0", alignment, "titles", "query", "x")])
    write_rows(root / "generate", "generated_queries", [("g", "s", 0, generated, 0.1, 0.1)])
    write_rows(root / "mine", "triplets", [(mined, "p", "n", "click_one_hop", "", 1.0)])
