"""python -m pipeline.docs_site: README.md, docs/, the results and the files that they link to, as a site in site/."""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pipeline.params_reference import PAGE, reference
from slimtower.common.errors import UserError, guarded
from slimtower.common.settings import PARAMS, read_mapping

_TARGET = re.compile(r'\]\(([^)\s#]+)[^)]*\)|(?:src|srcset)="([^"]+)"')


def lay_out(root: Path, pages: Path) -> None:
    """Copy the pages and each file that they link to, at their places; UserError for a link to no file."""
    for page in (root / "README.md", root / "bench/results/README.md", *sorted((root / "docs").glob("*.md"))):
        if page == root / PAGE:  # written anew
            continue
        _copy(page, root, pages)
        for match in _TARGET.finditer(page.read_text(encoding="utf-8")):
            target = match[1] or match[2]
            if "://" not in target:
                linked = (page.parent / target).resolve()
                if not linked.is_file() or not linked.is_relative_to(root.resolve()):
                    raise UserError(f"{page}: {target}: no such file in the project; name one")
                _copy(linked, root.resolve(), pages)


def _copy(path: Path, root: Path, pages: Path) -> None:
    target = pages / path.relative_to(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def build(root: Path, site: Path) -> None:
    """Build the site of the project in `root`; UserError names the links that are broken."""
    if not find_spec("zensical"):
        raise UserError("docs_site: needs zensical; run `make setup-all`")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lay_out(root, folder / "pages")
        if (root / PARAMS).is_file():
            (folder / "pages" / PAGE).write_text(reference(read_mapping(root / PARAMS)), encoding="utf-8")
        shutil.copyfile(root / "docs/zensical.toml", folder / "zensical.toml")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).partition("Traceback")[0]
            raise UserError(f"docs_site: zensical finds fault with the pages:\n{output}")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(folder / "site", site)


def main() -> None:
    build(Path(), Path("site"))
    print("docs: site/ (python -m http.server --directory site)")


if __name__ == "__main__":
    guarded(main)
