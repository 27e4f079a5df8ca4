"""Kinds of corpora: what becomes a document and what its query, from small packages of the same form."""

import gzip
import subprocess
from pathlib import Path

import pytest

from bench import kinds
from bench.disguise import disguised
from bench.kinds import Pair, build_corpus, read_blocks
from bench.markup import plain_pod, plain_roff
from slimtower.common.errors import UserError


def test_a_text_that_several_queries_have_is_one_document_and_a_query_of_several_finds_all() -> None:
    pairs = [Pair("", "a cat", "pet"), Pair("", "a dog", "pet"), Pair("", "a dog", "hound"), Pair("", "a stone", "")]
    corpus = build_corpus(pairs, 10)
    texts = {name: text for name, _, text in corpus.documents}
    assert sorted(texts.values()) == ["a cat", "a dog", "a stone"]
    answers: dict[str, set[str]] = {}
    for query, document, grade in [row for rows in corpus.judgements.values() for row in rows]:
        answers.setdefault(corpus.queries[query], set()).add(texts[document])
        assert grade == 1
    assert answers == {"pet": {"a cat", "a dog"}, "hound": {"a dog"}}


def test_dev_and_test_share_no_query_and_documents_are_drawn_alike_each_time() -> None:
    pairs = [Pair("", f"text {number}", f"query {number}") for number in range(50)]
    corpus = build_corpus(pairs, 30)
    assert len(corpus.documents) == 30 and corpus == build_corpus(reversed(pairs), 30)
    dev, test = ({query for query, *_ in corpus.judgements[split]} for split in ("dev", "test"))
    assert len(dev) == len(test) == 15 and not dev & test


def test_queries_that_nobody_judged_are_none_of_those_and_are_drawn_last(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [Pair("", f"text {number}", f"query {number}") for number in range(50)]
    monkeypatch.setattr(kinds, "QUERIES", 10)
    corpus = build_corpus(pairs, 30)
    judged = {query for rows in corpus.judgements.values() for query, *_ in rows}
    assert len(judged) == 10 and sorted(corpus.queries.values()) == sorted(pair.query for pair in pairs)
    monkeypatch.setattr(kinds, "UNJUDGED", 0)
    without = build_corpus(pairs, 30)
    assert without == disguised(corpus, ["no_queries"]) and len(without.queries) == 10


def test_a_function_is_found_by_its_docstring_which_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path /= "tests"  # only folders of the package itself are its tests
    (tmp_path / "toolbox").mkdir(parents=True)
    (tmp_path / "toolbox" / "__init__.py").write_text("")
    (tmp_path / "toolbox" / "maths.py").write_text(
        'def add(left, right):\n    """Add two numbers to each other.\n\n    More of it.\n    """\n'
        "    total = left + right\n    return total\n\n\ndef _hidden(x):\n"
        '    """Nobody should find this function."""\n    x += 1\n    return x\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toolbox" / "tests").mkdir()
    (tmp_path / "toolbox" / "tests" / "checks.py").write_text((tmp_path / "toolbox" / "maths.py").read_text())
    monkeypatch.setattr(kinds, "CODE", ("toolbox",))
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
    assert plain_roff(r"\f(CWint\fR \f[B]open\f[] it") == "int open it"
    assert plain_pod("See L<perlfunc> and C<< print >>.\n=over 4\nThen I<go>.") == "See perlfunc and print. Then go."
    page = tmp_path / "page.html"
    page.write_text("<h2>Why?</h2><p>Because <b>it</b> is.</p><div>left out</div><ul><li>one</ul>")
    assert read_blocks(page) == [("h2", "Why?"), ("p", "Because it is."), ("li", "one")]


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        ("C<< $obj->method >> is called", "$obj->method is called"),
        ("C<<< $a >> $b >>> shifts", "$a >> $b shifts"),
        ("B<bold I<and slanted C<< <=> >>>> here", "bold and slanted <=> here"),
        ("B<< one C<two> >>, A<b", "one two, b"),
        ("compare 1 < 2 > 0\n\n  if ($N<10) { print STDOUT }\n\nthen I<stop>", None),
    ],
)
def test_codes_of_pod_end_with_as_many_brackets_as_they_begin_with(pod: str, text: str | None) -> None:
    assert plain_pod(pod) == (text or "compare 1 < 2 > 0 if ($N<10) { print STDOUT } then stop")


def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, dict[str, str]]) -> None:
    """What the machine has fetched: by package, texts by path. No other package can be had."""
    for package, texts in files.items():
        for name, text in texts.items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.setattr(kinds, "CACHE", tmp_path)
    monkeypatch.setattr(kinds, "apt", lambda *words, folder=None: pytest.fail(f"apt: {words}"))


def words(count: int, name: str) -> str:
    return " ".join(f"{name}{number}" for number in range(count))


def test_a_gloss_is_found_by_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noun = (
        "  1 a licence, which is no data\n"
        '00001740 03 n 02 domestic_cat 0 cat 0 001 @ 00001930 n 0000 | a small animal; "the cat sat"  \n'
    )
    verb = "00001741 29 v 01 purr 0 000 00 | make a soft sound\n"
    packages(tmp_path, monkeypatch, {"wordnet-base": {"dict/data.noun": noun, "dict/data.verb": verb}})
    assert list(kinds.read_glosses()) == [
        Pair("", "a small animal", "domestic cat, cat"),
        Pair("", "make a soft sound", "purr"),
    ]


def write_dictionary(folder: Path, name: str, entries: list[str]) -> None:
    """A dictionary of dictd whose index has the last entry twice, as one of two headwords."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    folder.mkdir(parents=True)
    rows, start = ["00-database-info\tA\tB"], 0
    for entry in entries:
        numbers = (start, len(entry.encode()))
        rows.append("\t".join(["word", *(letters[n // 64] + letters[n % 64] for n in numbers)]))
        start += numbers[1]
    (folder / f"{name}.index").write_text("\n".join([*rows, rows[-1]]))
    with gzip.open(folder / f"{name}.dict.dz", "wb") as stream:
        stream.write("".join(entries).encode())


def test_definitions_are_found_by_words_that_they_lack_and_terms_by_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "CACHE", tmp_path)
    cat = "Cat \\Cat\\ (k[a^]t), n. [AS. cat.\n   catus.]\n   1. A small {animal}, é, that is a cat in the house;\n"
    cat += "      as, my cat.\n      [1913 Webster]\n\n   2. A whip with nine lashes of cord on it.\n"
    see = "Cats \\Cats\\, n.\n   See {Cat}, which is the same word in the plural.\n      [1913 Webster]\n"
    wordnet = "Dog \\Dog\\, n.\n   1. A common animal that barks at all of the cats.\n      [WordNet 1.5]\n"
    write_dictionary(tmp_path / "dict-gcide", "gcide", [wordnet, see, cat])
    assert list(kinds.read_definitions()) == [Pair("", "A small animal, é, that is a in the house", "cat")]
    stack = (
        "stack\nthe stack\n\n   <programming> A {list} of things of which\n   the last one leaves first.\n\n   More.\n"
    )
    write_dictionary(tmp_path / "dict-foldoc", "foldoc", ["short\n\n   Says too little.\n", stack])
    assert list(kinds.read_terms()) == [Pair("", "A list of things of which the last one leaves first.", "stack")]


def test_a_device_is_found_by_some_words_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usb = "# list\n0001  Cats Limited\n\t00a1  Laser Pointer Deluxe\n\t00a2  Bowl\nC 00  Class\n\t0001  No device\n"
    pci = "0002  Dogs\n\t00b1  Very Long Lead\n\t\t0002 00b1  Subsystem\n"
    packages(tmp_path, monkeypatch, {"usb.ids": {"usb.ids": usb}, "pci.ids": {"pci.ids": pci}})
    pointer, bowl, lead = kinds.read_devices()
    assert pointer[:2] == ("Laser Pointer Deluxe", "Maker: Cats Limited. Bus: USB. Number: 00a1.")
    assert 2 <= len(pointer.query.split()) <= 4
    assert set(pointer.query.split()) <= {"cats", "limited", "laser", "pointer", "deluxe"}
    assert bowl.title == "Bowl" and not bowl.query, "three words say too little"
    assert lead.title == "Very Long Lead" and "Bus: PCI" in lead.text and lead.query


def test_the_second_half_of_a_paragraph_finds_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"<h1>No paragraph</h1><p>{words(100, 'w')}</p><p>{words(79, 'short')}</p><p>{words(241, 'long')}</p>"
    packages(tmp_path, monkeypatch, {"anarchism": {"html/secA1.html": page, "html/index.html": page}})
    [pair] = kinds.read_essays()
    assert pair == Pair("", words(50, "w"), " ".join(f"w{number}" for number in range(50, 100)))


def test_a_paragraph_of_a_manual_finds_the_next_and_is_no_document_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth, fifth = (words(30, name) for name in ("a", "b", "c", "d", "e"))
    page = "".join(f"<p>{text}</p>" for text in (first, "A short one.", second, third, fourth, fifth))
    second_page = f"<p>{words(81, 'f')}</p><p>{words(25, 'g')}</p><p>{words(26, 'h')}</p><p>{first}</p>"
    packages(tmp_path, monkeypatch, {"postgresql-doc-99": {"one.html": page, "two.html": second_page}})
    depends = subprocess.CompletedProcess([], 0, "postgresql-doc\n  Depends: postgresql-doc-99\n")
    monkeypatch.setattr(kinds, "apt", lambda *words: depends)
    pairs = list(kinds.read_sections())
    assert pairs == [Pair("", second, first), Pair("", fourth, third), Pair("", words(25, "g"), "")]
    assert not {pair.text for pair in pairs} & {pair.query for pair in pairs}


def test_a_page_of_help_is_found_by_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = (
        "var bookmarks = [\n"
        '{url:"en-US/text/a.html?DbPAR=WRITER#bm_1", app:"WRITER", text:"cells --  joining &#34;two&#34;"},\n'
        '{url:"en-US/text/a.html?DbPAR=CALC#bm_2", app:"CALC", text:"merging"},\n]'
    )
    page = (
        "<title>Joining Cells</title><p>Help of 7.4</p><h1>Joining Cells</h1><p>Choose Merge.</p><h2>Then</h2>"
        "<p>Save.</p><h3>Help content debug info:</h3><p>This page is: /text/a.xhp</p>"
    )
    packages(
        tmp_path, monkeypatch, {"libreoffice-help-en-us": {"en-US/bookmarks.js": index, "en-US/text/a.html": page}}
    )
    assert list(kinds.read_help()) == [
        Pair("Joining Cells", "Choose Merge. Then Save.", query) for query in ('cells joining "two"', "merging")
    ]


def test_questions_find_answers_of_two_faqs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = "=head1 NAME\n\nperlfaq1\n\n=head2 What is C<< $a->b >>?\nX<arrow>\n\nIt is I<an arrow>.\n"
    page = (
        f"<h2>1.2. What is Debian?</h2><p>{words(30, 'a')}</p><p>{words(5, 'b')}</p><h2>Too short?</h2><p>Yes.</p>"
        f"<h2>2. No question</h2><p>{words(300, 'c')}</p>"
    )
    packages(
        tmp_path, monkeypatch, {"perl-doc": {"perlfaq1.pod": pod}, "debian-faq": {"a.en.html": page, "a.de.html": page}}
    )
    assert list(kinds.read_questions()) == [
        Pair("", "It is an arrow.", "What is $a->b?"),
        Pair("", f"{words(30, 'a')} {words(5, 'b')}", "What is Debian?"),
        Pair("", words(250, "c"), ""),
    ]


def test_a_package_without_the_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(tmp_path, monkeypatch, {"cats": {"doc/one.html": ""}})
    assert kinds.package_files("cats", "*.html", "*.txt") == [tmp_path / "cats/doc/one.html"]
    with pytest.raises(UserError, match="cats"):
        kinds.package_files("cats", "*.txt", "*.pod")


def test_descriptions_are_fetched_once_into_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def apt(*words: str) -> subprocess.CompletedProcess[str]:
        [lists] = [word.partition("=")[2] for word in words if word.startswith("-oDir::State::Lists=")]
        if calls:
            (Path(lists) / "one_Translation-en").write_text("Package: cat\n")
        calls.append(words)
        return subprocess.CompletedProcess(words, 0, "", "W: no network\n")

    monkeypatch.setattr(kinds, "CACHE", tmp_path)
    monkeypatch.setattr(kinds, "apt", apt)
    with pytest.raises(UserError, match="no descriptions of packages: W: no network"):
        kinds.translation_files()
    for _ in range(2):
        assert kinds.translation_files() == [tmp_path / "descriptions" / "one_Translation-en"]
    assert len(calls) == 2
