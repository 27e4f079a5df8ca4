"""What MLflow's page of a version says: the gate's verdict, how to load it, the release's card, the evaluation."""

from pathlib import Path

from slimtower.common.errors import UserError
from steps.promote.gate import Decision

REPORT, CARD = "report.md", "README.md"
_MAX_LENGTH = 5000  # characters that MLflow's database keeps


def read_card(release: Path, reports: Path) -> str:
    """The release's card without its front matter, and the evaluation in short; UserError when one is missing."""
    for path in (reports / REPORT, release / CARD):
        if not path.is_file():
            raise UserError(f"{path}: not found; run `dvc repro` to write it")
    card = (release / CARD).read_text(encoding="utf-8").removeprefix("---\n").partition("\n---\n")[2].strip()
    return f"{card}\n\n## Evaluation\n\n{(reports / REPORT).read_text(encoding='utf-8').strip()}"


def description(model: str, version: str, decision: Decision, card: str) -> str:
    """Markdown of at most 5,000 characters; of more the last lines are left out."""
    verdict, *checks = decision.lines()
    lines = [
        f"**The gate: {verdict}.**",
        "",
        *(f"- {check.strip()}" for check in checks),
        "",
        f'Load it: `mlflow.pyfunc.load_model("models:/{model}/{version}").predict([{{"query": "your question"}}])`',
        "",
        *card.splitlines(),
    ]
    fitting: list[str] = []
    length = 0
    for line in lines:
        length += len(line) + 1
        if length > _MAX_LENGTH - 10:
            return "\n".join([*fitting, "…"])
        fitting.append(line)
    return "\n".join(fitting)
