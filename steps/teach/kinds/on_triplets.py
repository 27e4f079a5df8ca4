"""What every kind of teacher that is trained on mined triplets has as knobs."""

from abc import ABC

from pydantic import Field

from steps.core.params import ModelName
from steps.teach.kinds.base import Teacher
from steps.training.params import TripletTraining


class OnTriplets(TripletTraining, Teacher, ABC):
    """A model trained on queries with a document to bring near and one to push away."""

    base: ModelName = Field(min_length=1)
    """Starting weights: the bundled name, a sentence-transformers folder or a Hugging Face name."""
    batch_size: int = Field(default=32, ge=2)
    """Triplets a step; each query sees 2 * batch_size documents, one of them its positive."""
    temperature: float = Field(default=0.05, gt=0)
    """Similarities are divided by it before the softmax."""
    max_query_length: int = Field(default=64, ge=4)
    """Tokens of a training query; the rest is cut."""
    max_document_length: int = Field(default=256, ge=8)
    """Tokens the saved tower reads of any text; a zero-shot teacher wants as many as its base was made for."""
    dev_queries: int = Field(default=300, ge=0)
    """Dev queries for the comparison with the base; 0 = no comparison."""
    dev_documents: int = Field(default=400, ge=0)
    """Random documents among which the relevant ones must be found in that comparison."""
