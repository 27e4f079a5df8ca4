"""Folding, sentences and document texts."""

import pytest

from steps.core.texts import document_text, fold, sentences, words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is (are) Glaucoma ?", "what is are glaucoma"),
        ("naïve  Café", "NAÏVE café"),
        ("ﬁne", "fine"),  # compatibility form
        ("x_y–z", "x y z"),
        ("1,000", "1 000"),
    ],
)
def test_fold_ignores_case_punctuation_and_forms(one: str, other: str) -> None:
    assert fold(one) == fold(other)


def test_fold_keeps_words_apart() -> None:
    assert fold("type 1") != fold("type 2")
    assert fold("!?") == ""


def test_sentences_end_at_punctuation_not_at_abbreviated_numbers() -> None:
    assert sentences("It is 3.5 cm. Then it\ngrows! Why?\n\nno full stop") == [
        "It is 3.5 cm.",
        "Then it grows!",
        "Why?",
        "no full stop",
    ]


def test_words_are_lower_case_alphanumeric() -> None:
    assert words("Return_the CUMSUM(axis=1)") == ["return", "the", "cumsum", "axis", "1"]


def test_document_text_joins_title_and_content() -> None:
    assert document_text("Title", "Body.") == "Title. Body"
    assert document_text("", "Body.") == "Body."


def test_words_keep_combining_marks_with_their_letters() -> None:
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert words("Été x_1, don't") == ["été", "x", "1", "don", "t"]
