"""`python -m steps.ingest` reads the sources; `--list` only lists their files into sources.json."""

from pathlib import Path

from steps.core.errors import guarded
from steps.core.params import Params, load_params
from steps.core.self_check import step_parser
from steps.core.stage import stage_main
from steps.core.tracking import Run


def body(params: Params, run: Run) -> None:
    """Run the stage on its declared outputs."""
    from steps.ingest.run import run as ingest

    ingest(sources=params.ingest.sources, output=Path("data/ingest"), params=params.ingest, run=run)


def list_files() -> None:
    """Write sources.json, the stage's only dependency on outside data."""
    from steps.ingest.listing import write_listing

    write_listing(load_params().ingest, Path("sources.json"))


if __name__ == "__main__":
    parser = step_parser("ingest", __doc__)
    parser.add_argument("--list", action="store_true", help="write sources.json and stop")
    if parser.parse_args().list:
        guarded(list_files)
    else:
        stage_main("ingest", body)
