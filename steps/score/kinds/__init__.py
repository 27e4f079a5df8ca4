"""Scorers, one for each kind of teacher that can score. A module here, named as its kind, adds it by being here."""

from pathlib import Path
from pkgutil import iter_modules

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.plugins import concrete
from steps.core.vector_store import Texts
from steps.score.kinds.base import Scorer
from steps.score.params import ScoreParams


def can_score(kind: str) -> bool:
    """Whether teachers of a kind have a scorer; asked before anything runs, so none is imported."""
    return any(module.name == kind != "base" for module in iter_modules(__path__))


def scorer_of(teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> Scorer:
    """The scorer of the teacher in `teach`, for these documents; UserError for a kind that cannot score.

    `fingerprint` is the id of its tower's; `scratch` is a file that it may write, and that is removed after it.
    """
    kind = read_json(teach / "report.json").get("kind")
    known: dict[str, type[Scorer]] = {each.kind: each for each in concrete(__name__, __path__, Scorer)}
    if kind not in known:
        raise UserError(f"{teach}: a teacher of kind {kind!r} does not score; take it off score.teachers")
    return known[kind](teach, fingerprint, documents, scratch, params)
