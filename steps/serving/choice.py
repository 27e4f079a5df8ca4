"""Which release of a project is meant: a student's by name, else the evaluation's choice."""

import re
from pathlib import Path

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.params import checked_name

_LAID_OVER = re.compile(r"# params\.yaml of the project with (.+) laid over it")  # as pipeline.recipe writes it


def check_origin(run: Path, recipe: Path) -> None:
    """UserError where the folder of a run is that of another recipe with the same file name."""
    written = run / "params.yaml"
    if not written.is_file():
        return
    with written.open(encoding="utf-8") as file:
        made = _LAID_OVER.fullmatch(file.readline().rstrip("\n"))
    if made and Path(made[1]).resolve() != recipe.resolve():
        raise UserError(
            f"{recipe}: {run} is the run of {made[1]}, another recipe of that name; rename one of them, or remove that"
            " folder"
        )


def run_root(recipe: str) -> Path:
    """Where the run of a recipe left its files, "" being this folder; UserError when it was not run here."""
    root = Path("runs") / checked_name("recipe", Path(recipe).stem) if recipe else Path()
    if not root.is_dir():
        raise UserError(f"{root}: {recipe} was not run here; run `make run RECIPE={recipe}` first")
    if recipe:
        check_origin(root, Path(recipe))
    return root


def release_folder(root: Path, student: str) -> Path:
    """Folder of a student's release in a project at `root`; of the evaluation's choice where `student` is empty.

    UserError where nothing, or not that student, is released, or where no student was chosen.
    """
    releases = root / "models/release"
    available = sorted(path.parent.name for path in releases.glob("*/manifest.json"))
    if not available:
        raise UserError(f"{releases}: no release here yet; run `make demo` first")
    if student and student not in available:
        raise UserError(f"student {student!r} is not released; choose one of {', '.join(available)}")
    return releases / (student or _chosen(root / "reports/metrics.json", available))


def _chosen(metrics: Path, available: list[str]) -> str:
    """The student that the last evaluation chose."""
    name_one = f"name a student with --student (STUDENT= of make): {', '.join(available)}"
    if not metrics.is_file():
        raise UserError(f"{metrics}: not found, so no student was chosen; run `make demo`, or {name_one}")
    choice = read_json(metrics).get("choice")
    if choice is None:
        raise UserError(f"{metrics}: of an evaluation that chose no student; run `make demo`, or {name_one}")
    chosen = choice["student"]
    if chosen is None:
        raise UserError(f"{metrics}: no student is within evaluate.budget_ms; {name_one}")
    if chosen not in available:
        raise UserError(f"{metrics}: chose {chosen!r}, which is not released here; run `make demo`, or {name_one}")
    return str(chosen)
