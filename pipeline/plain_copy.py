"""A copy of the project's files where git cannot make a worktree, by what its `.gitignore` files leave out."""

import shutil
from fnmatch import fnmatch
from pathlib import Path


def plain_copy(root: Path, folder: Path) -> None:
    """Make `folder` hold the files of `root` that are not ignored, and none that it held before but those ignored.

    Of `.gitignore` files, in `root` and `.dvc`, three forms are understood: `/name` and `/name/*` beside the file,
    `name` anywhere. What is an exception to them, such as `!/data/score/`, is not copied all the same.
    """

    def ignored(directory: str, names: list[str]) -> set[str]:
        at = Path(directory)
        anchored = [line[1:] for line in _patterns(at) if line.startswith("/")]
        patterns = [".git", *anchored, *(line for line in _patterns(root) if not line.startswith("/"))]
        return {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}

    folder.mkdir(parents=True, exist_ok=True)
    present = [path.name for path in folder.iterdir()]
    for name in {*present} - ignored(str(root), present) - {".dvc"}:
        _remove(folder / name)
    _remove(folder / ".git")  # of a worktree, from when there was git
    shutil.copytree(root, folder, ignore=ignored, dirs_exist_ok=True, symlinks=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _patterns(folder: Path) -> list[str]:
    path = folder / ".gitignore"
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    entries = [line.removesuffix("/*").rstrip("/") for line in lines if line and not line.startswith(("#", "!"))]
    return [line for line in entries if "/" not in line[1:]]
