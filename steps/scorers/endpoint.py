"""The scores of a model behind an API: inner products, as a dual encoder's."""

from pathlib import Path

from steps.encoders.precision import Precision
from steps.encoders.towers import endpoint_jobs
from steps.endpoint.module import announce
from steps.scorers.base import Reranker
from steps.scorers.dual_encoder import DualEncoderScorer


class EndpointScorer(DualEncoderScorer):
    """A dual encoder's scorer: the server's answers are kept and counted as everywhere."""

    kind = "endpoint"

    def announce(self, texts: list[str]) -> None:
        """Documents and texts together, as neither is of use without the other."""
        jobs = [
            *endpoint_jobs(self.document_tower, "document", self.texts),
            *endpoint_jobs(self.query_tower, "query", texts),
        ]
        announce(jobs, "score: documents and texts together")

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        """None: each query would be paid for, and timed with the network."""
        return super(DualEncoderScorer, cls).reranker(tower, scratch, precision, batch_size)
