"""`python -m steps.deploy --to TARGET`: make a release searchable in a vector engine, or go back to the one before."""

from pathlib import Path

from steps.core.errors import UserError, guarded
from steps.core.params import load_section
from steps.core.self_check import step_parser
from steps.deploy.params import DeployParams, registered_name


def main() -> None:
    """Read the command line and do what it says."""
    parser = step_parser("deploy", __doc__)
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
    arguments = parser.parse_args()
    params, name, root = load_section("deploy", DeployParams), registered_name(), Path()
    if arguments.collection and not arguments.encoder_only:
        raise UserError("--collection goes with --encoder-only: deploying makes collections of its own")
    from steps.deploy import run

    to, datasets = arguments.to, arguments.dataset
    if arguments.rollback:
        run.run_rollback(root, to, name, datasets)
    elif arguments.encoder_only:
        run.run_encoder_only(root, to, name, arguments.student, datasets, arguments.collection, params)
    else:
        run.run(root, to, name, arguments.student, datasets, params, champion_alone=arguments.champion)


if __name__ == "__main__":
    guarded(main)
