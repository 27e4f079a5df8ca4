"""The scores of a causal language model's towers: inner products, as a dual encoder's."""

from steps.scorers.dual_encoder import DualEncoderScorer


class LlmDualEncoderScorer(DualEncoderScorer):
    """A dual encoder's scorer: the prompts are in the tower."""

    kind = "llm_dual_encoder"
