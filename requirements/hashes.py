"""python requirements/hashes.py OUTPUT FILE ...: sha256 of every file that the pins of locks may be.

Each line of OUTPUT is a line of a pip requirements file: `name==version --hash=sha256:... --hash=...`, with the pin and
its marker as the lock spells them. Whoever installs takes the lines of a lock's pins, and pip and uv then refuse any
other file. Of the index's files those count that a supported Python on Linux or macOS can use, and source archives.
torch is left out, as any build of its version satisfies the lock and comes from an index of its own. Needs `packaging`
and `requests`.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import requests
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

PYPI = "https://pypi.org/simple"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
MACHINES = ("x86_64", "aarch64")
# Packages without a wheel there: three of pure Python, and one that needs a C compiler.
SOURCES = {
    "antlr4-python3-runtime": MACHINES,
    "kfp-server-api": MACHINES,
    "pyspark": MACHINES,
    "pytrec-eval-terrier": ("aarch64",),
}
GLIBC = 28  # 2.28, as torch's wheels need
ABIS = {"none", "abi3", *(f"cp{major}{minor}" for major, minor in PYTHONS)}
SYSTEMS = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx.*")
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)={2,3}([0-9][\w.!]*)(?: ; (.*?))?(?: --hash.*)?$", re.MULTILINE)


def index_url() -> str:
    """Where pip looks for packages: as it is set, else PyPI."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(words, capture_output=True, text=True).stdout
    found = dict(re.findall(r"^([\w:]+)\.index-url='(.*)'$", settings, re.MULTILINE))
    return (found.get(":env:") or found.get("install") or found.get("global") or PYPI).rstrip("/")


def files_of(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The index's files of each package; requests.RequestException if it cannot be asked."""
    index, session = index_url(), requests.Session()
    retries = Retry(3, backoff_factor=0.3, status_forcelist=(429, 500, 502, 503, 504))
    session.mount(index, HTTPAdapter(pool_maxsize=8, max_retries=retries))

    def files(name: str) -> list[dict[str, Any]]:
        accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
        answer = session.get(f"{index}/{canonicalize_name(name)}/", headers=accept, timeout=60)
        answer.raise_for_status()
        return answer.json()["files"]

    names = sorted(set(names))
    pool = ThreadPoolExecutor(8)
    try:
        return dict(zip(names, pool.map(files, names), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)


def tags_of(filename: str, version: str) -> frozenset[Tag] | None:
    """The tags of a wheel of this version, none for its source archive; None if it is no file of the version."""
    if version not in filename:
        return None  # most of a page, quickly
    try:
        if not filename.endswith(".whl"):
            return frozenset() if parse_sdist_filename(filename)[1] == Version(version) else None
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None  # an egg, an installer
    return tags if found == Version(version) else None


@cache
def supported(python: tuple[int, int], machine: str) -> frozenset[Tag]:
    """The tags of wheels that this Python takes on Linux."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(5, GLIBC + 1)]
    platforms += [f"manylinux{year}_{machine}" for year in (1, 2010, 2014)]
    abi = f"cp{python[0]}{python[1]}"
    return frozenset(cpython_tags(python, [abi], platforms)) | frozenset(compatible_tags(python, abi, platforms))


def lacking(name: str, tags: list[frozenset[Tag]], machine: str, marker: str | None = None) -> list[str]:
    """Pythons for which a package has no file on a machine, by the tags of its files."""
    if machine in SOURCES.get(canonicalize_name(name), ()) and frozenset() in tags:
        return []
    versions = {f"{major}.{minor}": (major, minor) for major, minor in PYTHONS}
    return [
        version
        for version, python in versions.items()
        if (marker is None or Marker(marker).evaluate({"python_version": version}))
        and not any(each & supported(python, machine) for each in tags)
    ]


def pins_of(paths: list[Path]) -> list[tuple[str, str, str | None]]:
    """Name, version and marker of every pin of the files, once."""
    found = {match for path in paths for match in PIN.findall(path.read_text(encoding="utf-8"))}
    pins = ((name, version, marker or None) for name, version, marker in found)
    return sorted(pins, key=lambda pin: f"{pin[0]}=={pin[1]}".lower())


def main() -> None:
    """Write the file; SystemExit if a package has no file for one of the Pythons."""
    output, *locks = map(Path, sys.argv[1:])
    pins = [pin for pin in pins_of(locks) if pin[0] != "torch"]
    files, lines = files_of(name for name, *_ in pins), []
    for name, version, marker in pins:
        tagged = [(file, tags) for file in files[name] if (tags := tags_of(file["filename"], version)) is not None]
        if pythons := lacking(name, [tags for _, tags in tagged], MACHINES[0], marker):
            raise SystemExit(f"hashes: {name} {version} has no wheel for Python {', '.join(pythons)}")
        digests = sorted(
            file["hashes"]["sha256"]
            for file, tags in tagged
            if not tags or any(tag.abi in ABIS and SYSTEMS.fullmatch(tag.platform) for tag in tags)
        )
        pin = f"{name}=={version}" + (f" ; {marker}" if marker else "")
        lines.append(" ".join([pin, *(f"--hash=sha256:{digest}" for digest in digests)]))
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{output}: {len(lines)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
