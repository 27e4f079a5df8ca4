"""python -m bench.record NAME [reports/metrics.json]: keep a pipeline run's figures as bench/results/NAME.json.

Adds the machine, the git commit and the seconds of each stage (from the newest finished pipeline run in MLflow) to the
metrics, so that a table in the README can say what it was measured on.
"""

import sys
from pathlib import Path

from bench.machine import clean_commit, recording, write_record
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.registry.client import client
from steps.tracking.run_ids import found_runs
from steps.tracking.runs import experiment_id

RESULTS = Path("bench/results")


def stage_seconds() -> tuple[dict[str, float], str]:
    """Wall seconds of each stage of the newest finished run that ran any, and its commit.

    Of a reused stage the seconds are those of its maker.
    """
    api = client()
    experiment = experiment_id(api)
    done = "attributes.status = 'FINISHED'"
    pipelines = f"{done} and tags.`slimtower.pipeline` != ''"
    for parent in api.search_runs([experiment], pipelines, order_by=["start_time DESC"]):
        children = f"{done} and tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
        stages = [
            run for run in api.search_runs([experiment], children) if run.data.tags["slimtower.stage"] != "promote"
        ]
        ran = [run for run in stages if run.data.tags.get("slimtower.reused") != "true"]
        if ran:
            makers = {run.data.tags.get("slimtower.made_by") for run in stages if run not in ran}
            ran += [run for run in found_runs(api, experiment, done) if run.info.run_id in makers]
            seconds = {
                run.data.tags["slimtower.stage"]: (run.info.end_time - run.info.start_time) / 1000 for run in ran
            }
            return seconds, parent.data.tags.get("slimtower.git_commit", "")
    raise UserError("MLflow holds no finished pipeline run that ran a stage; run `make demo` or `make run` first")


def main() -> None:
    if len(sys.argv) < 2:
        raise UserError("bench.record: give a name, such as `python -m bench.record demo`")
    metrics = read_json(Path(sys.argv[2] if len(sys.argv) > 2 else "reports/metrics.json"))
    target = RESULTS / f"{sys.argv[1]}.json"
    seconds, commit = stage_seconds()
    if commit != clean_commit():
        raise UserError(f"the run is of commit {commit}, not of this one; check that out, or make the run again")
    write_record(target, {"stage_seconds": seconds, "metrics": metrics})
    print(f"{sum(seconds.values()):.0f} s in {len(seconds)} stages")


if __name__ == "__main__":
    recording(main)
