"""Frequent words and pairs of words as tokens of their own: a table has no layers in which their pieces could meet."""

from collections import Counter
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer

from steps.core.errors import UserError

_LEAST = 2  # occurrences that a phrase needs: a row seen once learns that one text by heart


def frequent_phrases(texts: list[str], tokenizer: Tokenizer, words: int, pairs: int) -> list[str]:
    """At most so many words that are not one token already, and so many pairs of words, the most frequent of each.

    They consist of letters and digits, as the tokenizer normalises them. Words come first.
    """
    if not words and not pairs:
        return []
    single: Counter[str] = Counter()
    double: Counter[str] = Counter()
    for text in texts:
        read = _words(text, tokenizer)
        single.update(word for word in read if word.isalnum())
        double.update(f"{left} {right}" for left, right in pairwise(read) if left.isalnum() and right.isalnum())
    known = tokenizer.get_vocab()
    new = Counter({word: count for word, count in single.items() if word not in known})
    return _most_frequent(new, words) + _most_frequent(double, pairs)


def _words(text: str, tokenizer: Tokenizer) -> list[str]:
    """Words of the text, apart, as the tokenizer would cut into pieces."""
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def _most_frequent(counts: Counter[str], most: int) -> list[str]:
    found = [phrase for phrase, count in counts.items() if count >= _LEAST]
    return sorted(found, key=lambda phrase: (-counts[phrase], phrase))[:most]


def with_phrases(tokenizer: Tokenizer, phrases: list[str], first_id: int) -> Tokenizer:
    """The same tokenizer with phrases as tokens, numbered from `first_id`; where several fit, the longest is taken.

    UserError when the tokenizer would number them otherwise.
    """
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken(phrase, single_word=True, normalized=True) for phrase in phrases])
    if phrases and copy.token_to_id(phrases[0]) != first_id:
        raise UserError(
            f"distill.student: the teacher's table has {first_id} rows, but its tokenizer gives the next token number"
            f" {copy.token_to_id(phrases[0])}; set added_words and added_pairs to 0"
        )
    return copy
