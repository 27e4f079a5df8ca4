"""The model card: README.md of a release and of its sentence-transformers folder, with Hugging Face's front matter.

It tells what the files tell, and neither times nor machines: an equal release has an equal card.
"""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import StrictUndefined, Template

from slimtower.serving.manifest import Manifest
from steps.release.forms import Trial

NAME = "README.md"
_TAGS = ["sentence-transformers", "dense-retrieval", "query-encoder", "distillation", "slimtower"]
_TEMPLATE = Path(__file__).with_name("card.md.j2")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def write_card(release: Path, manifest: Manifest, served: Trial, base: str | None, narrowed: bool) -> None:
    """Write the card of the form that serves; `base`: the name of what the student started from, if it has one.

    `narrowed`: whether the student has more dimensions than the index.
    """
    template = Template(
        _TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    text = template.render(
        front_matter=front_matter(manifest, served, base),
        manifest=manifest,
        settings=manifest.encoder_settings,
        served=served,
        fusions=manifest.lexical.fusions if manifest.lexical else {},
        narrowed=narrowed,
    )
    for folder in (release, release / "query_encoder"):
        (folder / NAME).write_text(text, encoding="utf-8")


def front_matter(manifest: Manifest, served: Trial, base: str | None) -> str:
    """What Hugging Face reads of a model card; a base that is a folder here has no name there."""
    name = (base or "").partition("@")[0]  # without a commit
    measured = [
        EvalResult(
            task_type="information-retrieval",
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split="dev",
            metric_type="ndcg_at_10",
            metric_value=round(cost.total.before, 4),
        )
        for dataset, cost in served.costs.items()
    ]
    data = ModelCardData(
        model_name=manifest.student,
        library_name="sentence-transformers",
        pipeline_tag="feature-extraction",
        tags=_TAGS,
        base_model=name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else None,
        metrics=["ndcg_at_10"] if measured else None,
        eval_results=measured or None,
    )
    return data.to_yaml()
