"""API documentation as a search task, on a tiny package that would fail if anything imported it."""

import importlib
import os
import shutil
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from toy_source import read_toy

from slimtower.common.errors import OutOfMemory, UserError
from steps.core.texts import fold
from steps.ingest.docstrings import cut_words, plain, split_docstring, without_phrase
from steps.ingest.kinds.api_docs import ApiDocsSource, Entry, balanced_cut
from steps.ingest.rejects import Rejects
from steps.ingest.source import Query, SourceData

REST = "\n\n    The rest says how it is used and what comes back from it.\n    "
INNER = f'''
raise RuntimeError("imported")

def cumsum(a):
    """Return the cumulative sum of elements.{REST}"""

def internal_only(a):
    """Rearrange something inside the package.{REST}"""

def _hidden(a):
    """Never show this to anybody.{REST}"""

class Frame:
    """Hold two-dimensional tabular data.{REST}"""

    def head(self):
        """Return the first n rows.

        Return the first n rows! That is all :func:`~fakepkg.tail` does not do for an ordinary caller of it.
        """

    def __len__(self):
        """Return the number of rows.{REST}"""

class _Private:
    def method(self):
        """Do what nobody may see.{REST}"""

add_docstr(fakepkg.atan, r"""
atan(x) -> Number

Returns the arctangent of the input.
""" + r"""
Args:
    {{input}}
    one number of any kind, real or complex, in radians or in degrees
""".format(**common))
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "fakepkg"
    for name, text in {
        "__init__.py": "from ._core.inner import Frame, atan, cumsum\nraise RuntimeError('imported')\n",
        "_core/__init__.py": "",
        "_core/inner.py": INNER,
        "public.py": f'def cumsum(a):\n    """Return the cumulative sum of elements{REST}"""\n',
        "boiler.py": "".join(f'def f{n}(a):\n    """Fit the model to data.{REST}"""\n' for n in range(5)),
        "tests/test_x.py": f'def helper(a):\n    """Help the tests of the package.{REST}"""\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return root


def source(**changes: Any) -> ApiDocsSource:
    values = {
        "kind": "api_docs", "name": "api", "packages": ["fakepkg"], "max_documents": 100, "test_queries": 1,
        "dev_queries": 1,
    }  # fmt: skip
    return ApiDocsSource.model_validate(values | changes)


def read_source(seed: int = 1, ratio: float = 0.0, **changes: Any) -> tuple[SourceData, Rejects]:
    return read_toy(source(**changes), seed=seed, ratio=ratio)


def query_of(data: SourceData, title: str) -> Query:
    ids = [row.query_id for row in data.judgements if row.doc_id == f"api/{title}"]
    return next(query for query in data.queries if query.query_id == ids[0])


@pytest.mark.usefixtures("package")
def test_public_objects_become_documents_and_their_summaries_queries() -> None:
    data, rejects = read_source()
    documents = {document.title: document for document in data.documents}
    assert set(documents) == {
        "fakepkg.cumsum",  # of fakepkg._core.inner, offered by fakepkg
        "fakepkg.Frame",
        "fakepkg.Frame.head",
        "fakepkg.atan",
        "fakepkg.public.cumsum",
    }
    assert documents["fakepkg.public.cumsum"].topic == "fakepkg.public"
    assert documents["fakepkg.Frame.head"].topic == "fakepkg"
    assert documents["fakepkg.Frame.head"].doc_id == "api/fakepkg.Frame.head"
    assert query_of(data, "fakepkg.atan").text == "Returns the arctangent of the input."
    assert "one number of any kind" in documents["fakepkg.atan"].content
    frame = documents["fakepkg.Frame.head"].content
    assert frame == "That is all fakepkg.tail does not do for an ordinary caller of it.", "no document has its summary"
    for row in data.judgements:
        title = row.doc_id.removeprefix("api/")
        assert fold(query_of(data, title).text) not in fold(documents[title].content)
    assert query_of(data, "fakepkg.cumsum") == query_of(data, "fakepkg.public.cumsum"), "one query of both"
    assert len(data.queries) == 4 and len(data.judgements) == 5
    splits = {query.query_id: query.split for query in data.queries}
    assert Counter(splits.values()) == {"test": 1, "dev": 1, "train": 2}
    assert all(row.split == splits[row.query_id] for row in data.judgements)
    assert data.facts["left_out"]["summary_shared_by_too_many"] == 5
    assert not rejects.rows


@pytest.mark.medium
def test_packages_read_at_once_give_what_they_give_one_by_one(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(package, package.with_name("otherpkg"))
    (package.with_name("otherpkg") / "broken.py").write_text("def (:\n")
    outputs = []
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores, raising=False)
        data, rejects = read_source(ratio=0.5, packages=["otherpkg", "fakepkg"])
        outputs.append((data.documents, data.queries, data.judgements, data.facts, rejects.report()))
    assert outputs[0] == outputs[1] and len(outputs[0][0]) > 8
    assert [tuple(row) for row in rejects.rows] == [("api/otherpkg", 1, "unparsable_file", "broken.py")]
    with pytest.raises(UserError, match=r"package otherpkg: 1 of .*unparsable_file 1"):
        read_source(ratio=0.0, packages=["otherpkg"])


@pytest.mark.usefixtures("package")
def test_a_reader_that_was_killed_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise BrokenProcessPool("A process in the process pool was terminated abruptly")

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr("steps.ingest.kinds.api_docs.ProcessPoolExecutor", killed)
    with pytest.raises(OutOfMemory, match=r"packages: a process that read them was killed") as raised:
        read_source(ratio=0.5, packages=["fakepkg", "fakepkg"])
    assert raised.value.exit_code == 137


def test_balanced_cut_takes_from_the_large_packages_first() -> None:
    sizes = {"small": 10, "middle": 60, "large": 500}
    entries = [Entry(name, f"{name}.f{n}", name, "c", "s") for name, size in sizes.items() for n in range(size)]
    selected = balanced_cut(entries, 100, seed=5)
    assert Counter(entry.package for entry in selected) == {"small": 10, "middle": 45, "large": 45}
    assert selected == balanced_cut(entries[::-1], 100, seed=5)
    assert selected != balanced_cut(entries, 100, seed=6)
    assert len(balanced_cut(entries, 10_000, seed=5)) == 570


def test_split_docstring_skips_signatures_sections_and_code() -> None:
    parts = split_docstring(
        """
        array(object,
              dtype=None)
        --

        Create an ``array``
        from data.

        .. versionadded:: 1.0

        Parameters
        ----------
        object : array_like
            Any *nested* sequence, see `the guide <https://example.org>`_ or :class:`~numpy.ndarray`.

        See Also
        --------
        empty : Return a new uninitialized array.

        Notes
        -----
        Copies by default.

        Examples
        --------
        >>> array([1])
        array([1])
        """
    )
    assert parts == (
        "Create an array from data.",
        "object : array_like Any *nested* sequence, see the guide or numpy.ndarray.\n\nCopies by default.",
    )
    long = split_docstring("Do one thing well. " + "Then explain it at length in many words. " * 6)
    assert long is not None and long[0] == "Do one thing well." and long[1].startswith("Then explain it")


def test_text_helpers() -> None:
    assert plain("Use :meth:`A.b <c.d>`, [`Model`] and ``x_``; `here`_") == "Use A.b, Model and x_; here"
    assert plain(r"minor `.Tick`\s of :class:`_orm.Session` at ``.5``") == "minor Ticks of orm.Session at .5"
    assert without_phrase("Say: THE   sum,of it. Done.\n\nthe sum of it", "the sum of it") == "Say:  Done."
    assert cut_words("a b c\n\nd e f", 4) == "a b c\n\nd"
