"""python -m steps.embed"""

from pathlib import Path

from steps.core.params import Params
from steps.core.stage import stage_main
from steps.core.tracking import Run


def body(params: Params, run: Run) -> None:
    """Embed what the earlier stages wrote."""
    from steps.embed.run import run as embed

    embed(
        ingest=Path("data/ingest"),
        generate=Path("data/generate"),
        teach=Path("models/teach"),
        output=Path("data/embed"),
        params=params.embed,
        run=run,
    )


if __name__ == "__main__":
    stage_main("embed", body)
