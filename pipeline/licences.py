"""`make sbom`: the locked packages with their licences, as their own metadata say."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

LOCKS = ("run", "extras")
_NONE = "not installed here"


def licence(name: str) -> str:
    """Licence of an installed package: its SPDX expression, else its classifiers, else the first line of its text."""
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        return _NONE
    fields = ("License-Expression", "License")
    expression, text = ((facts.get_all(field) or [""])[0].strip().split("\n")[0] for field in fields)
    classified = [
        line.rpartition(" :: ")[2] for line in facts.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    return expression or " / ".join(classified) or text[:60] or "not said"


def licences(folder: Path = Path("requirements")) -> list[tuple[str, str]]:
    """(package as locked, licence) of every line of the locks of running and of the extras, sorted."""
    lines = [line for name in LOCKS for line in (folder / f"{name}.lock").read_text(encoding="utf-8").splitlines()]
    return sorted((line, licence(re.split("==", line)[0])) for line in lines if "==" in line)


if __name__ == "__main__":
    for package, terms in licences():
        print(f"{package:45} {terms}")
