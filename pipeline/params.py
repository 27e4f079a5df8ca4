"""The whole of params.yaml, checked before anything runs; each step checks its own section again when it starts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.settings import PARAMS, Strict, read_mapping, validated
from slimtower.engines.params import DeployParams
from steps.candidates.params import CandidatesParams
from steps.core.params import MODEL
from steps.distill.losses.base import Scoring
from steps.distill.params import BASELINES, VECTORS_ALONE, DistillParams, wants_inside
from steps.distill.starts import Adapter
from steps.embed.params import EmbedParams
from steps.encoders.bases import OWN_TEACHER, bundled_folder, in_run
from steps.evaluate.params import EvaluateParams
from steps.generate.params import GenerateParams
from steps.index.params import IndexParams
from steps.ingest.params import IngestParams
from steps.mine.params import SKIPPED, MineParams
from steps.promote.params import PromoteParams
from steps.rank.params import CrossEncoderParams, RankParams
from steps.release.params import ReleaseParams
from steps.score.params import ScoreParams
from steps.teach.kinds.base import Prompted, Teacher
from steps.teach.params import TeachParams

_EARLIER = re.compile(r"base|round_\d+")  # names of what a dual encoder leaves in `earlier`
_STUDENTS = re.compile(r"(?:\./)*models/(?:distill|release)/")  # of this run, by their folders


class Params(Strict):
    """All sections, in the order of the stages."""

    ingest: IngestParams
    candidates: CandidatesParams
    mine: MineParams
    rank: RankParams
    teach: TeachParams
    generate: GenerateParams
    embed: EmbedParams
    score: ScoreParams
    distill: DistillParams
    index: IndexParams
    release: ReleaseParams
    evaluate: EvaluateParams
    promote: PromoteParams
    deploy: DeployParams


def load_params(path: Path = PARAMS) -> Params:
    """Read and check params.yaml; UserError names every bad key, its value and the nearest known key."""
    return check_params(read_mapping(path), str(path))


def check_params(raw: dict[str, Any], source: str, run: Path | None = None) -> Params:
    """Validate a params mapping; UserError lists what is wrong in `source`. `run`: the run's folder, else this one."""
    here = run or Path.cwd()
    params = validated(Params, raw, source)
    _check_candidates(params, source)
    names = [*params.teach.teachers, *params.rank.rankers]
    for name in params.score.teachers:
        if name not in names:
            raise UserError(
                f"{source}: score.teachers names {name!r}, but teach.teachers and rank.rankers have only {names}; add"
                " it there, or take it off score.teachers"
            )
        if name == params.teach.index:
            raise UserError(
                f"{source}: score.teachers names {name!r}, the teacher of the index (teach.index), whose scores follow"
                " from its vectors; take it off score.teachers"
            )
        if name in params.teach.teacher and "scores" not in (teacher := params.teach.described(name)).gives:
            raise UserError(
                f"{source}: score.teachers names {name!r}, a teacher of kind {teacher.kind!r}, which does not score;"
                f" take it off score.teachers, or add steps/scorers/{teacher.kind}.py (docs/extending.md)"
            )
    for name in params.teach.teachers:
        _check_rounds(name, params, source)
        if OWN_TEACHER.match(in_run(base := str(getattr(params.teach.described(name), "base", "")), here)):
            raise UserError(
                f"{source}: teach.teacher.{name}: base {base} is made by this run, and teachers do not wait for each"
                " other; copy that folder to another place, and name the copy"
            )
    _check_given_vectors(params, source)
    _check_rerankers(params, source)
    for student in params.distill.students:
        _check_teachers(student, params, source, here)
        if params.evaluate.earlier_towers and _EARLIER.fullmatch(student):
            raise UserError(
                f"{source}: distill.students names {student!r}, which is what evaluate (earlier_towers) calls what the"
                " teacher was before; rename the student, or set evaluate.earlier_towers: false"
            )
    return params


def _described(name: str, params: Params) -> Teacher | CrossEncoderParams:
    """What is said of a teacher, or of a ranker."""
    return params.rank.described(name) if name in params.rank.rankers else params.teach.described(name)


def _check_candidates(params: Params, source: str) -> None:
    """UserError where judgements or a ranker ask for candidates that nobody finds, and for names that clash."""
    candidates = params.candidates
    if candidates.searchers and candidates.depth <= SKIPPED:
        raise UserError(
            f"{source}: candidates.depth is {candidates.depth}, but hard negatives are those after the first {SKIPPED}:"
            " no query would have one; keep more"
        )
    for name in params.rank.rankers:
        if not candidates.searchers:
            raise UserError(
                f"{source}: rank.rankers names {name!r}, but candidates.searchers is empty, so it has nothing to score;"
                " name bm25 there"
            )
        if name in params.teach.teacher:
            raise UserError(
                f"{source}: {name!r} is a ranker (rank.ranker) and a teacher (teach.teacher), which would be written to"
                " one folder; rename one of them"
            )


def _check_rounds(name: str, params: Params, source: str) -> None:
    """UserError for a teacher whose negatives a ranker is to check that this run does not train."""
    ranker = params.teach.described(name).checking_ranker
    if ranker and ranker not in params.rank.rankers:
        raise UserError(
            f"{source}: teach.teacher.{name}.rounds.ranker is {ranker!r}, but rank.rankers has only"
            f' {params.rank.rankers}; add it there, or set rounds.ranker: ""'
        )


def _check_given_vectors(params: Params, source: str) -> None:
    """UserError where an index's own vectors are to be those of a teacher that this run trains, which moves it."""
    name = params.teach.index
    epochs: float = getattr(params.teach.described(name), "epochs", 0.0)
    if epochs and params.ingest.document_vectors:
        raise UserError(
            f"{source}: ingest.document_vectors gives the documents' vectors, but this run trains their teacher"
            f" (teach.teacher.{name}), and no trained one has them; set its epochs to 0, or leave document_vectors out"
        )


def _check_rerankers(params: Params, source: str) -> None:
    """UserError for a re-ranker that this run does not have, or that cannot be one."""
    for name in params.evaluate.rerankers:
        where = f"{source}: evaluate.rerankers names {name!r}"
        if name not in [*params.teach.teachers, *params.rank.rankers]:
            raise UserError(
                f"{where}, but teach.teachers and rank.rankers have only"
                f" {[*params.teach.teachers, *params.rank.rankers]}; add it there, or take it off the list"
            )
        if "local" not in _described(name, params).gives:
            raise UserError(f"{where}, which is behind an API and re-ranks nothing; name a teacher that runs here")
        if name == params.teach.index:
            raise UserError(f"{where}, whose hits are what is re-ranked; name another one")
        if name in params.distill.students:
            raise UserError(f"{where}, and distill.students one of that name; rename the student")
        if name in BASELINES or (params.evaluate.earlier_towers and _EARLIER.fullmatch(name)):
            raise UserError(f"{where}, which is the name of another system that is measured; rename it")


def _check_teachers(student: str, params: Params, source: str, run: Path) -> None:
    """UserError for a start, a loss or an adapter that wants of a teacher what it does not give in this run."""
    requirement = wants_inside(params.distill.described(student))
    if requirement and "local" not in params.teach.described(index := params.teach.index).gives:
        raise UserError(f"{source}: distill.student.{student}: {requirement}, but the teacher {index} {VECTORS_ALONE}")
    start = params.distill.described(student).start
    origin = str(getattr(start, "adapter", getattr(start, "base", "")))
    match = OWN_TEACHER.match(in_run(origin, run))
    if _STUDENTS.match(in_run(origin, run)):
        raise UserError(
            f"{source}: distill.student.{student}: starts from {origin}, which this run makes, and students do not wait"
            " for each other; copy that folder to another place, and name the copy"
        )
    if match and match[1] not in {params.teach.index, *params.score.teachers}:
        raise UserError(
            f"{source}: distill.student.{student}: starts from {origin}, but distill waits for no teacher that is"
            f" neither the index's nor in score.teachers; name {match[1]!r} there, or a copy of that folder"
        )
    if isinstance(start, Adapter):
        _check_adapter(in_run(start.adapter, run), f"{source}: distill.student.{student}: adapter", params)
    for phase in params.distill.described(student).phases:
        for name in phase.all_teachers:
            where = f"{source}: distill.student.{student}: a loss names the teacher {name!r}"
            if name == params.teach.index:
                raise UserError(f"{where}, that of the index (teach.index), whose scores are the default; leave it out")
            if name not in params.score.teachers:
                raise UserError(
                    f"{where}, but score.teachers has only {params.score.teachers}; add it there and to teach.teachers"
                )
            if name in phase.teachers and 0 < params.score.depth < phase.teacher_top_k:
                raise UserError(
                    f"{where}, which scores {params.score.depth} documents of a text (score.depth), but teacher_top_k"
                    f" is {phase.teacher_top_k}; give both alike"
                )
        for loss in [loss for loss in phase.losses if loss.teacher]:
            teacher = _described(loss.teacher, params)
            trains_along = loss.teacher == phase.trained  # then its layers score at every step
            if trains_along and "joint" not in teacher.gives:
                raise UserError(
                    f"{source}: distill.student.{student}: targets: joint trains {loss.teacher}, a teacher of kind"
                    f" {teacher.kind!r}, which does not train along; name a late_interaction or a cross_encoder"
                )
            layers = params.score.layers or trains_along
            scoring = Scoring(loss.teacher, teacher.kind, teacher.gives, teacher.embeds, layers, params.score.pairs)
            if complaint := loss.complain_of_scoring(scoring):
                raise UserError(f"{source}: distill.student.{student}: {loss.name} {complaint}")


def _check_adapter(encoder: str, where: str, params: Params) -> None:
    """UserError for an adapter of what is behind an API, or has a query prompt; of one on the hub distill says so."""
    match = re.fullmatch(r"(?:\./)*models/teach/([^/]+)/tower/?", encoder)
    name = match[1] if match else ""
    teacher = params.teach.described(name) if name in params.teach.teachers else None
    if teacher and "local" not in teacher.gives:
        raise UserError(
            f"{where} is the teacher {name!r}, which is behind an API, and an adapter runs its encoder here; take this"
            " student off distill.students"
        )
    if isinstance(teacher, Prompted):
        prompt = _query_prompt(getattr(teacher, "base", "")) if teacher.query_prompt is None else teacher.query_prompt
    else:
        prompt = "" if match else _query_prompt(encoder)
    if prompt:
        raise UserError(
            f"{where} {encoder} reads queries with the prompt {prompt!r}, and students read bare text; take this"
            " student off distill.students, or start it from `base`, which learns to do without"
        )


def _query_prompt(name: str) -> str:
    """What a folder of sentence-transformers was saved with as its query prompt; empty for what is no folder here."""
    path = Path(bundled_folder(name)) / "config_sentence_transformers.json"
    return str(read_json(path).get("prompts", {}).get("query") or "") if path.is_file() else ""


def named_models(params: Params) -> dict[str, list[str]]:
    """The models that each stage of this run loads, but for those that it makes itself."""
    knobs = {
        "candidates": params.candidates,
        "rank": [params.rank.described(name) for name in params.rank.rankers],
        "teach": [params.teach.described(name) for name in params.teach.teachers],
        "generate": params.generate,
        "distill": [params.distill.described(name) for name in params.distill.students],
    }
    return {stage: sorted(set(_names(described))) for stage, described in knobs.items()}


def _names(knobs: Any) -> Iterator[str]:
    """The models that knobs name, however deep they lie."""
    if isinstance(knobs, BaseModel):
        for name, field in type(knobs).model_fields.items():
            value = getattr(knobs, name)
            if MODEL not in field.metadata:
                yield from _names(value)
            elif value and not OWN_TEACHER.match(in_run(value, Path.cwd())):
                yield value
    elif isinstance(knobs, list | dict):
        for item in knobs.values() if isinstance(knobs, dict) else knobs:
            yield from _names(item)
