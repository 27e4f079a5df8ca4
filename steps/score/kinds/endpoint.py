"""The scores of a model behind an API: inner products, as a dual encoder's."""

from steps.score.kinds.dual_encoder import DualEncoderScorer


class EndpointScorer(DualEncoderScorer):
    """A dual encoder's scorer: the server's answers are kept and counted as everywhere."""

    kind = "endpoint"
