"""python -m bench.mteb_model STUDENT FOLDER [--run FOLDER]: a release as a model of the package mteb, on a local task.

Queries are read by the encoder that the release of STUDENT serves, documents by the document tower of its router: what
an index would hold of a new corpus. FOLDER is in BEIR's layout with judged test queries; nothing is downloaded. The
class `ReleaseModel` fits any other text task of mteb too: `mteb.evaluate(ReleaseModel("models/release/4l"), tasks)`.
Needs mteb (pip install mteb), which only the project's tests install.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.disguise import read_beir
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError, guarded
from slimtower.serving.checks import check_probes
from slimtower.serving.dims import truncate
from slimtower.serving.release import load_release
from steps.encoders.towers import encode, load_tower

Batch = Mapping[str, Sequence[str]]  # `text`; of documents `title` and `body` as well, where a task has them


class ReleaseModel:
    """mteb's EncoderProtocol (2.26) over a release and its router; UserError for a router of another student."""

    def __init__(
        self, model_name: str, revision: str | None = None, *, device: str | None = None, router: str = "", **_: Any
    ) -> None:
        folder = Path(model_name)
        self.release = load_release(folder)
        manifest = self.release.manifest
        router_folder = Path(router) if router else folder.parents[1] / "distill" / manifest.student / "router"
        probe_vectors = encode(load_tower(router_folder, "query"), [probe.text for probe in manifest.probes], "query")
        vectors = [probe.student_vector for probe in manifest.probes]
        check_probes(router_folder, manifest, truncate(probe_vectors, manifest.dim), vectors)
        self._documents = load_tower(router_folder, "document").to(device)
        self._template = DocumentTemplate(manifest.document)

    def encode(
        self,
        inputs: Iterable[Batch],
        *,
        task_metadata: object,
        hf_split: str,
        hf_subset: str,
        prompt_type: str | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Embeddings of all texts of the batches, float32 `(texts, dim)`: of documents where `prompt_type` is so."""
        if prompt_type == "document":
            vectors = encode(self._documents, [text for batch in inputs for text in self._texts(batch)], "document")
            return truncate(vectors, self.release.manifest.dim)
        return self.release.encode([text for batch in inputs for text in batch["text"]])

    def _texts(self, batch: Batch) -> list[str]:
        """A document's title and body as the release's index joins them; else its text."""
        if "body" not in batch:
            return list(batch["text"])
        titles = batch.get("title") or [""] * len(batch["body"])
        return [self._template.text(title or "", "", body) for title, body in zip(titles, batch["body"], strict=True)]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Inner products `(n, m)` of `(n, dim)` and `(m, dim)`, by which releases search."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Inner products `(n,)` of the rows of two `(n, dim)`."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(dim=1)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records of the model; UserError without the package."""
        manifest = self.release.manifest
        about = {"name": f"slimtower/{manifest.student}", "revision": manifest.checksum, "embed_dim": manifest.dim}
        return _mteb().models.ModelMeta.create_empty(overwrites=about | {"similarity_fn_name": "dot"})


def _mteb() -> Any:
    try:
        import mteb
    except ModuleNotFoundError:
        raise UserError("bench.mteb_model: needs mteb; run `pip install mteb`") from None
    return mteb


def local_task(folder: Path) -> Any:
    """The judged test queries of a BEIR folder as a retrieval task of mteb; UserError where there are none."""
    _mteb()
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    corpus = read_beir(folder)
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in corpus.judgements.get("test", []):
        judged.setdefault(query, {})[document] = grade
    if not judged:
        raise UserError(f"{folder}: has no qrels/test.tsv; name a folder with judged test queries")

    class Local(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name=folder.resolve().name,
            description=f"{folder.resolve().name}, a local folder in BEIR's layout",
            reference=None,
            dataset={"path": str(folder), "revision": "local"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *_: Any, **__: Any) -> None:
            """Take what was read."""
            documents = [{"id": id_, "title": title, "text": text} for id_, title, text in corpus.documents]
            queries = [{"id": query, "text": corpus.queries[query]} for query in judged]
            split = {"corpus": Dataset.from_list(documents), "queries": Dataset.from_list(queries)}
            self.dataset = {"default": {"test": split | {"relevant_docs": judged, "top_ranked": None}}}
            self.data_loaded = True

    return Local()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mteb_model", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("student", help="name of a released student")
    parser.add_argument("folder", type=Path, help="a data set in BEIR's layout")
    parser.add_argument("--run", type=Path, default=Path(), help="the pipeline's folder; default: the present one")
    words = parser.parse_args()
    task, model = local_task(words.folder), ReleaseModel(str(words.run / "models/release" / words.student))
    result = _mteb().evaluate(model, [task], cache=None)
    print(f"{task.metadata.name}: nDCG@10 {result.task_results[0].get_score():.4f} ({model.mteb_model_meta.name})")


if __name__ == "__main__":
    guarded(main)
