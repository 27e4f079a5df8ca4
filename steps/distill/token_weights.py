"""How much each token should count in a mean of token vectors, before training has its say."""

import numpy as np

from steps.distill.tokens import Tokens


def inverse_document_frequency(tokens: Tokens, vocabulary: int) -> np.ndarray:
    """`log(1 + N / (1 + n_t))` for each of the `(vocabulary,)` tokens; N texts, of which n_t hold token t."""
    owner = np.repeat(np.arange(len(tokens)), np.diff(tokens.offsets))
    pairs = np.unique(owner * np.int64(vocabulary) + tokens.ids)
    frequency = np.bincount(pairs % vocabulary, minlength=vocabulary)
    return np.log1p(len(tokens) / (1.0 + frequency))
