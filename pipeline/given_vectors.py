"""python -m pipeline.given_vectors: are the document vectors that ingest was given those of the index's teacher?

The teacher is made as params.yaml describes it, which trains nothing where vectors are given, and compared with a
sample of them as `embed` does it. `python -m pipeline` asks before anything trains.
"""

import tempfile
from pathlib import Path

from pipeline.params import Params, load_params
from slimtower.common.errors import UserError, guarded
from steps.core.corpus import CorpusTexts
from steps.embed.given_vectors import check_given, sampled_rows
from steps.encoders.towers import announce_texts, load_tower
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun


def check_given_vectors(params: Params, ingest: Path) -> str:
    """Compare a sample and say how close it is; UserError, with what would match, if it is not the teacher's."""
    vectors = ingest / "document_vectors" / "vectors.npy"
    if not vectors.is_file():
        raise UserError(f"{vectors}: not found; name the vectors in ingest.document_vectors, and run `make run` again")
    teacher, embed = params.teach.described(params.teach.index), params.embed
    with tempfile.TemporaryDirectory(prefix="slimtower-teacher.") as scratch:
        output = Path(scratch) / params.teach.index
        teach(ingest, Path("data/mine/relevance"), output, teacher, NullRun())
        tower = load_tower(output / "tower")
        sample = sampled_rows(ingest, embed.seed)
        announce_texts(tower, "document", CorpusTexts(ingest, sample), "sample of the given document vectors")
        comparison = check_given(vectors, ingest, tower, embed.seed, embed.precision)
    return (
        f"{comparison['documents']} of the given document vectors compared with those of {params.teach.index}: mean"
        f" cosine {comparison['mean_cosine']:.3f}, least {comparison['least_cosine']:.3f}"
    )


def main() -> None:
    print(f"pipeline: {check_given_vectors(load_params(), Path('data/ingest'))}", flush=True)


if __name__ == "__main__":
    guarded(main)
