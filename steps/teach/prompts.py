"""What a teacher puts in front of a query and of a document."""

import sys
from typing import TYPE_CHECKING, Protocol

from steps.core.tables import ROLES
from steps.core.towers import DOCUMENT_PROMPTS
from steps.training.distributed import rank

if TYPE_CHECKING:
    from steps.teach.kinds.prompted import Prompted


class HasPrompts(Protocol):
    """A model that is saved with its prompts."""

    prompts: dict[str, str | None]


def set_prompts(model: HasPrompts, params: "Prompted") -> None:
    """Let a model have the prompts that the params give; a prompt of null stays as the model was saved.

    That of documents takes the place of one for passages or for a corpus too.
    """
    if params.query_prompt is not None:
        model.prompts["query"] = params.query_prompt
    if params.document_prompt is not None:
        others = [name for name in DOCUMENT_PROMPTS if name in model.prompts]
        model.prompts |= dict.fromkeys(["document", *others], params.document_prompt)


def tell_prompts(model: HasPrompts) -> None:
    """Say in one line what is put in front of queries and documents, where anything is; rank 0 alone does."""
    told = {role: model.prompts.get(role) or "" for role in ROLES}
    if any(told.values()) and rank() == 0:
        print(f"teach: prompts: query {told['query']!r}, document {told['document']!r}", file=sys.stderr)
