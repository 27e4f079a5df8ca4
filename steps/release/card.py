"""The model card: README.md of a release and of its sentence-transformers folder, with Hugging Face's front matter.

It tells what the files tell, and neither times nor machines: an equal release has an equal card.
"""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from slimtower.serving.manifest import Manifest
from steps.release.forms import Trial

NAME = "README.md"
_TAGS = ["sentence-transformers", "dense-retrieval", "query-encoder", "distillation", "slimtower"]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def write_card(release: Path, manifest: Manifest, served: Trial, base: str | None, narrowed: bool) -> None:
    """Write the card; `served` is the form that serves, `base` what the student started from, where that has a name.

    `narrowed`: whether the student has more dimensions than the index.
    """
    text = f"---\n{front_matter(manifest, served, base)}\n---\n\n{_body(manifest, served, narrowed)}"
    for folder in (release, release / "query_encoder"):
        (folder / NAME).write_text(text, encoding="utf-8")


def front_matter(manifest: Manifest, served: Trial, base: str | None) -> str:
    """What Hugging Face reads of a model card; a base that is a folder here has no name there."""
    measured = [
        EvalResult(
            task_type="information-retrieval",
            dataset_type=name,
            dataset_name=name,
            dataset_split="dev",
            metric_type="ndcg_at_10",
            metric_value=round(cost.total.before, 4),
        )
        for name, cost in served.costs.items()
    ]
    data = ModelCardData(
        model_name=manifest.student,
        library_name="sentence-transformers",
        pipeline_tag="feature-extraction",
        tags=_TAGS,
        base_model=base if base and _HUB_NAME.fullmatch(base) and not Path(base).exists() else None,
        metrics=["ndcg_at_10"] if measured else None,
        eval_results=measured or None,
    )
    return data.to_yaml()


def _body(manifest: Manifest, served: Trial, narrowed: bool) -> str:
    settings, student = manifest.encoder_settings, manifest.student
    fusions = manifest.lexical.fusions if manifest.lexical else {}
    lines = [
        f"# {student}",
        "",
        "A small query encoder with the index of the documents that its teacher embedded. It places queries where the"
        " teacher would; another teacher's index is of no use to it.",
        "",
        "| | |",
        "| --- | --- |",
        f"| modules | {', '.join(manifest.modules)} |",
        f"| embeddings | {manifest.dim} dimensions, {manifest.metric.replace('_', ' ')} |",
        f"| longest query | {f'{settings.max_length} tokens' if settings.max_length else 'any'} |",
        f"| serves as | {settings.format}, {settings.precision}, {served.bytes / 1e6:,.1f} MB |",
        f"| teacher's weights | sha256 `{manifest.teacher['weights'][:12]}` |",
        "",
        "## Data",
        "",
        "| data set | documents | sha256 of the corpus | hits |",
        "| --- | ---: | --- | --- |",
        *(
            f"| {name} | {collection.vectors:,} | `{collection.corpus_digest[:12]}` | {fusions.get(name, 'dense')} |"
            for name, collection in sorted(manifest.datasets.items())
        ),
        "",
    ]
    if served.costs:
        lines += [
            "## nDCG@10 on dev queries",
            "",
            f"As trained (PyTorch, exact index), and as it serves ({settings.format}, {settings.precision}, the index"
            " that serves); both without BM25.",
            "",
            "| data set | queries | as trained | as it serves |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| {name} | {cost.total.queries:,} | {cost.total.before:.4f} | {cost.total.after:.4f} |"
                for name, cost in served.costs.items()
            ),
            "",
        ]
    for name, close in served.unjudged.items():
        lines += [
            f"{name}: {close.reason}. The mean cosine of what serves to the student is {close.served_cosine_mean:.4f}.",
            "",
        ]
    return "\n".join([*lines, *_use(student, manifest.dim if narrowed else None)])


def _use(student: str, dim: int | None) -> list[str]:
    """`dim`: to so many dimensions embeddings are cut, None = as they come."""
    folder = f'"models/release/{student}/query_encoder"'
    cut, again = (f", truncate_dim={dim}", ", normalize_embeddings=True") if dim else ("", "")
    return [
        "## Use",
        "",
        "Encoder and index together, where slimtower is installed or in a checkout of the project:",
        "",
        "```python",
        "from slimtower.serving import load_release",
        "",
        f'for hit in load_release("models/release/{student}").query("your question", 10):',
        "    print(hit.id, hit.score, hit.title)",
        "```",
        "",
        "Embeddings alone, as trained, from `query_encoder/`:",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'SentenceTransformer({folder}{cut}).encode_query(["your question"]{again})',
        "```",
        "",
    ]
