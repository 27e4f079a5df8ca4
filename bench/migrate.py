"""python -m bench.migrate [RUN] [--new NAME] [--documents N]: a new model over an old index, beside embedding all anew.

RUN (runs/migrate) is the folder of a run of recipes/migrate.yaml: the teacher of its index is the old model, one of its
score.teachers the new one. nDCG@10 by exact search: of the old model over its index, of the new one over documents that
it embeds here, and of each student over the old index. A student's share of the gain is (student - old) / (new - old),
with a paired bootstrap over queries. With N the corpus is the judged documents and N others drawn by seed. Writes
bench/results/migrate.json, with what embedding all documents costs, and what the new model read for the students.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bench.machine import recording, write_record
from bench.tables.pipeline import Pipeline, Scores, open_pipeline
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.corpus import CorpusTexts
from steps.core.tables import read_table
from steps.encoders.precision import resolve_precision
from steps.encoders.towers import Role, encode, endpoint_of, load_tower
from steps.evaluate.comparing import figures, p_value
from steps.evaluate.systems import TEACHER

RESULT = Path("bench/results/migrate.json")
SEED, SAMPLES, BATCH = 7, 2000, 256


@dataclass(frozen=True)
class Model(Pipeline):
    """A run, searched as one of its teachers compares vectors, over the documents `rows` (ascending) alone."""

    name: str
    rows: np.ndarray

    @property
    def teach(self) -> Path:
        """That teacher's folder."""
        return self.root / "models/teach" / self.name

    @cached_property
    def corpus(self) -> dict[str, tuple[np.ndarray, list[str]]]:
        """Of each data set, where its documents are among `rows`, and their ids."""
        corpus = {}
        for dataset, (rows, ids) in Pipeline(self.root).corpus.items():
            mask = np.isin(rows, self.rows)
            chosen = [doc_id for doc_id, is_chosen in zip(ids, mask, strict=True) if is_chosen]
            corpus[dataset] = np.searchsorted(self.rows, rows[mask]), chosen
        return corpus

    def ndcg(self, tower: SentenceTransformer, documents: np.ndarray) -> Scores:
        """nDCG@10 of each query that the tower reads, over `documents` `(len(rows), dim)`."""
        queries = {f"{item.split}/{item.dataset}": encode(tower, item.texts, "query") for item in self.judged_sets}
        return self.score(queries, documents, ())["0"]


def sample_rows(pipeline: Pipeline, extra_documents: int) -> np.ndarray:
    """Rows of the judged documents and of `extra_documents` more, ascending; 0 = of all."""
    count = sum(len(ids) for _, ids in pipeline.corpus.values())
    if not extra_documents:
        return np.arange(count)
    named = {doc_id for item in pipeline.judged_sets for grades in item.qrels.values() for doc_id in grades}
    judged = np.zeros(count, dtype=bool)
    for rows, ids in pipeline.corpus.values():
        judged[rows] = [doc_id in named for doc_id in ids]
    free = np.flatnonzero(~judged)
    more = np.random.default_rng(SEED).choice(free, min(extra_documents, len(free)), replace=False)
    return np.sort(np.concatenate([np.flatnonzero(judged), more]))


def shares(old: np.ndarray, new: np.ndarray, students: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What is reported of nDCG@10 `(queries,)`: means, shares of `new` (`retention`), and of its gain over `old`.

    No student has a share of a gain that is none. `p` is the paired t-test's that the gain is chance.
    """
    report = figures({TEACHER: new, "old": old, **students}, SAMPLES, SEED)
    report["ndcg"]["new"] = report["ndcg"].pop(TEACHER)
    gains = figures({TEACHER: new - old, **{name: scores - old for name, scores in students.items()}}, SAMPLES, SEED)
    gain = {"ndcg": gains["ndcg"][TEACHER], "p": p_value([new - old]), "share": gains["retention"]}
    return report | {"gain": gain}


def reading(tower: SentenceTransformer, texts: list[str]) -> tuple[np.ndarray, dict[str, float]]:
    """The documents' vectors, and their tokens, seconds (of an API scaled up from new texts) and known money."""
    new_texts, caption = len(texts), "embed documents anew"
    if endpoint := endpoint_of(tower, "document"):
        new_texts = endpoint.announce(texts, tower.prompts.get("document") or "", caption)
    started = time.perf_counter()
    vectors = encode(tower, texts, "document", precision="auto", caption=caption)
    seconds = (time.perf_counter() - started) * len(texts) / new_texts if new_texts else 0.0
    cost = {"documents": len(texts), "tokens": tokens_of(tower, texts), "seconds": round(seconds, 1)}
    return vectors, cost | money(tower, cost["tokens"])


def read_for_students(pipeline: Pipeline, scored: Path, new: Path) -> dict[str, Any]:
    """What the model in `new` read for its table of scores: documents, their share, texts, tokens, known money."""
    table = read_table(scored, "scores")
    rows = {name: np.unique(table[f"{name}_row"].to_numpy()) for name in ("text", "doc")}
    texts = read_table(pipeline.embed, "alignment_texts")["text"].take(rows["text"]).to_pylist()
    documents = list(CorpusTexts(pipeline.ingest, rows["doc"]))
    tower = load_tower(new, "document")
    tokens = tokens_of(tower, documents) + tokens_of(load_tower(new, "query"), texts, "query")
    counts = {"documents": len(documents), "share": len(documents) / len(pipeline.documents), "texts": len(texts)}
    return counts | {"tokens": tokens} | money(tower, tokens)


def money(tower: SentenceTransformer, tokens: float) -> dict[str, float]:
    """What tokens cost of an API whose price is known; else nothing."""
    endpoint = endpoint_of(tower, "document")
    price = endpoint.connection.price if endpoint else 0.0
    return {"money": tokens * price / 1e6} if price else {}


def tokens_of(tower: SentenceTransformer, texts: list[str], role: Role = "document") -> int:
    """Tokens that the tower reads of documents, or of queries; of an API as they are counted here."""
    if endpoint := endpoint_of(tower, role):
        prompt = tower.prompts.get(role) or ""
        return sum(endpoint.tokens(endpoint.cut(prompt + text)) for text in texts)
    batches = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
    return sum(int(tower.preprocess(batch)["attention_mask"].sum()) for batch in batches)


def new_model(pipeline: Pipeline, requested: str) -> str:
    """The teacher's name; UserError unless it is one of those that scored, and can embed documents."""
    params = load_params(pipeline.root / "params.yaml")
    able = [name for name in params.score.teachers if name in params.teach.teacher]
    able = [name for name in able if "vectors" in params.teach.described(name).gives]
    if requested not in able and (requested or len(able) != 1):
        raise UserError(
            f"{pipeline.root}: score.teachers has {able or 'no teacher'} that embeds documents; name the new model with"
            " --new, in a run of recipes/migrate.yaml"
        )
    return requested or able[0]


def measure(root: Path, requested: str = "", extra_documents: int = 0) -> dict[str, Any]:
    """All that is written; UserError for a run whose students are not distilled."""
    pipeline = open_pipeline(root)
    name, rows = new_model(pipeline, requested), sample_rows(pipeline, extra_documents)
    old, new = Model(root, pipeline.teach.name, rows), Model(root, name, rows)
    scored, folders = (
        pipeline.score_tables / name,
        [root / "models/distill" / student for student in pipeline.params.students],
    )
    if absent := [path for path in (scored, *folders) if not (path / "report.json").is_file()]:
        raise UserError(f"{absent[0]}: not there; let the run finish first, `make run RECIPE=recipes/migrate.yaml`")
    texts = list(CorpusTexts(root / "data/ingest", rows))
    anew, cost = reading(load_tower(new.teach / "tower", "document"), texts)
    index = np.asarray(pipeline.documents[rows], dtype=np.float32)
    before, after = old.ndcg(old.teacher, index), new.ndcg(new.teacher, anew)
    students = {path.name: old.ndcg(load_tower(path / "query_encoder"), index) for path in folders}
    by_set = {
        f"{split}/{dataset}": shares(
            np.array(values),
            np.array(after[split][dataset]),
            {student: np.array(scores[split][dataset]) for student, scores in students.items()},
        )
        for split, sets in before.items()
        for dataset, values in sets.items()
    }
    documents, student_reading = len(pipeline.documents), read_for_students(pipeline, scored, new.teach / "tower")
    full_cost = {key: value * documents / len(rows) for key, value in cost.items()}
    return {
        "old": old.name,
        "new": name,
        "documents": documents,
        "sample": len(rows) if extra_documents else None,
        "computed_in": resolve_precision("auto"),
        "embedding_anew": {"measured": cost, "all_documents": full_cost},
        "read_for_students": student_reading,
        "saved": 1 - student_reading["tokens"] / full_cost["tokens"],
        "training_seconds": {path.name: read_json(path / "report.json")["seconds"] for path in folders},
        "sets": by_set,
    }


def report_lines(result: Mapping[str, Any]) -> list[str]:
    """What is printed."""
    cost, counts = result["embedding_anew"]["all_documents"], result["read_for_students"]
    price = f" {cost['money']:,.2f} at the API's price," if "money" in cost else ""
    lines = [
        f"all {result['documents']:,} documents anew: {cost['tokens']:,.0f} tokens,{price} {cost['seconds']:,.0f} s;"
        f" for the students {counts['documents']:,} of them were read ({counts['share']:.1%}) and"
        f" {counts['texts']:,} texts: {counts['tokens']:,} tokens, {result['saved']:.1%} less"
    ]
    for name, row in result["sets"].items():
        ndcg, gain = row["ndcg"], row["gain"]
        lines.append(
            f"{name}: old {ndcg['old']:.4f}, new {ndcg['new']:.4f} ({gain['ndcg']:+.4f}, p {gain['p']:.2g};"
            f" {row['queries']} queries)"
        )
        for student in result["training_seconds"]:
            text = f"  {student} {ndcg[student]:.4f}"
            if share := gain["share"].get(student):
                low, high = share["ci95_low"], share["ci95_high"]
                text += f": {share['ratio']:.0%} of the gain ({low:.0%} to {high:.0%})"
            if retention := row["retention"].get(student):
                text += f", {retention['ratio']:.1%} of the new model's"
            lines.append(text)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.migrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/migrate"))
    parser.add_argument("--new", default="", help="the new model, where several teachers score")
    parser.add_argument("--documents", type=int, default=0, help="besides the judged ones; 0 = all")
    words = parser.parse_args()
    result = measure(words.run, words.new, words.documents)
    print("\n".join(report_lines(result)))
    write_record(RESULT, {"run": words.run.name, **result})


if __name__ == "__main__":
    recording(main)
