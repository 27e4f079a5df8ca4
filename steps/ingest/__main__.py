"""`python -m steps.ingest` reads the sources; `--list` only lists their files into sources.json."""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.files import read_json
from slimtower.common.settings import load_section
from steps.frame.self_check import step_parser
from steps.frame.stage import stage_main
from steps.ingest.params import IngestParams
from steps.tracking.runs import Run

SOURCES = Path("sources.json")


def body(params: IngestParams, run: Run) -> None:
    """Run the stage on its declared outputs; of outside files it reads those that sources.json lists."""
    from steps.ingest.listing import by_key
    from steps.ingest.locations import reading_only
    from steps.ingest.run import run as ingest

    listed = read_json(SOURCES) if SOURCES.is_file() else []
    with reading_only(by_key(params, listed)):
        ingest(output=Path("data/ingest"), params=params, run=run)


def list_files() -> None:
    """Write sources.json, the stage's only dependency on outside data."""
    from steps.ingest.listing import write_listing

    write_listing(load_section("ingest", IngestParams), SOURCES)


if __name__ == "__main__":
    parser = step_parser("ingest", __doc__)
    parser.add_argument("--list", action="store_true", help="write sources.json and stop")
    if parser.parse_args().list:
        guarded(list_files)
    else:
        stage_main("ingest", IngestParams, body)
