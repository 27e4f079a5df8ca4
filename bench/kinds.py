"""A corpus of one kind, made on Debian or Ubuntu.

Documents come from the system's packages (`apt-get download`, kept below .cache/kinds; nothing is installed) or from
the sources of installed Python packages: another release of either gives another corpus. For most kinds a query is what
people wrote for its document and the document does not show: a docstring's first line, a package's short description, a
question of a FAQ. The machine draws those of three kinds: for `devices` random words of the document, for `essays` and
`sections` a part of the text, which the documents then lack. Every kind has dev and test queries, and up to 2,000 that
nobody judged, which are of other documents or of those of the corpus; the change no_queries of bench.disguise leaves
them out, for who starts has none. Documents with the same text are one.

Kinds that choose knobs and kinds that only report are told apart in bench/corpora.yaml; they share no package.
"""

import ast
import gzip
import hashlib
import html
import importlib.util
import lzma
import random
import re
import shutil
import string
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.disguise import SEED, Corpus
from bench.markup import Paragraphs, collapse, plain_pod, plain_roff
from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder

CACHE = Path(".cache/kinds")
_BASE_64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
QUERIES = 600  # half of them dev, half test
UNJUDGED = 2000  # more queries of the kind
CODE = ("numpy", "scipy", "pandas", "sklearn", "networkx", "sympy", "sqlalchemy", "matplotlib", "transformers")


class Pair(NamedTuple):
    """A document and the query that finds it, or none."""

    title: str
    text: str
    query: str


def build_corpus(pairs: Iterable[Pair], documents: int) -> Corpus:
    """`documents` of the pairs, `QUERIES` of their queries with judgements, and `UNJUDGED` of all others without.

    Equal texts are one document, relevant to each of its queries.
    """
    unique: dict[tuple[str, str], list[str]] = {}
    for title, text, query in pairs:
        unique.setdefault((title, text), []).append(query)
    draw = random.Random(SEED)
    chosen = sorted(draw.sample(sorted(unique), min(documents, len(unique))))
    names = {key: hashlib.sha256("\n".join(key).encode()).hexdigest()[:12] for key in chosen}
    relevant: dict[str, list[str]] = {}
    for key in chosen:
        for query in filter(None, dict.fromkeys(unique[key])):
            relevant.setdefault(query, []).append(names[key])
    sample = draw.sample(sorted(relevant), min(QUERIES, len(relevant)))
    queries = {f"q{number}": query for number, query in enumerate(sample)}
    judged = [(name, document, 1) for name, query in queries.items() for document in relevant[query]]
    dev = set(list(queries)[::2])
    others = sorted({query for texts in unique.values() for query in texts if query}.difference(sample))
    unjudged = draw.sample(others, min(UNJUDGED, len(others)))
    return Corpus(
        [(names[key], *key) for key in chosen],
        queries | {f"u{number}": query for number, query in enumerate(unjudged)},
        {"dev": [row for row in judged if row[0] in dev], "test": [row for row in judged if row[0] not in dev]},
    )


def apt(*words: str, folder: Path = Path()) -> subprocess.CompletedProcess[str]:
    """What a command of apt said in a folder; UserError on a machine without it."""
    if not shutil.which(words[0]):
        raise UserError(f"{words[0]} is not here: make this kind of corpus on Debian or Ubuntu, or leave it out")
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def package_files(package: str, *patterns: str) -> list[Path]:
    """Files of a Debian package, downloaded once; UserError if it cannot be had."""
    folder = CACHE / package
    if not folder.is_dir():
        with staged_folder(folder) as staging:
            fetched = apt("apt-get", "download", "-qq", package, folder=staging)
            archives = list(staging.glob("*.deb"))
            if fetched.returncode or not archives:
                raise UserError(f"apt-get download {package}: {fetched.stderr.strip()}; run `apt-get update` first")
            subprocess.run(["dpkg-deb", "-x", archives[0].name, "."], cwd=staging, check=True)
            archives[0].unlink()
    paths = [path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()]
    if not paths:
        raise UserError(
            f"{package}: this release's package has no {' or '.join(patterns)}; the kind cannot be made here"
        )
    return sorted(paths)


def read_text(path: Path) -> str:
    """A file's text, unpacked if it is packed."""
    opener: Callable[..., Iterator[bytes]] = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)  # type: ignore[assignment]
    with opener(path, "rb") as stream:  # type: ignore[attr-defined]
        return str(stream.read().decode("utf-8", "replace"))


def read_code() -> Iterator[Pair]:
    """Functions without their docstrings, by the docstrings' first lines: code that a sentence should find."""
    specs = {package: importlib.util.find_spec(package) for package in CODE}
    if missing := [package for package, spec in specs.items() if not spec]:
        raise UserError(f"code: {', '.join(missing)} cannot be imported; install slimtower[pipeline] (`make setup`)")
    for folder in [
        Path(location) for spec in specs.values() if spec for location in spec.submodule_search_locations or []
    ]:
        for path in sorted(folder.rglob("*.py")):
            if "tests" not in path.relative_to(folder).parts:
                yield from _functions(path)


def _functions(path: Path) -> Iterator[Pair]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and len(node.body) > 2:
            summary = collapse((ast.get_docstring(node) or "").split("\n\n")[0])
            if 4 <= len(summary.split()) <= 25:
                node.body = node.body[1:]
                yield Pair("", ast.unparse(node)[:1500], summary)


def read_packages() -> Iterator[Pair]:
    """Debian's package descriptions by their short lines."""
    for path in translation_files():
        for stanza in read_text(path).split("\n\n"):
            described = re.search(r"^Description-en: (.*)\n((?: .*\n?)+)", stanza, re.M)
            if described:
                short, long = described.groups()
                text = collapse(re.sub(r"^ \.$", "", long, flags=re.M))
                if len(text.split()) >= 12:
                    yield Pair("", text, short if len(short.split()) >= 3 else "")


def translation_files() -> list[Path]:
    """Lists with the packages' long descriptions, which images of Debian leave out."""
    folder = CACHE / "descriptions"
    if not folder.is_dir():
        with staged_folder(folder) as staging:
            (staging / "partial").mkdir()
            options = [f"Dir::State::Lists={staging.resolve()}", "Acquire::Languages=en", "Acquire::GzipIndexes=false"]
            fetched = apt("apt-get", "update", "-qq", *(f"-o{option}" for option in options))
            if not list(staging.glob("*Translation-en")):
                raise UserError(f"apt-get update brought no descriptions of packages: {fetched.stderr.strip()}")
    return sorted(folder.glob("*Translation-en"))


def read_glosses() -> Iterator[Pair]:
    """WordNet's definitions of nouns and verbs by their words: documents of a few words."""
    for path in package_files("wordnet-base", "data.noun", "data.verb"):
        for line in read_text(path).splitlines():
            head, bar, gloss = line.partition(" | ")
            if bar and not line.startswith(" "):
                fields = head.split()
                words = [fields[4 + 2 * at].replace("_", " ") for at in range(int(fields[3], 16))]
                yield Pair("", gloss.split('; "')[0].strip(), ", ".join(words))


def read_definitions() -> Iterator[Pair]:
    """Definitions of Webster's dictionary of 1913 by their words, which they then lack: documents of a few words.

    The package has entries of WordNet too, which are left out: WordNet's definitions only report.
    """
    markup = re.compile(r"^[^\[]*\]|\[[^\]]*\]|\([A-Z][\w. &]*\)|[{}]|^\s*\d+\.", re.M)
    for entry in dictionary_entries("dict-gcide", "gcide"):
        word = re.match(r"([A-Za-z][\w' -]+?) \\", entry)
        if word and "[1913" in entry and "WordNet" not in entry:
            sense = re.split(r"\n\s*\n|\[1913", entry.partition("\n")[2])[0]
            text = re.split(r"; as, | --|(?<=[a-z])\. (?=[A-Z])", collapse(markup.sub("", sense)))[0]
            text = collapse(re.sub(rf"\b{re.escape(word[1])}\b", "", text, flags=re.I))
            if 5 <= len(text.split()) <= 40 and not re.search(r"^See |[\[\]\\]", text):
                yield Pair("", text, word[1].lower())


def read_terms() -> Iterator[Pair]:
    """Terms of computing by their names: the first paragraph that explains each."""
    for entry in dictionary_entries("dict-foldoc", "foldoc"):
        names, _, explained = entry.partition("\n\n")
        text = collapse(re.sub(r"<[^>]*>|[{}]", "", re.split(r"\n\s*\n", explained)[0]))
        if len(text.split()) >= 8:
            yield Pair("", text, names.partition("\n")[0])


def dictionary_entries(package: str, name: str) -> Iterator[str]:
    """Entries of a dictionary of dictd, each once: its index has them by place and length, in base 64."""
    [index], [packed] = (package_files(package, f"{name}.{suffix}") for suffix in ("index", "dict.dz"))
    with gzip.open(packed) as stream:
        content = stream.read()
    places = dict.fromkeys(tuple(row.split("\t")[1:3]) for row in read_text(index).splitlines() if row[:3] != "00-")
    for start, length in (map(_decoded_number, place) for place in places):
        yield content[start : start + length].decode("utf-8", "replace")


def _decoded_number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 64 + _BASE_64.index(digit)
    return value


def read_manuals() -> Iterator[Pair]:
    """Pages of the Linux manual by what their NAME line says: short, technical, without titles."""
    for path in package_files("manpages-dev", "man*/*.gz") + package_files("manpages", "man*/*.gz"):
        name = re.search(r'\.SH "?NAME"?\n(.*?)\n\.SH', source := read_text(path), re.S)
        described = source.partition(".SH DESCRIPTION")[2]
        text = plain_roff(re.split(r"\n\.SH ", described)[0])
        if name and len(text.split()) >= 15:
            yield Pair("", " ".join(text.split()[:300]), plain_roff(name[1]).partition(" - ")[2])


def read_devices() -> Iterator[Pair]:
    """Devices as their attributes, by some of the words of them: products."""
    draw = random.Random(SEED)
    for package, name, bus in (("usb.ids", "usb.ids", "USB"), ("pci.ids", "pci.ids", "PCI")):
        maker = ""
        for line in read_text(package_files(package, name)[0]).splitlines():
            if line.startswith("C "):
                break  # classes follow
            if re.match(r"[0-9a-f]{4}  ", line):
                maker = line[6:].strip()
            elif re.match(r"\t[0-9a-f]{4}  ", line) and maker:
                code, device = line.strip().split("  ", 1)
                words = re.findall(r"\w+", f"{maker} {device}".lower())
                query_words = draw.sample(words, min(len(words), draw.randint(2, 4)))
                yield Pair(
                    device,
                    f"Maker: {maker}. Bus: {bus}. Number: {code}.",
                    " ".join(query_words) if len(words) > 3 else "",
                )


def read_blocks(path: Path) -> list[tuple[str, str]]:
    return Paragraphs(read_text(path)).blocks


def read_essays() -> Iterator[Pair]:
    """Paragraphs of essays: a second half, of 40 to 120 words, should find its first."""
    for path in package_files("anarchism", "sec*.html"):
        for tag, text in read_blocks(path):
            words = text.split()
            if tag == "p" and 80 <= len(words) <= 240:
                yield Pair("", " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]))


def read_sections() -> Iterator[Pair]:
    """Paragraphs of PostgreSQL's manual: every second one is a document, which the one before it, if short, finds."""
    depends = apt("apt-cache", "depends", "postgresql-doc").stdout  # stands for the release's own version
    [package] = re.findall(r"postgresql-doc-\d+", depends)[:1] or ["postgresql-doc"]
    pages = [
        [text for tag, text in read_blocks(path) if tag == "p" and len(text.split()) >= 25]
        for path in package_files(package, "*.html")
    ]
    query_texts = {text for texts in pages for text in texts[::2]}
    for before, text in (pair for texts in pages for pair in zip(texts[::2], texts[1::2], strict=False)):
        if text not in query_texts:  # some paragraphs stand on several pages
            yield Pair("", text, before if len(before.split()) <= 80 else "")


def read_help() -> Iterator[Pair]:
    """Pages of LibreOffice's help by the entries that its index has for them."""
    [index] = package_files("libreoffice-help-en-us", "en-US/bookmarks.js")
    entries: dict[str, list[str]] = {}
    for page, entry in re.findall(r'\{url:"en-US/(.+?)[?#].*?text:"(.*)"\}', read_text(index)):
        entries.setdefault(page, []).append(collapse(html.unescape(entry).replace(" -- ", " ")))
    for page, queries in entries.items():
        (_, title), _, *blocks = read_blocks(index.parent / page)  # the page's title, the site's, the page
        text = " ".join(text for tag, text in blocks if tag != "h1").partition("Help content debug info:")[0]
        yield from (Pair(title, " ".join(text.split()[:300]), query) for query in queries)


def read_questions() -> Iterator[Pair]:
    """Answers of two FAQs by their questions: of Perl's and of Debian's."""
    for path in package_files("perl-doc", "perlfaq[1-9].pod"):
        for part in re.split(r"^=head2 ", read_text(path), flags=re.M)[1:]:
            question, _, answer = part.partition("\n")
            yield Pair("", plain_pod(answer), plain_pod(question))
    for path in package_files("debian-faq", "*.en.html"):
        yield from _answers(read_blocks(path))


def _answers(blocks: list[tuple[str, str]]) -> Iterator[Pair]:
    question, answer = "", [""]
    for tag, text in [*blocks, ("h1", "")]:
        if tag in ("h1", "h2", "h3", "h4", "h5"):
            words = " ".join(answer).split()
            if len(words) >= 20:
                yield Pair("", " ".join(words[:250]), question)
            question, answer = re.sub(r"^[A-Z]?[\d.]+\s*", "", text) if "?" in text else "", []
        elif tag == "p":
            answer.append(text)


KINDS: dict[str, tuple[Callable[[], Iterator[Pair]], int]] = {  # and how many documents
    "code": (read_code, 6000),
    "packages": (read_packages, 20000),
    "glosses": (read_glosses, 30000),
    "definitions": (read_definitions, 30000),
    "terms": (read_terms, 30000),
    "manuals": (read_manuals, 2000),
    "devices": (read_devices, 12000),
    "essays": (read_essays, 6000),
    "help": (read_help, 2000),
    "sections": (read_sections, 6000),
    "questions": (read_questions, 500),
}


def build(kind: str) -> Corpus:
    """UserError for a kind that is not there."""
    if kind not in KINDS:
        raise UserError(f"{kind}: no such kind; there are {', '.join(KINDS)}")
    reader, documents = KINDS[kind]
    return build_corpus(reader(), documents)
