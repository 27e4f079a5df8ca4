"""The whole of params.yaml, checked before anything runs; each step checks its own section again when it starts."""

from pathlib import Path
from typing import Any

from steps.core.params import PARAMS, Strict, read_mapping, validated
from steps.distill.params import DistillParams
from steps.embed.params import EmbedParams
from steps.evaluate.params import EvaluateParams
from steps.generate.params import GenerateParams
from steps.index.params import IndexParams
from steps.ingest.params import IngestParams
from steps.mine.params import MineParams
from steps.promote.params import PromoteParams
from steps.release.params import ReleaseParams
from steps.teach.params import TeachParams


class Params(Strict):
    """All sections, in the order of the stages."""

    ingest: IngestParams
    mine: MineParams
    teach: TeachParams
    generate: GenerateParams
    embed: EmbedParams
    distill: DistillParams
    index: IndexParams
    release: ReleaseParams
    evaluate: EvaluateParams
    promote: PromoteParams


def load_params(path: Path = PARAMS) -> Params:
    """Read and check params.yaml; UserError names every bad key, its value and the nearest known key."""
    return check_params(read_mapping(path), str(path))


def check_params(raw: dict[str, Any], source: str) -> Params:
    """Validate a params mapping; UserError lists what is wrong in `source`."""
    return validated(Params, raw, source)
