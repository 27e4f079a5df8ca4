"""A causal language model as dual encoder: from triplets to the teacher."""

from pathlib import Path

from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from steps.core.corpus import corpus_template
from steps.teach.dual_encoder import check_dims, limit_length, teach_tower
from steps.teach.kinds.base import Inputs
from steps.teach.kinds.llm_dual_encoder import TOPIC, LlmDualEncoder
from steps.teach.llm_tower import check_prompt_length, llm_tower, train_llm_tower
from steps.tracking.runs import Run


def teach(inputs: Inputs, output: Path, params: LlmDualEncoder, run: Run) -> None:
    """Write `output/tower` (a SentenceTransformer folder, in the base's dtype), `output/report.json`, earlier towers.

    UserError if documents have no line break behind the title: the first line of a text is taken for it.
    """
    template = corpus_template(inputs.ingest)
    if "\n" not in template.text("a", "", "b"):
        raise UserError(
            f'ingest.document is "{template.template}": llm_dual_encoder knows the title by the line break behind it;'
            ' set it to "{title}\\n{content}", with {topic} where it is wanted'
        )
    if params.prompt.topic and not template.template.startswith(wanted := f"{{title}}\n{TOPIC}{{topic}}\n"):
        raise UserError(
            f"ingest.document is {template.template!r}, but prompt.topic of the teacher wants it to begin with"
            f" {wanted!r}"
        )

    def base() -> SentenceTransformer:
        tower = llm_tower(params.base, params.dim, params.seed, params.prompt)
        check_prompt_length(tower, params.max_document_length)
        limit_length(tower, params)
        check_dims(tower, params)
        return tower

    teach_tower(base, train_llm_tower, inputs, output, params, run)
