"""The scores of a model behind an API: inner products, as a dual encoder's."""

from steps.encoders.towers import asked_of
from steps.endpoint.module import announce
from steps.score.kinds.dual_encoder import DualEncoderScorer


class EndpointScorer(DualEncoderScorer):
    """A dual encoder's scorer: the server's answers are kept and counted as everywhere."""

    kind = "endpoint"

    def announce(self, texts: list[str]) -> None:
        """Documents and texts together, as neither is of use without the other."""
        jobs = [*asked_of(self.reader, "document", self.texts), *asked_of(self.queries, "query", texts)]
        announce(jobs, "score: documents and texts together")
