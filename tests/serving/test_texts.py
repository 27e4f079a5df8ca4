"""What a release takes for a text: one str, several, and everything that is neither."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimtower.serving.release import Release, load_release

pytestmark = pytest.mark.medium

HALF = "half \ud83d of a pair"
SEVERAL = {
    "encode": lambda release, texts: release.encode(texts),
    "query_all": lambda release, texts: release.query_all(texts, 3),
    "search_text": lambda release, texts: release.search_text("one", texts, 3)[1],
}
ONE = {
    "encode": lambda release, text: release.encode(text),
    "query": lambda release, text: release.query(text, 3),
}
Call = Callable[[Release, Any], Any]


@pytest.fixture(scope="module", params=["2l", "static, fused"])
def release(request: pytest.FixtureRequest) -> Release:
    if request.param == "2l":
        return load_release(request.getfixturevalue("released") / "models/release/2l")
    folder: Path = request.getfixturevalue("hybrid")
    return load_release(folder / "models/release/static")


def test_one_text_is_one_vector_which_searches_as_a_batch_of_one(release: Release) -> None:
    alone, batch = release.encode("sum of an axis"), release.encode(["sum of an axis"])
    assert alone.shape == (release.manifest.dim,) and batch.shape == (1, release.manifest.dim)
    np.testing.assert_array_equal(alone, batch[0])
    assert release.search("one", alone, 3)[1] == release.search("one", batch, 3)[1]
    assert release.hits("one", alone, 3) == release.hits("one", batch, 3)
    assert release.answers("one", ["sum"], alone, 3) == release.answers("one", ["sum"], batch, 3)


@pytest.mark.parametrize("call", SEVERAL.values(), ids=SEVERAL)
def test_no_texts_give_nothing(release: Release, call: Call) -> None:
    assert len(call(release, [])) == len(call(release, ())) == 0
    assert release.encode([]).shape == (0, release.manifest.dim)


@pytest.mark.parametrize("call", SEVERAL.values(), ids=SEVERAL)
def test_what_is_no_list_of_texts_is_a_type_error_that_says_so(release: Release, call: Call) -> None:
    for wrong in (b"sum", bytearray(b"sum"), None, 3, 2.5, True, [b"sum"], ["sum", None], [1], [["a"]]):
        with pytest.raises(TypeError, match=r"is of type \w+; give a (list of )?str"):
            call(release, wrong)


@pytest.mark.parametrize("call", [SEVERAL["query_all"], SEVERAL["search_text"]])
def test_one_text_for_several_is_a_type_error_and_not_its_letters(release: Release, call: Call) -> None:
    with pytest.raises(TypeError, match="of type str; give a list of str"):
        call(release, "abc")
    with pytest.raises(TypeError, match="of type str; give a list of str"):
        release.answers("one", "abc", release.encode(["a", "b", "c"]), 3)


@pytest.mark.parametrize("half", [HALF, "\udc80", "\udfff end"])
def test_half_a_surrogate_pair_is_one_clear_error(release: Release, half: str) -> None:
    for call, text in [(call, half) for call in ONE.values()] + [(call, ["fine", half]) for call in SEVERAL.values()]:
        with pytest.raises(ValueError, match="holds half a surrogate pair") as raised:
            call(release, text)
        assert "\n" not in str(raised.value) and raised.type is ValueError
    assert len(release.query("a whole one \U0001f600", 3)) > 0
