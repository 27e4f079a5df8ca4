"""`slimtower deploy --to TARGET`: make a release searchable in a vector engine, or go back to the one before."""

import argparse
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.settings import load_section
from slimtower.engines.params import DeployParams, registered_name


def main(words: list[str]) -> None:
    """Read the words of the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="slimtower deploy", description=__doc__)
    parser.add_argument(
        "--to", required=True, help="postgresql://..., http(s)://... (Qdrant), milvus+http(s)://..., <file>.db"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--student", default="", help="a released student (default: MLflow's champion, else the choice)")
    which.add_argument("--champion", action="store_true", help="MLflow's champion or nothing, as scheduled tasks do")
    parser.add_argument("--dataset", action="append", default=[], help="this data set alone (default: all)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--rollback", action="store_true", help="let what answered before answer again")
    instead.add_argument(
        "--encoder-only", action="store_true", help="only check that encoder and index belong together"
    )
    parser.add_argument("--collection", default="", help="with --encoder-only: a collection or table of your own")
    arguments = parser.parse_args(words)
    params, name, root = load_section("deploy", DeployParams), registered_name(), Path()
    if arguments.collection and not arguments.encoder_only:
        raise UserError("--collection goes with --encoder-only: deploying makes collections of its own")
    from slimtower.engines import run

    to, datasets = arguments.to, arguments.dataset
    if arguments.rollback:
        run.run_rollback(root, to, name, datasets)
    elif arguments.encoder_only:
        run.run_encoder_only(root, to, name, arguments.student, datasets, arguments.collection, params)
    else:
        run.run(root, to, name, arguments.student, datasets, params, champion_alone=arguments.champion)
