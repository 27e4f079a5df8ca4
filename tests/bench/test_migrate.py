"""recipes/migrate.yaml and its bench: students that learned a new model's rankings search the old index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rows import write_rows
from scipy import stats
from stages import run_stage
from whole_run import params_of, run_ingest, write_lines

from bench.migrate import Model, measure, new_model, report_lines, sample_rows, shares
from bench.tables.pipeline import Pipeline
from pipeline.params import Params
from slimtower.common.errors import UserError
from steps.core.corpus import CorpusTexts
from steps.core.tables import read_table
from steps.encoders.towers import load_tower

VERBS = {"sum": "add", "sort": "order", "merge": "join", "plot": "show", "filter": "pick", "scale": "resize",
         "draw": "sketch", "count": "tally", "split": "cut", "find": "seek"}  # fmt: skip
THINGS = {"rows": "records", "columns": "fields", "vectors": "arrays", "images": "pictures", "tables": "frames",
          "words": "terms", "files": "folders", "graphs": "networks", "colours": "hues", "dates": "days"}  # fmt: skip


def write_synonyms(folder: Path) -> Path:
    """A hundred documents in BEIR's layout; only training can tell which words of queries mean which of documents."""
    pairs = [(verb, thing) for verb in VERBS for thing in THINGS]
    names = [f"{verb}-{thing}" for verb, thing in pairs]
    documents = [(f"{verb} {thing}", f"to {verb} all {thing} at once") for verb, thing in pairs]
    texts = [f"how to {VERBS[verb]} the {THINGS[thing]}" for verb, thing in pairs]
    corpus = [{"_id": name, "title": title, "text": text} for name, (title, text) in zip(names, documents, strict=True)]
    write_lines(folder / "corpus.jsonl", corpus)
    queries = [{"_id": f"q.{name}", "text": text} for name, text in zip(names, texts, strict=True)]
    write_lines(folder / "queries.jsonl", queries)
    for split, chosen in {"train": (0, 1, 2), "dev": (3,), "test": (4,)}.items():
        path = folder / "qrels" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        split_names = [name for number, name in enumerate(names) if (number + number // 10) % 5 in chosen]
        path.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q.{name}\t{name}\t1\n" for name in split_names))
    return folder


def run_stages(root: Path, params: Params) -> None:
    """`ingest` and `teach` to `distill` of a run in `root`; each training query has one triplet."""
    ingest, models = run_ingest(root, params), root / "models"
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    judged = [row for row in read_table(ingest, "qrels").to_pylist() if row["split"] == "train"]
    write_rows(root / "data/mine/relevance", "triplets", [
        (row["query_id"], row["doc_id"], judged[number - 1]["doc_id"], "judged", "", 1.0)
        for number, row in enumerate(judged)
    ])  # fmt: skip
    write_rows(root / "data/generate", "generated_queries")
    (root / "data/rank").mkdir()
    for name in params.teach.teachers:
        run_stage("teach", root, models / "teach" / name, params.teach.described(name), rankers=Path("data/rank"))
    teacher = models / "teach" / params.teach.index
    run_stage("embed", root, root / "data/embed", params.embed, teach=teacher)
    for name in params.score.teachers:
        run_stage("score", root, root / "data/score" / name, params.score, teach=models / "teach" / name)
    for name in params.distill.students:
        run_stage("distill", root, models / "distill" / name, params.distill, student=name, teach=teacher)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_students_over_the_old_index_win_what_a_new_model_would_by_embedding_anew(
    tmp_path: Path, tiny_tower: Path
) -> None:
    old = {"base": str(tiny_tower), "max_document_length": 64, "precision": "fp32"}
    new = old | {"epochs": 30.0, "learning_rate": 1e-3, "dev_queries": 0, "batch_size": 16}
    learned = [{"kind": "score_kl", "teacher": "new"}]
    ranked = {"losses": learned, "teacher_top_k": 100, "learning_rate": 2e-3, "epochs": 20.0}
    layered = {"start": {"layers": [0, -1]}, "epochs": 1.0, "then": [ranked]}
    adapter = {"start": {"adapter": str(tmp_path / "models/teach/new/tower")}, "epochs": 0.01}
    changes: dict[str, Any] = {
        "teach": {"teacher": {"old": old, "new": new}},
        "embed": {"neighbours": 100},  # a random network finds the right ones anywhere
        "score": {"precision": "fp32", "depth": 0},
        "distill": {"students": ["2l", "adapter"], "student": {"2l": layered, "adapter": adapter}},
    }
    params = params_of("migrate.yaml", tiny_tower, changes, DATA=str(write_synonyms(tmp_path / "given")))
    run_stages(tmp_path, params)
    result = measure(tmp_path)
    row = result["sets"]["test/own"]
    assert row["queries"] == 20 and row["ndcg"]["new"] > 0.9 and row["ndcg"]["old"] < 0.3
    for student in ("2l", "adapter"):
        share = row["gain"]["share"][student]
        assert share["ci95_low"] <= share["ratio"] <= share["ci95_high"] and share["ratio"] > 0.7
        gain = row["ndcg"][student] - row["ndcg"]["old"]
        assert share["ratio"] == pytest.approx(gain / (row["ndcg"]["new"] - row["ndcg"]["old"]))
        assert any(line.startswith(f"  {student} {row['ndcg'][student]:.4f}: ") for line in report_lines(result))
    assert (result["old"], result["new"], result["documents"], result["sample"]) == ("old", "new", 100, None)
    texts = CorpusTexts(tmp_path / "data/ingest")
    tokenizer = load_tower(tmp_path / "models/teach/new/tower").tokenizer
    token_ids = tokenizer(list(texts))["input_ids"]
    assert result["embedding_anew"]["all_documents"]["tokens"] == sum(map(len, token_ids))
    alignment_texts = read_table(tmp_path / "data/embed", "alignment_texts")["text"].to_pylist()
    scored = sorted(set(read_table(tmp_path / "data/score/new", "scores")["text_row"].to_pylist()))
    tokens = sum(map(len, token_ids)) + sum(map(len, tokenizer([alignment_texts[row] for row in scored])["input_ids"]))
    assert result["read_for_students"] == {"documents": 100, "share": 1.0, "texts": len(scored), "tokens": tokens}
    assert result["saved"] == pytest.approx(1 - tokens / sum(map(len, token_ids))) and result["saved"] < 0

    rows = sample_rows(pipeline := Pipeline(tmp_path), 10)
    qrels = read_table(tmp_path / "data/ingest", "qrels").to_pylist()
    judged = {row["doc_id"] for row in qrels if row["split"] != "train"}
    assert len(judged) == 40 and len(rows) == 50 == len(set(rows)) and list(rows) == sorted(rows)
    chosen, ids = Model(tmp_path, "old", rows).corpus["own"]
    assert judged < set(ids) and list(chosen) == list(range(50))
    assert ids == [pipeline.corpus["own"][1][number] for number in rows]
    part = measure(tmp_path, extra_documents=10)
    assert part["sample"] == 50 and part["sets"]["test/own"]["ndcg"]["old"] >= row["ndcg"]["old"]
    cost = part["embedding_anew"]
    assert cost["all_documents"]["tokens"] == 2 * cost["measured"]["tokens"]
    with pytest.raises(UserError, match="new"):
        new_model(pipeline, "old")


def test_a_share_is_of_the_gain_and_there_is_none_of_a_loss() -> None:
    draw = np.random.default_rng(3)
    old = draw.random(400)
    new, student = old + 0.2 + 0.1 * draw.standard_normal(400), old + 0.1 + 0.1 * draw.standard_normal(400)
    report = shares(old, new, {"s": student})
    assert report["ndcg"] == pytest.approx({"old": old.mean(), "new": new.mean(), "s": student.mean()})
    assert report["gain"]["ndcg"] == pytest.approx((new - old).mean()) and report["gain"]["p"] < 1e-9
    share = report["gain"]["share"]["s"]
    assert share["ratio"] == pytest.approx((student - old).mean() / (new - old).mean())
    gains = stats.bootstrap(
        (student - old, new - old), lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True,
        n_resamples=4000, method="percentile", rng=4,
    )  # fmt: skip
    ends = gains.confidence_interval
    assert [share["ci95_low"], share["ci95_high"]] == pytest.approx([ends.low, ends.high], abs=0.01)
    assert report["retention"]["s"]["ratio"] == pytest.approx(student.mean() / new.mean())
    assert shares(new, old, {"s": student})["gain"]["share"] == {}
