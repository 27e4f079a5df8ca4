"""`python -m steps.promote`: make a release the champion if it is no worse; or roll back; or show its lineage."""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.settings import load_section
from steps.frame.self_check import step_parser
from steps.promote.params import PromoteParams


def main() -> None:
    """Read the command line and do what it says."""
    parser = step_parser("promote", __doc__)
    parser.add_argument("--student", help="a name in distill.students (default: promote.student of params.yaml)")
    parser.add_argument("--name", help="registered model (default: promote.name of params.yaml)")
    parser.add_argument("--dry-run", action="store_true", help="print the decision and its reasons, change nothing")
    parser.add_argument("--again", action="store_true", help="allow a release that was rolled back")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--rollback", action="store_true", help="let the previous champion serve again")
    instead.add_argument("--history", action="store_true", help="print who moved the champion, when, to what")
    instead.add_argument(
        "--lineage",
        metavar="REF",
        help="print what NAME@alias was made of, or what was made of a commit or digest",
    )
    arguments = parser.parse_args()
    overrides = {key: getattr(arguments, key) for key in ("student", "name") if getattr(arguments, key)}
    params = load_section("promote", PromoteParams).model_copy(update=overrides)
    from steps.promote import run

    if arguments.rollback:
        run.run_rollback(params)
    elif arguments.history:
        run.run_history(params)
    elif arguments.lineage:
        run.run_lineage(arguments.lineage, params)
    else:
        run.run(
            ingest=Path("data/ingest"),
            reports=Path("reports"),
            releases=Path("models/release"),
            params=params,
            dry_run=arguments.dry_run,
            again=arguments.again,
        )


if __name__ == "__main__":
    guarded(main)
