"""python requirements/hashes.py OUTPUT FILE ...: sha256 of every file that the pins of locks and Containerfiles may be.

Each line of OUTPUT is a line of a pip requirements file: `name==version --hash=sha256:... --hash=...`, with the pin as
the lock spells it. Whoever installs takes the lines of a lock's pins, and pip and uv then refuse any other file. Of the
index's files those count that a supported Python on Linux or macOS can use, and source archives. torch is left out, as
any build of its version satisfies the lock and comes from an index of its own. Needs `packaging`.
"""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

INDEX = "https://pypi.org/simple"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ABIS = {"none", "abi3", *(f"cp{version.replace('.', '')}" for version in PYTHONS)}
SYSTEMS = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx.*")


def usable(filename: str, version: str) -> bool:
    """Is this a file of the version that a supported machine can install?"""
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename)[1] == Version(version)
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False  # an egg, an installer
    return found == Version(version) and any(
        tag.abi in ABIS and SYSTEMS.fullmatch(tag.platform) for tag in tags
    )


def line_of(pin: str) -> str:
    """A pin with the digests of its files; SystemExit where the index has none."""
    name, version = re.split("={2,3}", pin)
    asked = Request(f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urlopen(asked, timeout=60) as answer:
        files = json.load(answer)["files"]
    digests = sorted(file["hashes"]["sha256"] for file in files if usable(file["filename"], version))
    if not digests:
        raise SystemExit(f"hashes: {INDEX}/{name}/ has no file of version {version} for any of Python {', '.join(PYTHONS)}")
    return " ".join([pin, *(f"--hash=sha256:{digest}" for digest in digests)])


def pins_of(paths: list[Path]) -> list[str]:
    """Every `name==version` of the files, once, but torch's."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    pins = re.findall(r"(?<![\w.-])[A-Za-z0-9][\w.-]*={2,3}[0-9][\w.!]*", text)
    return sorted({pin for pin in pins if not pin.startswith("torch=")}, key=str.lower)


def main() -> None:
    """Write the file."""
    output, *locks = map(Path, sys.argv[1:])
    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(line_of, pins_of(locks)))
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{output}: {len(lines)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
