"""Which release of a project is meant: a student's by name, else the evaluation's choice."""

import re
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.settings import checked_name

_LAID_OVER = re.compile(r"# params\.yaml of the project with (.+) laid over it")  # as pipeline.recipe writes it


def recipe_of(root: Path) -> str:
    """The recipe whose run left its files in a folder; "" if that is a run of the project itself."""
    written = root / "params.yaml"
    if not written.is_file():
        return ""
    with written.open(encoding="utf-8") as file:
        match = _LAID_OVER.fullmatch(file.readline().rstrip("\n"))
    return match[1] if match else ""


def run_command(root: Path) -> str:
    """The command that makes, or finishes, the run whose files are in a folder."""
    recipe = recipe_of(root)
    return f"`make run RECIPE={recipe}` with the variables that it had, such as DATA=" if recipe else "`make demo`"


def check_origin(run: Path, recipe: Path) -> None:
    """UserError if the folder of a run is that of another recipe with the same file name."""
    recorded = recipe_of(run)
    if recorded and Path(recorded).resolve() != recipe.resolve():
        raise UserError(
            f"{recipe}: {run} is the run of {recorded}, another recipe of that name; rename one of them, or remove that"
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
    """Folder of a student's release, or of the evaluation's choice, in a project; UserError if there is none."""
    releases = root / "models/release"
    available = sorted(path.parent.name for path in releases.glob("*/manifest.json"))
    if not available:
        runs = (path.parents[3] for path in root.glob("runs/*/models/release/*/manifest.json"))
        recipes = ", ".join(sorted({f"RECIPE={recipe}" for run in runs if (recipe := recipe_of(run))}))
        hint = f", or name a recipe that ran here: {recipes}" if recipes else ""
        raise UserError(f"{releases}: no release here yet; run {run_command(root)}{hint}")
    if student and student not in available:
        raise UserError(f"student {student!r} is not released; choose one of {', '.join(available)}")
    return releases / (student or _chosen(root, available))


def _chosen(root: Path, available: list[str]) -> str:
    metrics, command = root / "reports/metrics.json", run_command(root)
    name_one = f"name a student with --student (STUDENT= of make): {', '.join(available)}"
    if not metrics.is_file():
        raise UserError(f"{metrics}: not found, so no student was chosen; run {command}, or {name_one}")
    choice = read_json(metrics).get("choice")
    if choice is None:
        raise UserError(f"{metrics}: of an evaluation that chose no student; run {command}, or {name_one}")
    chosen = choice["student"]
    if chosen is None:
        raise UserError(f"{metrics}: no student is within evaluate.budget_ms; {name_one}")
    if chosen not in available:
        raise UserError(f"{metrics}: chose {chosen!r}, which is not released here; run {command}, or {name_one}")
    return str(chosen)
