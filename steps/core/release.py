"""The release unit: a query encoder and the index it may query, never apart, and the loader that proves they match."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq

from steps.core.errors import UserError
from steps.core.files import folder_bytes, read_json, sha256_file, write_json
from steps.core.fingerprints import fingerprint
from steps.core.towers import encode, load_tower

FORMAT = 1
REMEDY = "encoder and index must come from one run: run `dvc repro` (or `make demo`) to build the release again"


@dataclass(frozen=True)
class Probe:
    """A query and the student's embedding of it, `(dim,)`."""

    text: str
    vector: list[float]


@dataclass(frozen=True)
class Manifest:
    """What a release holds: digests of both sides, and queries to prove the encoder with."""

    format: int
    student: str
    encoder: dict[str, str]
    teacher: dict[str, str]
    index_files: dict[str, str]
    width: int
    metric: str
    datasets: dict[str, int]
    probes: list[Probe]
    probe_tolerance: float

    def write(self, path: Path) -> None:
        """Write as JSON."""
        write_json(path, asdict(self))


def read_manifest(path: Path) -> Manifest:
    """Read a release manifest; UserError when fields are missing, unknown or of another format."""
    raw: dict[str, Any] = read_json(path)
    if raw.get("format") != FORMAT:
        raise UserError(f"{path}: format is {raw.get('format')!r}, this version reads {FORMAT}; {REMEDY}")
    try:
        probes = [Probe(**probe) for probe in raw.pop("probes")]
        return Manifest(probes=probes, **raw)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: {error}; {REMEDY}") from None


class Release:
    """A query encoder with the indexes that it may query, one a data set."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.encoder = load_tower(folder / "query_encoder")
        self._indexes: dict[tuple[str, str], faiss.Index] = {}
        self._doc_ids: dict[str, list[str]] = {}

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets with an index."""
        return sorted(self.manifest.datasets)

    @property
    def model_bytes(self) -> int:
        """Size of the query encoder on disk."""
        return folder_bytes(self.folder / "query_encoder")

    def encode(self, queries: list[str]) -> np.ndarray:
        """Embed queries, float32 `(len(queries), dim)`."""
        return encode(self.encoder, queries, "query")

    def search(
        self, dataset: str, vectors: np.ndarray, k: int, kind: str = "flat"
    ) -> tuple[np.ndarray, list[list[str]]]:
        """The best k documents of each vector `(n, dim)`: scores `(n, k)` and document ids.

        UserError for a data set or a kind of index that the release lacks.
        """
        index = self._index(dataset, kind)
        scores, rows = index.search(np.ascontiguousarray(vectors, dtype=np.float32), min(k, index.ntotal))
        ids = self._doc_ids[dataset]
        return scores, [[ids[row] for row in line if row >= 0] for line in rows]

    def _index(self, dataset: str, kind: str) -> faiss.Index:
        if (dataset, kind) not in self._indexes:
            path = self.folder / "index" / dataset / f"{kind}.faiss"
            if not path.is_file():
                raise UserError(f"release {self.folder} has no {kind} index of {dataset!r}; it has {self.datasets}")
            self._indexes[dataset, kind] = faiss.read_index(str(path))
            table = pq.read_table(self.folder / "index" / dataset / "doc_ids.parquet")
            self._doc_ids[dataset] = table["doc_id"].to_pylist()
        return self._indexes[dataset, kind]


def load_release(folder: Path) -> Release:
    """Load a release after checking all that its manifest claims; UserError says what differs.

    Checked: digests of the encoder's weights, tokenizer and modules; digests of every index file; the teacher that
    the index was made from; width; the student's embeddings of the probe queries.
    """
    if not (folder / "manifest.json").is_file():
        raise UserError(f"{folder}: no release here; run `dvc repro` (or `make demo`) to build it")
    manifest = read_manifest(folder / "manifest.json")
    _check_encoder(folder, manifest)
    _check_index(folder, manifest)
    release = Release(folder, manifest)
    _check_probes(release)
    return release


def _check_encoder(folder: Path, manifest: Manifest) -> None:
    found = asdict(fingerprint(folder / "query_encoder"))
    for part, digest in manifest.encoder.items():
        if found.get(part) != digest:
            raise UserError(f"{folder}/query_encoder: its {part} are not the ones this release was made with; {REMEDY}")


def _check_index(folder: Path, manifest: Manifest) -> None:
    for name, digest in manifest.index_files.items():
        path = folder / "index" / name
        if not path.is_file() or sha256_file(path) != digest:
            raise UserError(f"{path}: missing or not the file this release was made with; {REMEDY}")
    index = read_json(folder / "index" / "manifest.json")
    if index["teacher"] != manifest.teacher:
        raise UserError(f"{folder}: the index was made by another teacher than the encoder's; {REMEDY}")
    for field in ("width", "metric"):
        if index[field] != getattr(manifest, field):
            raise UserError(f"{folder}: {field} of the index is {index[field]!r}, the manifest differs; {REMEDY}")


def _check_probes(release: Release) -> None:
    manifest = release.manifest
    expected = np.array([probe.vector for probe in manifest.probes], dtype=np.float32)
    if expected.shape != (len(manifest.probes), manifest.width):
        raise UserError(f"{release.folder}: probe vectors are not {manifest.width} wide; {REMEDY}")
    found = release.encode([probe.text for probe in manifest.probes])
    if found.shape != expected.shape:
        raise UserError(f"{release.folder}: the encoder is {found.shape[1]} wide, the index {manifest.width}; {REMEDY}")
    worst = float(np.abs(found - expected).max())
    if not worst <= manifest.probe_tolerance:  # also catches NaN
        text = manifest.probes[int(np.abs(found - expected).max(axis=1).argmax())].text
        raise UserError(
            f"{release.folder}: the encoder's embedding of the probe {text!r} is off by {worst:.2g}"
            f" (allowed {manifest.probe_tolerance:.2g}); {REMEDY}"
        )
