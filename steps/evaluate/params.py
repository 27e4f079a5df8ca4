"""Section `evaluate` of params.yaml."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from slimtower.common.settings import Strict
from steps.core.measures import NDCG, parse_measure
from steps.core.params import Name, Seed

ANSWER = re.compile(r"Answer@([1-9]\d*)")
REL, SAT = "AUC-REL", "AUC-SAT"
_FIGURES = Path(__file__).parent / "figures"
SPLITS = ("test", "dev")  # test is reported and promoted on; dev is what knobs are chosen on
AS_ONE = ("cqadupstack",)  # data sets named cqadupstack-... count as one, by the mean over them, as in BEIR
BATCH_SIZE = 64  # queries encoded at once while quality is measured
BOOTSTRAP_SAMPLES = 2000  # of the queries, for intervals around shares of the teacher
HEADLINE = ("nDCG_at_10", "teacher_nDCG_at_10", "retention", "p50_ms", "times_as_fast")
"""Names of the figures that stand for a whole run in MLflow's list of runs."""
HITS = 1000  # a query that are searched for the measures


class EvaluateParams(Strict):
    """How quality, retention and speed are measured, and what the chosen student may take."""

    budget_ms: float = Field(ge=0)
    """Most milliseconds of one query on one thread (p50): text to embedding, or text to hits of all students where the
    release of one carries BM25. Of the students within it the fastest that is no worse on dev than the best, as their
    releases serve them, is chosen, and the runner-up recorded. 0.0 = no budget.
    """
    earlier_towers: bool = False
    """Whether the towers that the teacher was before, its base and each earlier round, are measured and compared with
    it as well. Each reads the whole corpus once, which takes as long as `embed` does.
    """
    fused: bool
    """Whether the teacher and every student are measured fused with BM25 as well, by the fusion that is best on dev, or
    by the standard one if no dev query is judged.
    """
    rerankers: list[Name]
    """Other teachers (of teach.teachers, of any kind but endpoint) and rank.rankers that re-rank the first rerank_depth
    hits of the index's teacher; each is a system of its own. [] = none.
    """
    rerank_depth: int = Field(default=100, ge=1)
    """Hits that they re-rank."""
    measures: list[str]
    """By ir-measures' names, as trec_eval computes them: nDCG@k, RR@k, AP@k, R@k, P@k, Success@k; R(rel=2)@100 counts
    documents from grade 2 on. Answer@k: share of the queries with an answer string in their first k documents
    (answers.jsonl of a BEIR folder); AUC-REL and AUC-SAT: over all judged pairs, by relevance and by satisfaction,
    of systems whose scores compare between queries: not of fused and re-ranked ones.
    nDCG@10 is always measured.
    """
    min_relevance: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """Grade from which a document is relevant, by data set, where not 1: {trec_dl: 2}; not for nDCG."""
    ignore_identical_ids: bool
    """Whether a hit that has the query's own id is dropped, as BEIR does (ArguAna, Quora): by every measure, and where
    `release` chooses precision and fusion on dev.
    """
    latency_queries: int = Field(default=200, ge=10)
    """Test queries timed one by one for p50 and p99, and as many, in whole batches, for queries/s."""
    analyses: list[str] = Field(default=[])
    """Figures of the report that explain rather than decide, each a second look at teacher and students: geometry and
    space (how embeddings and neighbours differ from the teacher's), proposition (EmbedDistill's bound), semantic_ids,
    effort (how far the index must be searched), and what else is an analysis in steps/evaluate/figures.
    """
    slices: dict[str, str]
    """Slices of the test queries of your own, beside those by length, words unseen in training and form: a name and a
    regular expression that their text holds, e.g. {sizes: '(?i)\\bsize \\d+'}. Without (?i) capitals are told apart.
    Reported from 20 queries on.
    """
    slice_table: str = ""
    """Or a table (Parquet, .csv, .tsv) with the columns query_id, as in data/ingest, and slice; "" = none. DVC does
    not see it change: then run the stage with `dvc repro -f -s evaluate`.
    """
    seed: Seed = 13
    """Draws the timed queries and the resamplings."""

    @property
    def by_query(self) -> list[str]:
        """Those of `measures` that have a value for each query."""
        return [name for name in self.measures if name not in (REL, SAT)]

    @field_validator("measures")
    @classmethod
    def _are_measures(cls, names: list[str]) -> list[str]:
        return list(dict.fromkeys([NDCG, *map(_measure, names)]))

    @model_validator(mode="after")
    def _hits_are_enough(self) -> Self:
        for name in self.by_query:
            answer = ANSWER.fullmatch(name)
            depth = int(answer[1]) if answer else parse_measure(name).params.get("cutoff", 0)
            if depth > HITS:
                raise ValueError(f"measures: {name} looks at more hits than the {HITS} that are searched")
        return self

    @field_validator("analyses")
    @classmethod
    def _are_figures(cls, names: list[str]) -> list[str]:
        files = {path.stem for path in _FIGURES.glob("[!_]*.py")} - {"base"}
        if unknown := sorted(set(names) - files):
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(files))}")
        return names

    @field_validator("slices")
    @classmethod
    def _can_be_searched_for(cls, slices: dict[str, str]) -> dict[str, str]:
        for name, pattern in slices.items():
            if not re.fullmatch(r"[\w .-]+", name):
                raise ValueError(f"{name!r}: a name has letters, digits, blanks, dots, dashes and underscores")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{name}: {pattern!r} is no regular expression: {error}") from None
        return slices


def _measure(name: str) -> str:
    if name in (REL, SAT) or ANSWER.fullmatch(name):
        return name
    try:
        return str(parse_measure(name))
    except ValueError as error:
        raise ValueError(f"{error}; and Answer@k, {REL}, {SAT}") from None
