"""The queries that help, errors and the page show are answered: by the teacher and by a student of such documents."""

from pathlib import Path

import pytest

from slimtower.serving import examples
from slimtower.serving.examples import answered_examples
from slimtower.serving.release import load_release


@pytest.mark.medium
def test_an_example_is_offered_where_the_release_answers_it(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = load_release(released / "models/release/2l")
    assert [answered_examples(release, dataset) for dataset in release.datasets] == [[], []]  # of other data
    hits = [hit.id.removeprefix("one/") for hit in release.query("sum", 10, "one")]
    answers = {"sum": frozenset({hits[2]}), " sum ": frozenset({"absent"}), "sum.": frozenset({hits[9]})}
    monkeypatch.setattr(examples, "ANSWERS", answers)
    assert answered_examples(release, "one") == ["sum"]  # the first three are what people look at
