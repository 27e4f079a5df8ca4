"""python -m steps.embed"""

from pathlib import Path

from steps.core.params import load_index_teacher
from steps.embed.params import EmbedParams
from steps.frame.stage import stage_main
from steps.tracking.runs import Run


def body(params: EmbedParams, run: Run) -> None:
    """Embed what the earlier stages wrote."""
    from steps.embed.run import run as embed

    embed(
        ingest=Path("data/ingest"),
        generate=Path("data/generate"),
        teach=Path("models/teach") / load_index_teacher(),
        output=Path("data/embed"),
        params=params,
        run=run,
    )


if __name__ == "__main__":
    stage_main("embed", EmbedParams, body)
