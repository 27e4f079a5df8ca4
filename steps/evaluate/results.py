"""What was measured of one system, and how it lies on disk: result.json, arrays.npz and runs/."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from slimtower.common.files import read_json, write_json
from steps.core.judged import JudgedSet
from steps.core.measures import NDCG
from steps.evaluate.closeness import Closeness
from steps.evaluate.fusing import FusionFigures
from steps.evaluate.geometry import Geometry
from steps.evaluate.indexes import IndexFigures
from steps.evaluate.scoring import Scored
from steps.evaluate.serving import ServingCost

RESULT, ARRAYS, RUNS = "result.json", "arrays.npz", "runs"


@dataclass(frozen=True)
class Result:
    """What one system does. By data set, and empty of a system that has no such thing, is all below `bytes`."""

    name: str
    scored: Sequence[Scored]
    bytes: int | None = None
    """Size of the query side on disk; None without an encoder, or where it is behind an API."""
    indexes: Mapping[str, Mapping[str, IndexFigures]] = field(default_factory=dict)
    """The teacher's: figures of each index kind."""
    embeddings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The teacher's: of the test queries, or of the texts that stand in for them, `(texts, dim)`."""
    serving: Mapping[str, ServingCost] = field(default_factory=dict)
    geometry: Mapping[str, Geometry] = field(default_factory=dict)
    closeness: Mapping[str, Closeness] = field(default_factory=dict)
    fusions: Mapping[str, FusionFigures] = field(default_factory=dict)
    """Of a dense system that is fused with BM25."""
    best: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Ids of the first hits of each dev query, for `cases.py`; of teacher and students, alone and fused."""

    def of_split(self, split: str) -> list[Scored]:
        """The judged sets of one split."""
        return [item for item in self.scored if item.judged.split == split]

    def ndcg_by_id(self, split: str) -> dict[str, np.ndarray]:
        """The same as `ndcg`, in the order of the queries' ids: a bootstrap then draws the same as the gate's does."""
        return {
            item.judged.dataset: item.values[NDCG][np.argsort(np.array(item.judged.query_ids, dtype=object))]
            for item in self.of_split(split)
        }

    def ndcg(self, split: str) -> dict[str, np.ndarray]:
        """nDCG@10 of the queries of one split, `(queries,)` by data set."""
        return {item.judged.dataset: item.values[NDCG] for item in self.of_split(split)}


def write_result(folder: Path, result: Result) -> None:
    """Write result.json and arrays.npz into a folder."""
    arrays = {
        _key("values", item.judged.dataset, item.judged.split, measure): values
        for item in result.scored
        for measure, values in item.values.items()
    }
    arrays |= {_key("embeddings", dataset): values for dataset, values in result.embeddings.items()}
    arrays |= {_key("differences", dataset): geometry.differences for dataset, geometry in result.geometry.items()}
    for dataset, close in result.closeness.items():
        arrays |= {_key("cosines", dataset): close.cosines, _key("overlaps", dataset): close.overlaps}
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    write_json(
        folder / RESULT,
        {
            "name": result.name,
            "bytes": result.bytes,
            "pooled": {_key(item.judged.dataset, item.judged.split): dict(item.pooled) for item in result.scored},
            "indexes": {
                dataset: {kind: asdict(figures) for kind, figures in row.items()}
                for dataset, row in result.indexes.items()
            },
            "best": dict(result.best),
            "serving": {dataset: asdict(cost) for dataset, cost in result.serving.items()},
            "query_terms": {dataset: geometry.query_term for dataset, geometry in result.geometry.items()},
            "fusions": {dataset: figures.as_dict() for dataset, figures in result.fusions.items()},
        },
    )


def read_result(folder: Path, judged: Iterable[JudgedSet]) -> Result:
    """Read what `write_result` wrote of a system on the same judged sets."""
    payload = read_json(folder / RESULT)
    with np.load(folder / ARRAYS) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def named(*kind: str) -> dict[str, np.ndarray]:
        start = _key(*kind, "")
        return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}

    def values(item: JudgedSet) -> dict[str, np.ndarray]:
        return named("values", item.dataset, item.split)

    differences, cosines, overlaps = named("differences"), named("cosines"), named("overlaps")
    return Result(
        name=payload["name"],
        scored=[Scored(item, values(item), payload["pooled"][_key(item.dataset, item.split)]) for item in judged],
        bytes=payload["bytes"],
        indexes={
            dataset: {kind: IndexFigures(**figures) for kind, figures in row.items()}
            for dataset, row in payload["indexes"].items()
        },
        best=payload["best"],
        embeddings=named("embeddings"),
        serving={dataset: ServingCost(**cost) for dataset, cost in payload["serving"].items()},
        geometry={dataset: Geometry(term, differences[dataset]) for dataset, term in payload["query_terms"].items()},
        closeness={dataset: Closeness(cosines[dataset], overlaps[dataset]) for dataset in cosines},
        fusions={dataset: FusionFigures(**figures) for dataset, figures in payload["fusions"].items()},
    )


def _key(*names: str) -> str:
    return "/".join(names)
