"""What the rows of a table are trained on: the pipeline up to `mine`, once for all rows that mine alike."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from bench.tables.pipeline import Pipeline
from bench.teachers.described import UNTRAINED, Table
from pipeline.params import check_params
from pipeline.recipe import fill, overlay
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.common.settings import PARAMS, parse_mapping, read_mapping
from steps.teach.kinds.base import Teacher

RECIPES = Path(".cache/bench-teachers/recipes")
STAGE = "mine@relevance"
_MINING = ("ingest", "candidates", "mine", "rank")  # sections that triplets depend on
_VARIABLES = ("DATA", "DATASET", "UNLABELLED", "RELEVANCE", "TEST_FROM", "SIMULATED", "SINCE", "UNTIL")  # of recipes


@dataclass(frozen=True)
class Plan:
    """A row's teacher, and the run that mines for it: its name, and the recipe as text, its variables filled."""

    teacher: Teacher
    run: str
    recipe: str

    def seeded(self, seed: int) -> Teacher:
        """The teacher with another seed, of which a base that stays as it is has no use."""
        if getattr(self.teacher, "epochs", None) == 0:
            return self.teacher
        return self.teacher.model_copy(update={"seed": seed})


@dataclass(frozen=True)
class Mined:
    """A run in which `mine` is done."""

    pipeline: Pipeline

    @cached_property
    def digest(self) -> str:
        """Hex sha256 over all tables that a teacher is trained on and judged by."""
        tables = [self.pipeline.ingest / f"{name}.parquet" for name in ("impressions", "relevance")]
        digests = [sha256_file(path) for path in (*tables, self.pipeline.mine / "triplets.parquet")]
        return hashlib.sha256(" ".join([self.pipeline.data_digest, *digests]).encode()).hexdigest()

    @cached_property
    def rankers(self) -> dict[str, Any]:
        """The report of each ranker that scored for it, by name: how good it is, beside BM25 and its base."""
        return {path.parent.name: read_json(path) for path in sorted(self.pipeline.rankers.glob("*/report.json"))}


def plans(name: str, table: Table, variables: Mapping[str, str]) -> dict[str, Plan]:
    """A plan for each row; rows that mine alike share the run of the first. UserError for what cannot be planned."""
    recipe, params = _recipe(name, table, variables), read_mapping(PARAMS)
    runs: dict[str, str] = {}
    plans_by_row = {}
    for row in table.rows:
        where, change = f"bench/teachers.yaml: tables.{name}.rows.{row}", table.overlay_of(row)
        raw = overlay(overlay(params, recipe), change)
        checked = check_params(raw, where)
        mining = json.dumps({section: raw[section] for section in _MINING}, sort_keys=True)
        run = runs.setdefault(mining, f"teachers_{name}_{row}")
        mines = overlay(recipe, {key: section for key, section in change.items() if key in _MINING})
        teacher = checked.teach.described(checked.teach.index)
        if row == UNTRAINED and getattr(teacher, "epochs", None) != 0:
            raise UserError(f"{where}: is trained; set the teacher's epochs: 0.0 there, as the others start from it")
        plans_by_row[row] = Plan(teacher, run, yaml.safe_dump(mines, sort_keys=False, allow_unicode=True))
    return plans_by_row


def given_variables() -> dict[str, str]:
    """What the environment says of the variables that recipes read."""
    return {name: value for name in _VARIABLES if (value := os.environ.get(name))}


def mined(plan: Plan) -> Mined:
    """The plan's run, brought up to date; UserError where a stage fails, after it has said why."""
    recipe = RECIPES / f"{plan.run}.yaml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(plan.recipe, encoding="utf-8")
    if subprocess.run([sys.executable, "-m", "pipeline.recipe", str(recipe), STAGE]).returncode:
        raise UserError(f"runs/{plan.run}: a stage up to {STAGE} failed; mend what it says above, then run this again")
    return Mined(Pipeline(Path("runs") / plan.run))


def _recipe(name: str, table: Table, variables: Mapping[str, str]) -> dict[str, Any]:
    """The table's recipe with its variables filled; one that changes nothing for the embedded demo."""
    if not table.recipe:
        return {}
    path = Path(table.recipe)
    if not path.is_file():
        raise UserError(f"bench/teachers.yaml: tables.{name}.recipe: {path}: no such file; name one of recipes/")
    text = path.read_text(encoding="utf-8")
    if "${DATA}" in text and not variables.get("DATA"):
        raise UserError(
            f"DATA: the table {name} reads {path}, whose comments say how to get its data; run"
            f" `make bench NAME=teachers ARGS={name} DATA=<folder>`"
        )
    return parse_mapping(fill(text, dict(variables), path), str(path))


def data_of(mined: Mined) -> dict[str, Any]:
    """What a table was measured on: documents, and judged queries by split and data set."""
    pipeline = mined.pipeline
    queries: dict[str, dict[str, int]] = {}
    for item in pipeline.judged_sets:
        queries.setdefault(item.split, {})[item.dataset] = len(item.query_ids)
    documents = {dataset: len(ids) for dataset, (_, ids) in pipeline.corpus.items()}
    return {"digest": pipeline.data_digest, "documents": documents, "queries": queries}
