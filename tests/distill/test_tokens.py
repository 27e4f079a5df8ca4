"""Tokenised texts keep their ids, and length batches cover every row once with little padding."""

import numpy as np
from transformers import AutoTokenizer

from steps.distill.static_embedding import inverse_document_frequency
from steps.distill.tokens import Tokens, length_batches, tokenize
from steps.encoders.bases import resolve_base


def test_rows_equal_the_tokenizers_own_ids() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_base("all-MiniLM-L6-v2"))
    texts = ["cumulative sum", "a much longer text about the sum of things", ""]
    for special in (True, False):
        tokens = tokenize(texts, tokenizer, 6, special=special)
        for row, text in enumerate(texts):
            ids = tokenizer(text, add_special_tokens=special, truncation=True, max_length=6)["input_ids"]
            assert tokens.row(row).tolist() == (ids or [tokenizer.unk_token_id])


def test_batches_cover_every_row_once_and_pad_little() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, size=5000)
    batches = list(length_batches(lengths, 32, (1, 2)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(5000))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.1 * lengths.sum()
    again = list(length_batches(lengths, 32, (1, 2)))
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_inverse_document_frequency_by_hand() -> None:
    # texts {0, 0, 1}, {1}, {2}: token 0 in one text, token 1 in two, token 2 in one, token 3 in none
    tokens = Tokens(np.array([0, 0, 1, 1, 2]), np.array([0, 3, 4, 5]))
    expected = [np.log(1 + 3 / 2), np.log(1 + 3 / 3), np.log(1 + 3 / 2), np.log(1 + 3 / 1)]
    np.testing.assert_allclose(inverse_document_frequency(tokens, 4), expected)
