"""The folder that a teacher leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.tracking.runs import Run


@contextmanager
def teacher_folder(output: Path, model: Any, report: dict[str, Any], run: Run) -> Iterator[Path]:
    """The folder that becomes `output`, with the model's `tower`; at its end the report is written, and both logged."""
    with staged_folder(output) as staging:
        model.save_pretrained(str(staging / "tower"), create_model_card=False, safe_serialization=True)
        report["fingerprint"] = fingerprint(staging / "tower").id
        yield staging
        write_json(staging / "report.json", report)
    run.model(output / "tower", "teacher")
    run.artifact(output / "report.json")
