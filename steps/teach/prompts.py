"""What a teacher puts in front of a query and of a document."""

import sys

from sentence_transformers import MultiVectorEncoder, SentenceTransformer

from slimtower.common.names import ROLES
from steps.encoders.towers import DOCUMENT_PROMPTS
from steps.teach.kinds.base import Prompted
from steps.training.distributed import rank

_USED = {*ROLES, *DOCUMENT_PROMPTS}  # names of prompts that are read


def set_prompts(model: SentenceTransformer | MultiVectorEncoder, params: Prompted) -> None:
    """Let a model have the prompts that the params give; a prompt of null stays as the model was saved.

    That of documents takes the place of one for passages or for a corpus too.
    """
    if params.query_prompt is not None:
        model.prompts["query"] = params.query_prompt
    if params.document_prompt is not None:
        aliases = [name for name in DOCUMENT_PROMPTS if name in model.prompts]
        model.prompts |= dict.fromkeys(["document", *aliases], params.document_prompt)


def tell_prompts(model: SentenceTransformer | MultiVectorEncoder, params: object) -> None:
    """On rank 0 say what is in front of queries and documents, and which saved prompts are used for neither."""
    if rank() > 0:
        return
    prompts = {role: model.prompts.get(role) or "" for role in ROLES}
    bare = [knob for role in ROLES if not prompts[role] and getattr(params, knob := f"{role}_prompt", "") is None]
    unused = [f"{name} {text!r}" for name, text in model.prompts.items() if text and name not in _USED]
    if bare and unused:
        print(
            f"teach: these saved prompts are used for neither queries nor documents: {', '.join(unused)}; where they"
            f" belong to one, set {' and '.join(bare)}",
            file=sys.stderr,
        )
    if any(prompts.values()):
        print(f"teach: prompts: query {prompts['query']!r}, document {prompts['document']!r}", file=sys.stderr)
