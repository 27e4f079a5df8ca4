"""python -m steps.embed"""

from pathlib import Path

from steps.core.stage import stage_main
from steps.core.tracking import Run
from steps.embed.params import EmbedParams


def body(params: EmbedParams, run: Run) -> None:
    """Embed what the earlier stages wrote."""
    from steps.embed.run import run as embed

    embed(
        ingest=Path("data/ingest"),
        generate=Path("data/generate"),
        teach=Path("models/teach"),
        output=Path("data/embed"),
        params=params,
        run=run,
    )


if __name__ == "__main__":
    stage_main("embed", EmbedParams, body)
