"""What precedes a run: params.yaml is checked, data and models outside the project are listed, and DVC is asked.

A run that finds nothing to do ends here, so nothing that takes seconds to import is imported unless it is needed.
"""

import os
from pathlib import Path

from pipeline import preflight, surroundings
from pipeline.lineage import send_finished, waits
from pipeline.local_models import checked_models, keep_models, write_models
from pipeline.pending import ask_dvc
from pipeline.stopping import stop_when_asked
from slimtower.common.errors import UserError, line
from slimtower.common.settings import load_section
from steps.encoders.bases import LISTED, MODELS
from steps.ingest.listing import write_listing
from steps.ingest.params import IngestParams

SOURCES = Path("sources.json")


def prepare(targets: list[str], root: Path) -> tuple[list[str], bool]:
    """Names of all stages, and whether DVC would run none of the `targets`; of all stages if none is named.

    UserError for bad params, a folder that cannot be written, a full disk, or data that are missing.
    """
    stop_when_asked()
    models = checked_models()
    if models is None:
        from pipeline.params import load_params, named_models  # seconds: losses load torch

        models = named_models(load_params())
    preflight.check_folders(root)
    keep_models(models)
    surroundings.lay_out(root)
    surroundings.mend_locks(root)
    if not surroundings.dvc_finds_git(root):
        surroundings.without_git(root)
    write_listing(load_section("ingest", IngestParams), SOURCES)
    write_models(models, MODELS)
    os.environ[LISTED] = "yes"
    stages, is_up_to_date = ask_dvc(targets)
    if waits():
        try:
            send_finished()
        except UserError as error:
            print(f"pipeline: {line(error)}", flush=True)
    return stages, is_up_to_date
