"""Folding, sentences and document texts."""

import re
import sys
import unicodedata
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from slimtower.common.unicode_norm import _CHARACTER, as_read
from steps.core.texts import _UNSPACED, _folded, fold, lowered_places, sentences, words


@pytest.mark.medium
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is (are) Glaucoma ?", "what is are glaucoma"),
        ("naïve  Café", "NAÏVE café"),
        ("ﬁne", "fine"),  # compatibility form
        ("x_y–z", "x y z"),
        ("1,000", "1 000"),
        ("İSTANBUL I\u0307zmir", "istanbul izmir"),
        ("İstanbul", "İstanbul".lower()),
        ("προϊόντος ΐ", "προϊόντος ΐ".upper()),
        ("ısparta", "ISPARTA"),
        ("i \u2764\ufe0f ny", "i \u2764 ny"),  # an emoji with and without its variant
        ("foo\u200bbar\u034f", "foobar"),
    ],
)
def test_fold_ignores_case_punctuation_and_forms(first: str, second: str) -> None:
    assert fold(first) == fold(second)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("C++ vs. C#, F# or C?", "c++ vs c# f# or c"),
        ("how to use .NET (c++11)", "how to use .net c++ 11"),
        ("Ü: C♯, ｃ＋＋ и .NET", "ü c# c++ и .net"),
        ("blood type A+", "blood type a+"),
        ("1+1, issue #5, issue#6, # heading, + item", "1 1 issue 5 issue 6 heading item"),
        ("asp.net, .axes, (.net) .network", "asp net axes net network"),
        ("type 1", "type 1"),
        ("!?", ""),
    ],
)
def test_fold_keeps_signs_that_are_part_of_a_word(text: str, key: str) -> None:
    assert fold(text) == key == fold(key)


@given(st.text("abnet1 +#.,\n\t(!~-_\x00\x1f\x7f", max_size=12))
def test_fold_of_ascii_is_that_of_any_text(text: str) -> None:
    assert fold(text) == _folded(text) == fold(fold(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Return_the CUMSUM(axis=1)", ["return", "the", "cumsum", "axis", "1"]),
        ("Giá vé 서울", ["giá", "vé", "서울"]),
        (unicodedata.normalize("NFD", "Giá vé 서울"), ["giá", "vé", "서울"]),
        ("ＰＣ-9", ["pc", "9"]),
        ("İstanbul IŞIK", ["istanbul", "işik"]),
        ("coop\u00aderation, A\u2060B", ["cooperation", "ab"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # combining marks stay with their letters
        ("Été x_1, don't", ["été", "x", "1", "don", "t"]),
    ],
)
def test_words_are_the_same_however_they_are_written(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    assert fold("coop\u00aderation") == fold("cooperation")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("北京大学，你好", ["北京", "京大", "大学", "你好"]),
        ("我 用Python3写", ["我", "用", "python3", "写"]),
        ("コンピューター", ["コン", "ンピ", "ピュ", "ュー", "ータ", "ター"]),
        ("か\u3099き", ["がき"]),  # a voiced sound mark of its own
        ("ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
        ("กำลังดี", ["กำ", "ำลั", "ลัง", "งดี"]),
        ("", []),
        ("。、", []),
    ],
)
def test_words_of_scripts_without_spaces_are_pairs_of_characters(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    lowered = as_read(text).lower()
    assert [lowered[start:stop] for start, stop in lowered_places(lowered)] == expected


@pytest.mark.medium
def test_the_scripts_without_spaces_are_those_of_word_places() -> None:
    letter = regex.compile(rf"[{_UNSPACED}](?<=[\p{{L}}\p{{N}}])")
    shared_signs = {"ー", "ｰ", "ﾞ", "ﾟ", "〆"}  # of several scripts
    for code in range(0x250, sys.maxunicode + 1):
        sign = chr(code)
        if unicodedata.category(sign)[0] in "LN" and sign not in shared_signs:
            assert bool(_CHARACTER.fullmatch(sign)) == bool(letter.fullmatch(sign)), hex(code)


def test_full_stops_set_apart_end_sentences_in_lower_case() -> None:
    abstracts = Path("tests/helpers/abstracts.txt").read_text(encoding="utf-8").splitlines()
    assert len(abstracts) == 30
    for abstract in abstracts:
        assert sentences(abstract) == re.split(r"(?<= [.?]) ", abstract)


@pytest.mark.parametrize(
    "expected",
    [
        ["my order never arrived.", "who do i call?", "it says approx. three days!", "the no. 5 is, i.e. was, late."],
        ["The U.S. economy grew by 2.1 percent.", "Dr. J. Smith et al. left at 5 p.m. on Jan. 5.", "Why?"],
        ["As Fig. 3 (cf. Eq. 4) shows, it falls.", "E. coli vs. S. aureus.", '"It is late."', "Nobody came."],
        ["the angle, see fig . 3 , falls .", "so smith et al . found in a plane p .", "a second one ?", "no ."],
        ["Use x.sum(axis=0) or pandas.DataFrame.sum.", "If None, 2.0.1 is read.", "y1, ..., yp : array"],
        ["It is the state of the art.", "It took 10 ms.", "She has a Ph.D. in max. 3 areas.", "Acme Corp. said so."],
        ["Das ist z. B. ein Satz.", "Das kostet ca. 5 Euro.", "Il a dit : « C'est fini. »", "Это второе."],
        ["यह पहला वाक्य है।", "क्या यह तीसरा है?", "یہ پہلا ہے۔", "هل هذه ثانية؟", "ይህ ነው።"],
    ],
)
def test_sentences_of_several_kinds(expected: list[str]) -> None:
    assert sentences(" ".join(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ingredients:\n- two eggs\n- salt, i.e. NaCl\n", ["Ingredients:", "- two eggs", "- salt, i.e. NaCl"]),
        ("how to\n 1. Hold it. Wait.\n 2) let go", ["how to", "1. Hold it.", "Wait.", "2) let go"]),
        (
            "## Usage\n• call run()\n• a long line\n  that goes on",
            ["## Usage", "• call run()", "• a long line that goes on"],
        ),
        ("Features\nWaterproof\nTwo years of warranty", ["Features", "Waterproof", "Two years of warranty"]),
        ("int main() {\n  int n = 3;\n  return n;\n}", ["int main() {", "int n = 3;", "return n;", "}"]),
        (
            "A line that an editor wrapped because it was as long as\nMost lines of it are. The end",
            ["A line that an editor wrapped because it was as long as Most lines of it are.", "The end"],
        ),
        ("Smith et al.\n\nno stop", ["Smith et al.", "no stop"]),
        ("- as in Smith et\n  al.\n  and so on, etc.\n- next", ["- as in Smith et al. and so on, etc.", "- next"]),
        ("no sentence " * 200, [" ".join(["no sentence"] * 200)]),
        ("", []),
        (" \n.", ["."]),
        (
            "It is 3.5 cm. Then it\ngrows! Why?\n\nno full stop",
            ["It is 3.5 cm.", "Then it grows!", "Why?", "no full stop"],
        ),
        (
            "边界层是层流的。作者说：“升力下降（见图2）。”为什么？！これは文です。3.5キロです！",
            ["边界层是层流的。", "作者说：“升力下降（见图2）。”", "为什么？！", "これは文です。", "3.5キロです！"],
        ),
    ],
)
def test_lines_items_and_what_ends_without_a_space_are_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.medium
def test_no_letter_is_lost_and_long_texts_take_no_longer_a_letter() -> None:
    for text in ("(a. b) ", "“a. ", "\n- a", "e.g. ", "A. ", ". ", "。”", "; ", ".)", "\n "):
        long_text = text * 20_000  # a second at most: nothing is searched again and again
        assert "".join("".join(sentences(long_text)).split()) == "".join(long_text.split())
