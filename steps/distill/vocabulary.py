"""Frequent words and pairs of words as tokens of their own: a table has no layers in which their pieces could meet."""

from collections import Counter
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

from slimtower.common.errors import UserError
from steps.distill.tokens import tokenize

_MIN_COUNT = 2  # occurrences that a phrase needs: the row of one seen once would overfit to its only text
_WORDS = Split(Regex(r"\w+"), behavior="removed", invert=True)  # where added tokens match, whatever the pre-tokenizer
_BEFORE = "qzxj"  # no phrase
_TRIED = 8


def frequent_phrases(texts: list[str], tokenizer: Tokenizer, words: int, pairs: int) -> list[str]:
    """At most so many words that are not one token already, and so many pairs of words, the most frequent of each.

    They consist of letters and digits, as the tokenizer normalises them; a single space is between those of a pair.
    Words come first. UserError when there are none though some are asked for.
    """
    if not words and not pairs:
        return []
    single: Counter[str] = Counter()
    double: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        spans = [span for span in _WORDS.pre_tokenize_str(normal) if span[0].isalnum()]
        single.update(word for word, _ in spans)
        double.update(
            f"{left} {right}" for (left, (_, end)), (right, (start, _)) in pairwise(spans) if normal[end:start] == " "
        )
    phrases = _new(_frequent(single), tokenizer)[:words] + _frequent(double)[:pairs]
    if not phrases:
        raise UserError(
            "distill.student: added_words and added_pairs: the alignment texts hold no word twice that is not one token"
            " of the teacher's already, and no pair twice; set both to 0"
        )
    return phrases


def _frequent(counts: Counter[str]) -> list[str]:
    phrases = [phrase for phrase, count in counts.items() if count >= _MIN_COUNT]
    return sorted(phrases, key=lambda phrase: (-counts[phrase], phrase))


def _new(words: list[str], tokenizer: Tokenizer) -> list[str]:
    """Those that are no token of the vocabulary, neither as they are nor as one is written behind a space."""
    vocabulary = tokenizer.get_vocab()
    words = [word for word in words if word not in vocabulary]
    pieces = tokenize([f" {word}" for word in words], tokenizer, 2, special=False)
    rows = (pieces.row(index).tolist() for index in range(len(words)))
    return [
        word
        for word, row in zip(words, rows, strict=True)
        if len(row) > 1 or tokenizer.decode(row).strip() != word  # not known is one token as well
    ]


def with_phrases(tokenizer: Tokenizer, phrases: list[str], first_id: int) -> Tokenizer:
    """The same tokenizer with phrases as tokens, numbered from `first_id`; where several fit, the longest is taken.

    A phrase takes the spaces before it along. UserError when the tokenizer would number or read them otherwise.
    """
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken(phrase, single_word=True, lstrip=True, normalized=True) for phrase in phrases])
    ids = {phrase: copy.token_to_id(phrase) for phrase in phrases}
    if list(ids.values()) != list(range(first_id, first_id + len(phrases))):
        raise UserError(
            f"distill.student: the teacher's table has {first_id} rows, but its tokenizer gives the next token number"
            f" {ids[phrases[0]]}; set added_words and added_pairs to 0"
        )
    tried = phrases[:_TRIED] + [phrase for phrase in phrases if " " in phrase][:_TRIED]
    encoded = tokenize([_BEFORE, *(f"{_BEFORE} {phrase}" for phrase in tried)], copy, 64, special=False)
    for index, phrase in enumerate(tried, start=1):
        if encoded.row(index).tolist() != [*encoded.row(0).tolist(), ids[phrase]]:
            raise UserError(
                f"distill.student: the teacher's tokenizer does not read the added phrase {phrase!r} as one token;"
                " set added_words and added_pairs to 0"
            )
    return copy
