"""One scorer a kind of teacher: a module here, named as its kind, is found by being here."""

import importlib
from pathlib import Path
from pkgutil import iter_modules

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.vector_store import Texts
from steps.encoders.precision import Precision
from steps.scorers.base import Network, Reading, Reranker, Scorer


def open_scorer(teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> Scorer:
    """The scorer of the teacher in `teach`, for these documents; UserError for a kind that cannot score."""
    return _scorer_class(teach)(teach, fingerprint, documents, scratch, reading)


def open_reranker(teach: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
    """The teacher in `teach` as a re-ranker, with `scratch` for vectors; UserError for a kind that re-ranks nothing."""
    return _scorer_class(teach).reranker(teach / "tower", scratch, precision, batch_size)


def open_network(teach: Path, max_length: int, max_document_length: int) -> Network:
    """The teacher in `teach` as a network that trains along, with lengths in tokens; UserError without a tower."""
    if not (teach / "tower").is_dir():
        raise UserError(
            f"{teach}/tower: not found, but targets: joint trains it; name {teach.name} in teach.teachers and run"
            f" `dvc repro teach@{teach.name}`"
        )
    return _scorer_class(teach).network(teach / "tower", max_length, max_document_length)


def _scorer_class(teach: Path) -> type[Scorer]:
    kind = read_json(teach / "report.json").get("kind")
    if kind not in {module.name for module in iter_modules(__path__)} - {"base", "documents"}:
        raise UserError(f"{teach}: a teacher of kind {kind!r} does not score; name another one")
    members = vars(importlib.import_module(f"{__name__}.{kind}")).values()
    classes = [member for member in members if isinstance(member, type) and issubclass(member, Scorer)]
    return next(scorer for scorer in classes if getattr(scorer, "kind", "") == kind)
