"""Phrases as tokens: which are taken, and how they are matched."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from slimtower.common.errors import UserError
from steps.distill.static_embedding import frequent_phrases, with_phrases

VOCABULARY = {token: number for number, token in enumerate(["[UNK]", "heart", "at", "##tack", "of", "##ion", "un"])}


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_phrases_are_frequent_and_words_no_token_already() -> None:
    texts = ["Heart attack", "a heart attack!", "heart of", "heart-of", "once"]
    assert frequent_phrases(texts, word_pieces(), 9, 9) == ["attack", "heart attack"]  # not "heart-of"
    assert frequent_phrases(texts, word_pieces(), 9, 0) == ["attack"]
    assert frequent_phrases(texts, word_pieces(), 0, 9) == ["heart attack"]
    assert frequent_phrases(["be a", "be a", "a", "be"], word_pieces(), 1, 9) == ["a", "be a"]


def test_a_pair_is_found_behind_a_word_that_ends_in_the_letter_with_which_another_begins() -> None:
    phrases = frequent_phrases(["x of heart", "x of heart"], word_pieces(), 0, 9)
    tokens = with_phrases(word_pieces(), phrases, first_id=len(VOCABULARY)).encode("box of heart").tokens
    assert phrases == ["of heart"] and tokens[-1] == " of heart"


def test_the_longest_phrase_is_taken_and_only_whole_words() -> None:
    tokenizer = with_phrases(word_pieces(), ["attack", "heart attack"], first_id=len(VOCABULARY))
    assert tokenizer.encode("Heart attack of").tokens == ["heart attack", "of"]
    assert tokenizer.encode("HEART, attack").tokens == ["heart", "[UNK]", " attack"]
    assert tokenizer.encode("heart attackion").tokens == ["heart", "at", "##tack", "##ion"]
    again = Tokenizer.from_str(tokenizer.to_str())
    assert again.encode("Heart attack of").ids == tokenizer.encode("Heart attack of").ids == [8, 4]


TEXTS = ["my heart attack", "a heart attack", "heart attack of"]


def byte_level() -> Tokenizer:
    """RoBERTa's kind: a word behind a space is another token than one at the start."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ar", "hear", "heart", "Ġheart", "at", "Ġat"]
    merges = [("h", "e"), ("a", "r"), ("he", "ar"), ("hear", "t"), ("Ġ", "heart"), ("a", "t"), ("Ġ", "at")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def metaspace() -> Tokenizer:
    """XLM-R's kind."""
    pieces = [("<unk>", 0.0), ("▁heart", -1.0), ("▁", -2.0), *((letter, -3.0) for letter in "acefhjkmoqrtxyz")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def without_pre_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(" acefhjkmoqrtxyz")}, []))
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "new"), [(byte_level(), []), (metaspace(), []), (without_pre_tokenizer(), ["heart"])]
)
def test_phrases_are_words_and_tokens_whatever_the_tokenizer(tokenizer: Tokenizer, new: list[str]) -> None:
    phrases = frequent_phrases(TEXTS, tokenizer, 9, 9)
    assert phrases == [*sorted([*new, "attack"]), "heart attack"]
    extended = with_phrases(tokenizer, phrases, tokenizer.get_vocab_size())
    my, of = (tokenizer.encode(text).ids for text in ("my", " of"))
    assert extended.encode("my heart attack of").ids == [*my, extended.token_to_id("heart attack"), *of]
    assert extended.encode("attack").ids == [extended.token_to_id("attack")]
    assert frequent_phrases(["to hear", "to hear"], byte_level(), 9, 0) == ["to"]  # "hear" is a token where texts begin


def test_words_and_pairs_are_counted_where_added_tokens_match() -> None:
    texts = ["one-two  three", "ate_it 2nd", "हिन्दी"] * 2
    phrases = frequent_phrases(texts, without_pre_tokenizer(), 9, 9)
    assert phrases == ["2nd", "one", "three", "two"]


def test_phrases_that_the_tokenizer_would_not_find_are_refused() -> None:
    with pytest.raises(UserError, match=r"9 rows, but .* token number 7"):
        with_phrases(word_pieces(), ["attack"], first_id=9)
    tokenizer = metaspace()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    with pytest.raises(UserError, match="added phrase 'attack'"):
        with_phrases(tokenizer, frequent_phrases(TEXTS, tokenizer, 9, 9), tokenizer.get_vocab_size())


def test_texts_without_phrases_are_refused_where_some_are_asked_for() -> None:
    with pytest.raises(UserError, match=r"added_words and added_pairs: "):
        frequent_phrases(["heart", "heart", "once"], word_pieces(), 9, 9)
    assert frequent_phrases(["heart"], word_pieces(), 0, 0) == []
