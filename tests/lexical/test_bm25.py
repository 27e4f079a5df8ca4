"""BM25 against its formula, and its manners."""

import os
import subprocess
import sys
from math import log
from pathlib import Path

import bm25s
import numpy as np
import pytest

from slimtower.lexical.bm25 import Bm25

TEXTS = ["cumulative sum axis", "sum sum total elements array", "open socket connection", "axis rotation matrix plot"]


def test_scores_follow_lucenes_formula() -> None:
    scores, ids = Bm25(list("abcd"), TEXTS).search(["sum axis"], k=10)
    lengths = [len(text.split()) for text in TEXTS]
    mean = sum(lengths) / len(lengths)

    def term(count: int, holding: int, length: int) -> float:
        idf = log(1 + (4 - holding + 0.5) / (holding + 0.5))
        return idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * length / mean))

    expected = {
        "a": term(1, 2, lengths[0]) + term(1, 2, lengths[0]),
        "b": term(2, 2, lengths[1]),
        "d": term(1, 2, lengths[3]),
    }
    assert dict(zip(ids[0], scores[0].tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)
    assert ids[0] == sorted(expected, key=lambda key: -expected[key])


def test_a_document_without_a_shared_term_is_no_hit() -> None:
    scores, ids = Bm25(list("abcd"), TEXTS).search(["the unheard of", "socket", ""], k=10)
    assert ids == [[], ["c"], []]
    assert [len(row) for row in scores] == [0, 1, 0]


def plain_index(texts: list[str]) -> bm25s.BM25:
    """The package's own index of these texts."""
    plain = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    plain.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    return plain


def test_other_texts_are_indexed_as_bm25s_does_to_the_byte(tmp_path: Path) -> None:
    texts = ["The C++ of x_1, don't!", "Été à l'école – größer", "그는 학교에 갔다", "Это второе", "", "a"]
    Bm25(list("abcdef"), texts).save(tmp_path / "ours")
    plain_index(texts).save(tmp_path / "theirs", show_progress=False)
    files = sorted(path.name for path in (tmp_path / "ours").iterdir())
    assert len(files) == 5
    for name in files:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


OTHERS = ["और नई یہ other words", "open socket"]


@pytest.mark.parametrize(
    ("text", "query", "other_texts"),
    [
        # scripts without spaces: pairs of characters
        ("北京大学在海淀区。", "北京大学在哪里", ["上海的天气很好", "open socket"]),
        ("コンピューターを直す", "新しいコンピューター", ["東京タワーの高さ", "nothing"]),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัดอร่อย", ["วันนี้อากาศดี", "nothing"]),
        ("the python3教程 of today", "python3", ["socket编程", "nothing"]),
        ("北 京", "京", ["上海", "nothing"]),
        # marks stay with their letters
        ("दिल्ली भारत की राजधानी है", "राजधानी", OTHERS),
        ("தமிழ் மொழி", "மொழி", OTHERS),
        ("كِتَابٌ جَدِيدٌ", "كِتَابٌ", OTHERS),
        ("Cre\u0300me bru\u0302le\u0301e", "crème brûlée", OTHERS),
        ("ＰＣ ケース", "pc", OTHERS),
        ("İstanbul gezi", "istanbul", OTHERS),
        ("ｺｰﾋｰ豆 200g", "コーヒー豆", ["tea", "nothing"]),
        ("コーヒー豆", "ｺｰﾋｰ", ["tea", "nothing"]),
        ("the \ufb01nal o\ufb00er", "final offer", OTHERS),
        # a character alone is in all pairs that hold it
        ("犬と猫の飼い方", "猫", ["上海的天气很好", "nothing"]),
        ("東京都の税金 2024", "税", ["上海的天气很好", "nothing"]),
        ("หมา แมว", "แ", ["วันนี้อากาศดี", "nothing"]),
        ("the coop\u00aderation of", "cooperation", OTHERS),
    ],
)
def test_words_of_all_scripts_are_found_however_they_are_written(
    text: str, query: str, other_texts: list[str], tmp_path: Path
) -> None:
    engine = Bm25(list("abc"), [text, *other_texts])
    engine.save(tmp_path)
    for index in (engine, Bm25.open(tmp_path, list("abc"))):
        assert index.search([query], k=10)[1] == [["a"]]


def test_a_single_character_beside_other_words_stands_for_no_pair() -> None:
    engine = Bm25(list("abc"), ["上海房价 2023", "年年年 年中 中年", "天气"])
    assert engine.search(["上海房价 2023年"], k=9)[1] == [["a"]]
    assert engine.search(["年"], k=9)[1] == [["b"]]


def test_no_part_of_a_marked_word_is_a_hit() -> None:
    assert Bm25(["a"], ["गणित में संख्या सिद्धांत"]).search(["सि", "रत", "गण"], k=10)[1] == [[], [], []]


def test_an_index_of_an_earlier_tokenizer_is_asked_as_it_was_built(tmp_path: Path) -> None:
    engine = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    engine.index(bm25s.tokenization.Tokenized([[0], [1]], {"ﬁnal": 0, "open": 1}), show_progress=False)
    engine.save(tmp_path, show_progress=False)
    assert Bm25.open(tmp_path, list("ab"), 3).search(["ﬁnal"], k=9)[1] == [["a"]]
    assert Bm25.open(tmp_path, list("ab")).search(["ﬁnal"], k=9)[1] == [[]]


@pytest.mark.medium
def test_a_saved_index_answers_alike_and_is_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    engine = Bm25(list("abcd"), TEXTS)
    engine.save(tmp_path / "one")
    opened = Bm25.open(tmp_path / "one", list("abcd"))
    for query in ("sum axis", "unheard", "rotation plot sum"):
        ours, theirs = engine.search([query], 2), opened.search([query], 2)
        assert ours[1] == theirs[1] and np.array_equal(ours[0][0], theirs[0][0])
    assert opened.documents == 4
    script = "import sys, pathlib\nfrom slimtower.lexical.bm25 import Bm25\n"
    script += f"Bm25(list('abcd'), {TEXTS!r}).save(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path / "two")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path.cwd())})
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir()) and len(files) == 5
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_cut_keeps_the_best_and_of_equals_the_first() -> None:
    engine = Bm25([str(n) for n in range(50)], [f"same {'more ' * (n % 3)}" for n in range(50)])
    ranking = engine.search(["same"], k=50)
    for k in (1, 16, 17, 18, 49):
        cut = engine.search(["same"], k=k)
        assert cut[1][0] == ranking[1][0][:k]
        assert np.array_equal(cut[0][0], ranking[0][0][:k])


def test_scores_of_some_documents_are_those_of_the_search() -> None:
    engine = Bm25(list("abcd"), TEXTS)
    scores, rows = engine.rows(["sum axis"], k=10)
    row_numbers = np.array([2, *rows[0].tolist()])
    assert engine.scores("sum axis", row_numbers).tolist() == [0.0, *scores[0].tolist()]
    assert engine.scores("unheard", row_numbers).tolist() == [0.0] * len(row_numbers)
