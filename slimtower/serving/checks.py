"""What is compared before a release may answer queries; each check raises a UserError that says what to do."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.serving.index_files import check_inside, file_digests, read_index_manifest
from slimtower.serving.manifest import REMEDY, SHARED, Manifest
from slimtower.serving.tower_files import query_pooling, tower_facts

TITLES = "titles.parquet"


def check_files(folder: Path, manifest: Manifest) -> None:
    """query_encoder/, serving/, index/ and lexical/ hold the files that the manifest names, as it knows them, alone."""
    _check_digests(folder / "query_encoder", manifest.student_files)
    _check_digests(folder / "serving", manifest.serving_files)
    _check_digests(folder / "index", manifest.index_files | {"manifest.json": manifest.index_manifest})
    _check_digests(folder / "lexical", manifest.lexical.files if manifest.lexical else {})


def _check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != digest:
            raise UserError(f"{path}: missing or not the file this release was made with; {REMEDY}")
    # a link to a folder would not be walked
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    if unknown := sorted(present - set(digests)):
        raise UserError(f"{folder}: {', '.join(unknown)} not named by the manifest; {REMEDY}")


def check_settings(folder: Path, manifest: Manifest) -> None:
    """What encodes queries is set up as the manifest says, as the student is, and for the index."""
    serving, settings = read_json(folder / "serving" / "serving.json"), manifest.encoder_settings
    stated = settings.model_dump()
    if serving != stated:
        fields = sorted(serving.keys() ^ stated.keys()) or [name for name in stated if serving[name] != stated[name]]
        raise UserError(f"{folder}: serving/serving.json and manifest.json differ in {', '.join(fields)}; {REMEDY}")
    student = tower_facts(folder / "query_encoder", "query")
    sides: list[tuple[str, object, str, object]] = [
        ("dim", settings.dim, "the index has", manifest.dim),
        ("normalise", settings.normalise, "the index has", manifest.normalised),
        ("normalise", settings.normalise, "query_encoder/ has", student["normalised"]),
        ("pooling", settings.pooling, "query_encoder/ has", query_pooling(student)),
        ("prompt", settings.prompt, "query_encoder/ has", student["prompts"].get("query") or ""),
    ]
    for field, value, whose, expected in sides:
        if value != expected:
            raise UserError(f"{folder}/serving: {field} is {value!r}, {whose} {expected!r}; {REMEDY}")


def check_index(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Both manifests agree; returns the index's own entry of each data set."""
    index = read_index_manifest(folder / "index")
    _check_equal(folder, {field: (index.get(field), getattr(manifest, field)) for field in SHARED})
    if manifest.faiss != faiss.__version__:
        raise UserError(
            f"{folder}: its index was written by faiss {manifest.faiss}, this is faiss {faiss.__version__}; install the"
            " version of the lock, or build the release again"
        )
    entries: dict[str, Any] = index["datasets"]
    if set(entries) != set(manifest.datasets):
        raise UserError(
            f"{folder}: the index holds {sorted(entries)}, the release says {sorted(manifest.datasets)}; {REMEDY}"
        )
    for dataset, collection in manifest.datasets.items():
        fields = collection.model_dump().items()
        _check_equal(folder, {f"{field} of {dataset!r}": (entries[dataset][field], value) for field, value in fields})
    named = index_digests(entries)
    titles = {f"{dataset}/{TITLES}" for dataset in entries}
    if {name: digest for name, digest in manifest.index_files.items() if name not in titles} != named or not (
        titles <= set(manifest.index_files)
    ):
        raise UserError(f"{folder}: index_files are not those that the index's manifest names, with titles; {REMEDY}")
    return entries


def _check_equal(folder: Path, facts: Mapping[str, tuple[object, object]]) -> None:
    for field, (of_index, of_release) in facts.items():
        if of_index != of_release:
            raise UserError(
                f"{folder}: encoder and index differ in {field}: the index was made with {of_index!r}, the release"
                f" says {of_release!r}; {REMEDY}"
            )


def check_lexical(folder: Path, manifest: Manifest) -> None:
    """The package that reads the BM25 indexes wrote them, and each is one of a data set of the release."""
    lexical = manifest.lexical
    if lexical is None:
        return
    here = version("bm25s")
    if lexical.bm25s != here:
        raise UserError(
            f"{folder}: its BM25 index was written by bm25s {lexical.bm25s}, this is bm25s {here}; install the version"
            " of the lock, or build the release again (`dvc repro`)"
        )
    from slimtower.lexical.bm25 import OLDEST, TOKENIZER  # a release without BM25 is served without its package

    if not OLDEST <= lexical.tokenizer <= TOKENIZER:
        raise UserError(
            f"{folder}: its BM25 index has terms of tokenizer {lexical.tokenizer}, this version knows {OLDEST} to"
            f" {TOKENIZER}; build the release again (`dvc repro`), or take the version of slimtower that wrote it"
        )
    indexed = {name.partition("/")[0] for name in lexical.files}
    if not lexical.fusions or indexed != set(lexical.fusions) or not indexed <= set(manifest.datasets):
        raise UserError(
            f"{folder}: lexical/ holds {sorted(indexed)}, fusions are of {sorted(lexical.fusions)}, the release is of"
            f" {sorted(manifest.datasets)}; {REMEDY}"
        )


def index_digests(entries: Mapping[str, Any]) -> dict[str, str]:
    """`<data set>/<file>` -> sha256 of every file that an index manifest names; UserError for one outside."""
    digests: dict[str, str] = {}
    for dataset, entry in entries.items():
        files = dict(entry["files"])
        for kind, index in entry["indexes"].items():
            files |= file_digests(kind, index)
        for name in (f"{dataset}/{file}" for file in files):
            check_inside(name)
        digests |= {f"{dataset}/{name}": digest for name, digest in files.items()}
    return digests


def check_rows(folder: Path, vectors: int, ids: pa.ChunkedArray, titled: pa.ChunkedArray) -> None:
    """Each vector has its document id, and titles are in the same order."""
    if len(ids) != vectors or not titled.equals(ids):
        raise UserError(
            f"{folder}: {vectors} vectors, {len(ids)} document ids and {len(titled)} titles do not belong together;"
            f" {REMEDY}"
        )


def embed_each(encode: Callable[[list[str]], np.ndarray], texts: Sequence[str]) -> np.ndarray:
    """Embed texts one by one, `(texts, dim)`: int8 activations share one scale in a batch, so its texts matter."""
    return np.concatenate([encode([text]) for text in texts]) if texts else np.zeros((0, 0), dtype=np.float32)


def check_probes(encoder: Path, manifest: Manifest, embeddings: np.ndarray, vectors: Sequence[Sequence[float]]) -> None:
    """Whether an encoder's `embeddings` `(probes, dim)` of the probes are those of the manifest."""
    if not manifest.probes or any(len(vector) != manifest.dim for vector in vectors):
        raise UserError(f"{encoder}: the manifest has no probes of {manifest.dim} dimensions; {REMEDY}")
    if embeddings.shape[1] != manifest.dim:
        raise UserError(
            f"{encoder}: the encoder has {embeddings.shape[1]} dimensions, the index {manifest.dim}; {REMEDY}"
        )
    off = np.abs(embeddings - np.array(vectors, dtype=np.float32)).max(axis=1)
    if not float(off.max()) <= manifest.probe_tolerance:  # also catches NaN
        text = manifest.probes[int(off.argmax())].text
        raise UserError(
            f"{encoder}: the embedding of the probe {text!r} is off by {off.max():.2g}"
            f" (allowed {manifest.probe_tolerance:.2g}); int8 models differ between kinds of processors:"
            f" release.precision: fp32 does not; if the files were changed, {REMEDY}"
        )
