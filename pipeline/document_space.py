"""Whether a run makes a new space for the documents, in which no index that is there already can be searched."""

from collections.abc import Collection
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.forecast import in_words
from pipeline.params import Params
from slimtower.common.settings import read_mapping
from steps.core.tables import table_path
from steps.promote.dvc_lock import lock_stages
from steps.teach.kinds.on_triplets import OnTriplets

_KNOBS = (
    "kind", "base", "model", "epochs", "document_prompt", "document", "max_document_length", "untied", "pooling", "dim",
    "dimensions",
)  # fmt: skip


def embedded_anew(params: Params, stages: Collection[str], ingest: Path, seconds: float) -> list[str]:
    """A line if the teacher of the index is trained or changed, with what that costs; `stages` are those to run.

    `seconds` is what `embed` is expected to take, 0 if that is not known.
    """
    name = params.teach.index
    if f"teach@{name}" not in stages or params.ingest.document_vectors:
        return []
    teacher = params.teach.described(name)
    if isinstance(teacher, OnTriplets) and teacher.epochs:
        why, index = "is trained", "an index that you have"
    elif changed := _changed(name):
        why, index = f"has another {', '.join(changed)} than in the last run", "the index of that run"
    else:
        return []
    documents = count_documents(ingest)
    cost = f"{documents:,} texts" + (f", about {in_words(seconds)}" if seconds else "")
    return [f"teach.{name} {why}: every document has to be embedded anew ({cost}), and {index} cannot be used"]


def count_documents(ingest: Path) -> int:
    """Documents of the corpus that `ingest` wrote."""
    return int(pq.read_metadata(table_path(ingest, "corpus")).num_rows)


def _changed(name: str) -> list[str]:
    """The knobs on which document vectors depend and that differ from the last run's; none if there was no run here.

    A dvc.lock alone is no run: a clone and a recipe's first run have the one that is tracked.
    """
    stages = lock_stages() if Path("data/embed").is_dir() else {}
    previous = stages.get(f"teach@{name}", {}).get("params", {}).get("params.yaml", {}).get(f"teach.teacher.{name}")
    if "embed" not in stages or not previous:
        return []
    current = read_mapping(Path("params.yaml"))["teach"]["teacher"][name]
    return [knob for knob in _KNOBS if previous.get(knob) != current.get(knob)]
