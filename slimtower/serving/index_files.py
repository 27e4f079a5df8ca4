"""An index's manifest, the files that it lists, and the one way to open them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss

from slimtower.common.errors import UserError, line
from slimtower.common.files import read_json
from slimtower.common.names import inner_path

FORMAT = 4  # of an index's manifest


def read_index_manifest(folder: Path) -> dict[str, Any]:
    """Read `manifest.json` of a folder of indexes; UserError when it is of another format."""
    path = folder / "manifest.json"
    manifest: Any = read_json(path)
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{path}: format of the index is {version!r}, this version reads {FORMAT}; run `dvc repro` to build index"
            " and releases again"
        )
    return dict(manifest)


def file_digests(name: str, entry: Mapping[str, Any]) -> dict[str, str]:
    """File name -> sha256 of an index (flat or ann) by its manifest entry; UserError for a name outside its folder."""
    shards: dict[str, str] = entry.get("shards", {})
    files = shards or {f"{name}.faiss": entry["sha256"]}
    for file in files:
        check_inside(file)
    return files


def check_inside(file: str) -> None:
    """UserError unless a file that an index manifest names lies in the index's folder."""
    try:
        inner_path(file)
    except ValueError as error:
        raise UserError(f"index manifest: {file!r}: {error}; run `dvc repro index` to build it again") from None


def open_index(folder: Path, name: str, entry: Mapping[str, Any]) -> faiss.Index:
    """Open `folder/<name>.faiss`, or its shards as one index, at the settings that the manifest entry gives.

    The file is mapped into memory instead of read, so that processes share it and nothing is copied; it must be
    replaced by rename, never written in place. UserError for a file that is missing or that faiss cannot read.
    """
    shards = [_read_index(folder / file) for file in sorted(file_digests(name, entry))]
    index: Any = shards[0]
    if len(shards) > 1:
        searched_together: Any = faiss.IndexShards  # its stub knows no arguments
        index = searched_together(shards[0].d, False, True)
        for shard in shards:
            index.add_shard(shard)
    apply_settings(index, entry["settings"])
    return index


def apply_settings(index: Any, settings: Mapping[str, float]) -> None:
    """Set search parameters by faiss' own names (nprobe, efSearch, k_factor_rf)."""
    space = faiss.ParameterSpace()
    for shard in shards_of(index):
        for name, value in settings.items():
            space.set_index_parameter(shard, name, float(value))


def shards_of(index: Any) -> list[Any]:
    """The shards of an index that searches several together, else the index itself."""
    sharded = isinstance(index, faiss.IndexShards)
    return [faiss.downcast_index(index.at(position)) for position in range(index.count())] if sharded else [index]


def _read_index(path: Path) -> faiss.Index:
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = line(error)[-200:]
        raise UserError(f"{path}: faiss cannot read it ({reason}); run `dvc repro index` to build it again") from None
