"""Kinds of corpora: what becomes a document and what its query, from small packages of the same form."""

import gzip
from pathlib import Path

import pytest

from bench import kinds
from bench.kinds import KINDS, Pair, build, build_corpus, plain_pod, plain_roff, read_blocks
from slimtower.common.errors import UserError


def test_a_text_that_several_queries_have_is_one_document_and_a_query_of_several_finds_all() -> None:
    pairs = [Pair("", "a cat", "pet"), Pair("", "a dog", "pet"), Pair("", "a dog", "hound"), Pair("", "a stone", "")]
    corpus = build_corpus(pairs, 10)
    texts = {name: text for name, _, text in corpus.documents}
    assert sorted(texts.values()) == ["a cat", "a dog", "a stone"]
    found: dict[str, set[str]] = {}
    for query, document, grade in [row for rows in corpus.judgements.values() for row in rows]:
        found.setdefault(corpus.queries[query], set()).add(texts[document])
        assert grade == 1
    assert found == {"pet": {"a cat", "a dog"}, "hound": {"a dog"}}


def test_dev_and_test_share_no_query_and_documents_are_drawn_alike_each_time() -> None:
    pairs = [Pair("", f"text {number}", f"query {number}") for number in range(50)]
    corpus = build_corpus(pairs, 30)
    assert len(corpus.documents) == 30 and corpus == build_corpus(reversed(pairs), 30)
    dev, test = ({query for query, *_ in corpus.judgements[split]} for split in ("dev", "test"))
    assert len(dev) == len(test) == 15 and not dev & test


def test_a_function_is_found_by_its_docstring_which_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toolbox").mkdir()
    (tmp_path / "toolbox" / "__init__.py").write_text("")
    (tmp_path / "toolbox" / "maths.py").write_text(
        'def add(left, right):\n    """Add two numbers to each other.\n\n    More of it.\n    """\n'
        "    total = left + right\n    return total\n\n\ndef _hidden(x):\n"
        '    """Nobody should find this function."""\n    x += 1\n    return x\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kinds, "CODE", ("toolbox", "no_such_package"))
    [pair] = kinds.read_code()
    assert pair.query == "Add two numbers to each other." and "Add two" not in pair.text
    assert pair.text.startswith("def add(left, right):") and "total = left + right" in pair.text


def test_a_package_is_found_by_its_short_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "one_Translation-en"
    listed.write_text(
        "Package: cat\nDescription-md5: 1\nDescription-en: feeds all the cats\n This program feeds cats.\n .\n"
        " It needs a bowl, a cat and some food that the cat likes, twice a day.\n\n"
        "Package: short\nDescription-en: says too little\n Nothing more.\n"
    )
    monkeypatch.setattr(kinds, "translation_files", lambda: [listed])
    [pair] = kinds.read_packages()
    assert pair.query == "feeds all the cats" and pair.text.startswith("This program feeds cats. It needs a bowl")


def test_manuals_are_read_without_their_macros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "open.2.gz"
    source = (
        ".TH open 2\n.SH NAME\nopen \\- open a file\n.SH SYNOPSIS\n.B int open(void);\n.SH DESCRIPTION\n"
        "The\n.BR open ()\nsystem call opens the \\fIfile\\fP that a name says, and gives a number for it or \\-1.\n"
        ".SH ERRORS\nmany\n"
    )
    page.write_bytes(gzip.compress(source.encode()))
    monkeypatch.setattr(kinds, "package_files", lambda package, *patterns: [page] if package == "manpages" else [])
    [pair] = kinds.read_manuals()
    assert pair.query == "open a file"
    assert pair.text == "The open () system call opens the file that a name says, and gives a number for it or -1."


def test_markup_goes_and_words_stay(tmp_path: Path) -> None:
    assert plain_roff('.SH "SEE ALSO"\n\\fBa\\fR \\(em b') == "SEE ALSO a b"
    assert plain_pod("See L<perlfunc> and C<< print >>.\n=over 4\nThen I<go>.") == "See perlfunc and print. Then go."
    page = tmp_path / "page.html"
    page.write_text("<h2>Why?</h2><p>Because <b>it</b> is.</p><div>left out</div><ul><li>one</ul>")
    assert read_blocks(page) == [("h2", "Why?"), ("p", "Because it is."), ("li", "one")]


def test_a_kind_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UserError) as told:
        build("poems")
    assert all(kind in str(told.value) for kind in ("poems", *KINDS))
