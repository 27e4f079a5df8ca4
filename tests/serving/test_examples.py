"""The queries that help, errors and the page show are answered: by the teacher and by a student of the embedded data."""

from pathlib import Path
from typing import Any

import pytest
from whole_run import read_mapping, run_ingest

from pipeline.params import check_params
from pipeline.recipe import overlay
from steps.core.tables import SCHEMAS, write_table
from steps.core.towers import encode, load_tower
from steps.core.tracking import NullRun
from steps.serving.examples import ANSWERS, answered_examples
from steps.serving.release import load_release

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The demo's packages in which the answers are, fewer documents of them, and the student that needs no transformer
SMALL: dict[str, Any] = {
    "ingest": {"sources": [{"name": "api", "kind": "api_docs", "packages": ["matplotlib", "pandas", "PIL"],
                            "max_documents": 2000, "test_queries": 50, "dev_queries": 50}]},
    "teach": {"teacher": {"dense": {"epochs": 0.0, "max_document_length": 48}}},
    "embed": {"parts": ["train_queries", "titles"], "least_texts": 0},
    "distill": {"students": ["static"], "student": {"static": {"epochs": 12.0, "batch_size": 256}}},
    "release": {"lexical": "always"},
}  # fmt: skip


def test_teacher_and_student_answer_every_example_among_their_first_three(tmp_path: Path) -> None:
    from steps.distill.run import run as distill
    from steps.embed.run import run as embed
    from steps.index.run import run as index
    from steps.release.run import run as release
    from steps.teach.run import run as teach

    params, run = check_params(overlay(read_mapping(Path("params.yaml")), SMALL), "small"), NullRun()
    ingest = run_ingest(tmp_path, params)
    for name, folder in (("triplets", "mine"), ("generated_queries", "generate")):
        write_table(tmp_path / folder, name, SCHEMAS[name].empty_table())
    teach(ingest, tmp_path / "mine", tmp_path / "teach", params.teach.described("dense"), run)
    embed(ingest, tmp_path / "generate", tmp_path / "teach", tmp_path / "embed", params.embed, run)
    index(ingest, tmp_path / "embed", tmp_path / "teach", tmp_path / "index", params.index, run)
    distill(
        student="static",
        ingest=ingest,
        mine=tmp_path / "mine",
        embed=tmp_path / "embed",
        score=tmp_path / "score",
        teach=tmp_path / "teach",
        output=tmp_path / "distill",
        params=params.distill,
        run=run,
    )
    release("static", tmp_path / "distill", tmp_path / "index", ingest, tmp_path / "release", params.release, run)
    opened, tower = load_release(tmp_path / "release"), load_tower(tmp_path / "teach/tower")
    assert answered_examples(opened, "api") == list(ANSWERS)
    for query, answers in ANSWERS.items():
        vector = encode(tower, [query], "query")
        for hits in (opened.hits("api", vector, 3)[0], opened.answers("api", [query], vector, 3)[0]):
            assert {hit.id.removeprefix("api/") for hit in hits} & answers, query


def test_no_example_is_offered_for_other_data(released: Path) -> None:
    release = load_release(released / "models/release/static")
    assert [answered_examples(release, dataset) for dataset in release.datasets] == [[], []]
