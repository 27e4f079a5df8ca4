"""The top hits of a query in a release, and how long they take."""

import argparse
from pathlib import Path

from steps.core.errors import UserError, guarded
from steps.core.self_check import command_name
from steps.search.request import check_query
from steps.serving.choice import release_folder, run_root
from steps.serving.examples import EXAMPLE


def main() -> None:
    """Read the command line and search."""
    command = command_name("search")
    parser = argparse.ArgumentParser(prog=command, description=__doc__, epilog=f'example: {command} "{EXAMPLE}"')
    parser.add_argument("query", help="what to look for")
    parser.add_argument("--student", default="", help="name of a released student (default: the evaluation's choice)")
    parser.add_argument("--recipe", default="", help="search the run of this recipe, e.g. recipes/scifact.yaml")
    parser.add_argument("--release", default="", help="search this release's folder, wherever it lies")
    parser.add_argument("--k", type=int, default=5, help="number of hits (default: 5)")
    parser.add_argument("--dataset", help="data set to search (default: the first of the release)")
    arguments = parser.parse_args()

    check_query(arguments.query, arguments.k)
    if arguments.release and (arguments.student or arguments.recipe):
        raise UserError("search: --release names a folder of its own; leave --student and --recipe out")
    given = arguments.release
    folder = Path(given) if given else release_folder(run_root(arguments.recipe), arguments.student)
    from steps.search.run import run as search

    search(arguments.query, folder, arguments.dataset, arguments.k, ingest=folder / "../../../data/ingest")


if __name__ == "__main__":
    guarded(main)
