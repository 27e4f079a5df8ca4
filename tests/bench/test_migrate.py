"""recipes/migrate.yaml and its bench: students that learned a new model's rankings search the old index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from whole_run import params_of, run_ingest, write_lines

from bench.migrate import drawn, measure, new_model, shares, told
from bench.tables.pipeline import Pipeline
from pipeline.params import Params
from steps.core.errors import UserError
from steps.core.tables import SCHEMAS, table_from_rows, write_table
from steps.core.tracking import NullRun

VERBS = {"sum": "add", "sort": "order", "merge": "join", "plot": "show", "filter": "pick", "scale": "resize",
         "draw": "sketch", "count": "tally", "split": "cut", "find": "seek"}  # fmt: skip
THINGS = {"rows": "records", "columns": "fields", "vectors": "arrays", "images": "pictures", "tables": "frames",
          "words": "terms", "files": "folders", "graphs": "networks", "colours": "hues", "dates": "days"}  # fmt: skip


def write_synonyms(folder: Path) -> Path:
    """A hundred documents in BEIR's layout; only training can tell which words of queries mean which of documents."""
    pairs = [(verb, thing) for verb in VERBS for thing in THINGS]
    names = [f"{verb}-{thing}" for verb, thing in pairs]
    texts = [(f"{verb} {thing}", f"to {verb} all {thing} at once") for verb, thing in pairs]
    asked = [f"how to {VERBS[verb]} the {THINGS[thing]}" for verb, thing in pairs]
    corpus = [{"_id": name, "title": title, "text": text} for name, (title, text) in zip(names, texts, strict=True)]
    write_lines(folder / "corpus.jsonl", corpus)
    queries = [{"_id": f"q.{name}", "text": text} for name, text in zip(names, asked, strict=True)]
    write_lines(folder / "queries.jsonl", queries)
    for split, chosen in {"train": (0, 1, 2), "dev": (3,), "test": (4,)}.items():
        path = folder / "qrels" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        own = [name for number, name in enumerate(names) if (number + number // 10) % 5 in chosen]
        path.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q.{name}\t{name}\t1\n" for name in own))
    return folder


def run_stages(root: Path, params: Params) -> None:
    """`teach` to `distill` of a run in `root`, whose `mine` gave each training query one triplet."""
    from steps.distill.run import run as distill
    from steps.embed.run import run as embed
    from steps.score.run import run as score
    from steps.teach.run import run as teach

    ingest, mine, run = run_ingest(root, params), root / "data/mine/relevance", NullRun()
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    trained = [f"own/{verb}-{thing}" for verb in VERBS for thing in THINGS]
    trained = [name for number, name in enumerate(trained) if (number + number // 10) % 5 < 3]
    rows = [
        {"query_id": name.replace("own/", "own/q."), "positive_id": name, "negative_id": trained[number - 1],
         "source": "judged", "via_query_id": "", "weight": 1.0}
        for number, name in enumerate(trained)
    ]  # fmt: skip
    write_table(mine, "triplets", table_from_rows("triplets", rows))
    write_table(root / "data/generate", "generated_queries", SCHEMAS["generated_queries"].empty_table())
    (root / "data/rank").mkdir()
    for name in params.teach.teachers:
        described = params.teach.described(name)
        teach(ingest, mine, root / "models/teach" / name, described, run, root / "data/rank")
    folders = {"embed": root / "data/embed", "teach": root / "models/teach" / params.teach.index}
    embed(ingest, root / "data/generate", folders["teach"], folders["embed"], params.embed, run)
    for name in params.score.teachers:
        new, output = root / "models/teach" / name, root / "data/score" / name
        score(ingest, folders["embed"], new, output, params.score, run)
    for name in params.distill.students:
        output = root / "models/distill" / name
        distill(name, ingest, mine, folders["embed"], root / "data/score", folders["teach"], output, params.distill, run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_students_over_the_old_index_win_what_a_new_model_would_by_embedding_anew(
    tmp_path: Path, tiny_tower: Path
) -> None:
    old = {"base": str(tiny_tower), "max_document_length": 64, "precision": "fp32"}
    new = old | {"epochs": 40.0, "learning_rate": 1e-3, "dev_queries": 0, "batch_size": 16}
    ranked = {"epochs": 20.0, "learning_rate": 2e-3}
    adapter = {"start": {"adapter": str(tmp_path / "models/teach/new/tower")}}
    changes: dict[str, Any] = {
        "teach": {"teacher": {"old": old, "new": new}},
        "score": {"precision": "fp32"},
        "distill": {
            "students": ["2l", "adapter"],
            "student": {"2l": {"epochs": 2.0, "start": {"layers": [0, -1]}}, "adapter": adapter | ranked},
        },
    }
    params = params_of("migrate.yaml", tiny_tower, changes, DATA=str(write_synonyms(tmp_path / "given")))
    run_stages(tmp_path, params)
    found = measure(tmp_path)
    print("\n".join(told(found)))
    assert 0
