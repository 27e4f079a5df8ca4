"""The scorer of each kind of teacher."""

from pathlib import Path

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.vector_cache import Texts
from steps.score.dual_encoder import DualEncoderScorer
from steps.score.params import ScoreParams
from steps.score.scorer import Scorer


def scorer_of(teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> Scorer:
    """The scorer of the teacher in `teach`, for these documents; UserError for a kind that cannot score.

    `fingerprint` is the id of its tower's; `scratch` is a file that it may write, and that is removed after it.
    """
    kind = read_json(teach / "report.json").get("kind")
    match kind:
        case "dual_encoder":
            return DualEncoderScorer(teach / "tower", fingerprint, documents, scratch, params)
        case _:
            raise UserError(f"{teach}: a teacher of kind {kind!r} does not score; take it off score.teachers")
