"""Phrases as tokens: which are taken, and how they are matched."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from steps.core.errors import UserError
from steps.distill.vocabulary import frequent_phrases, with_phrases

VOCABULARY = {token: number for number, token in enumerate(["[UNK]", "heart", "at", "##tack", "of", "##ion", "un"])}


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_phrases_are_frequent_and_words_no_token_already() -> None:
    texts = ["Heart attack", "a heart attack!", "heart of", "heart-of", "once"]
    assert frequent_phrases(texts, word_pieces(), 9, 9) == [
        "attack",
        "heart attack",
    ]  # not "heart-of"
    assert frequent_phrases(texts, word_pieces(), 9, 0) == ["attack"]
    assert frequent_phrases(texts, word_pieces(), 0, 9) == ["heart attack"]
    assert frequent_phrases(["b a", "b a", "a", "b"], word_pieces(), 1, 9) == ["a", "b a"]


def test_the_longest_phrase_is_taken_and_only_whole_words() -> None:
    tokenizer = with_phrases(word_pieces(), ["attack", "heart attack"], first_id=len(VOCABULARY))
    assert tokenizer.encode("Heart attack of").tokens == ["heart attack", "of"]
    assert tokenizer.encode("HEART, attack").tokens == ["heart", "[UNK]", "attack"]
    assert tokenizer.encode("heart attackion").tokens == ["heart", "at", "##tack", "##ion"]
    again = Tokenizer.from_str(tokenizer.to_str())
    assert again.encode("Heart attack of").ids == tokenizer.encode("Heart attack of").ids == [8, 4]


def test_a_table_larger_than_the_tokenizer_cannot_take_phrases() -> None:
    with pytest.raises(UserError, match=r"has 9 rows, but .* next token number 7; set added_words"):
        with_phrases(word_pieces(), ["attack"], first_id=9)
