"""python -m bench.kinds KIND TARGET: a BEIR folder of one kind of corpus, made from what every machine can fetch.

Documents come from Debian's packages (`apt-get download`, kept below .cache/kinds; nothing is installed), from the
sources of installed Python packages, or from DATA/help. A query is what people wrote for its document and the document
does not show: a docstring's first line, a package's short description, a question of a FAQ. Every kind has dev and
test queries alone, for nobody who starts has others. Documents with the same text are one.

Kinds that choose knobs and kinds that only report are told apart in bench/corpora.yaml.
"""

import ast
import gzip
import hashlib
import html.parser
import importlib.util
import lzma
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.disguise import SEED, Corpus, write
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import staged_folder

CACHE = Path(".cache/kinds")
QUERIES = 600  # half of them dev, half test
CODE = ("numpy", "scipy", "pandas", "sklearn", "networkx", "sympy", "sqlalchemy", "matplotlib", "transformers")


class Pair(NamedTuple):
    """A document and the query that finds it, or none."""

    title: str
    text: str
    query: str


def build_corpus(pairs: Iterable[Pair], documents: int) -> Corpus:
    """`documents` drawn of the pairs, `QUERIES` of their queries; a query may have several documents.

    A text that several queries have is one document, relevant to each.
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
    drawn = draw.sample(sorted(relevant), min(QUERIES, len(relevant)))
    queries = {f"q{number}": query for number, query in enumerate(drawn)}
    judged = [(name, document, 1) for name, query in queries.items() for document in relevant[query]]
    dev = set(list(queries)[::2])
    return Corpus(
        [(names[key], *key) for key in chosen],
        queries,
        {"dev": [row for row in judged if row[0] in dev], "test": [row for row in judged if row[0] not in dev]},
    )


def package_files(package: str, *patterns: str) -> list[Path]:
    """Files of a Debian package, downloaded once; UserError if it cannot be had."""
    folder = CACHE / package
    if not folder.is_dir():
        with staged_folder(folder) as staging:
            fetched = subprocess.run(["apt-get", "download", "-qq", package], cwd=staging, capture_output=True)
            archives = list(staging.glob("*.deb"))
            if fetched.returncode or not archives:
                raise UserError(
                    f"apt-get download {package}: {fetched.stderr.decode().strip()}; needs Debian or Ubuntu"
                )
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


def collapse(text: str) -> str:
    """White space as one blank."""
    return " ".join(text.split())


def read_code() -> Iterator[Pair]:
    """Functions without their docstrings, by the docstrings' first lines: code that a sentence should find."""
    for package in CODE:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                if "tests" not in path.parts:
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
            subprocess.run(["apt-get", "update", "-qq", *(f"-o{option}" for option in options)], check=False)
            if not list(staging.glob("*Translation-en")):
                raise UserError("apt-get update brought no descriptions of packages; this kind needs Debian or Ubuntu")
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


def read_manuals() -> Iterator[Pair]:
    """Pages of the Linux manual by what their NAME line says: short, technical, without titles."""
    for path in package_files("manpages-dev", "man*/*.gz") + package_files("manpages", "man*/*.gz"):
        name = re.search(r'\.SH "?NAME"?\n(.*?)\n\.SH', source := read_text(path), re.S)
        described = source.partition(".SH DESCRIPTION")[2]
        text = plain_roff(re.split(r"\n\.SH ", described)[0])
        if name and len(text.split()) >= 15:
            yield Pair("", " ".join(text.split()[:300]), plain_roff(name[1]).partition(" - ")[2])


def plain_roff(source: str) -> str:
    """Text of a manual page's source: macros of fonts keep what they mark, others go."""
    lines = []
    for line in source.splitlines():
        if line.startswith((".", "'")):
            marked = re.match(r"\.(?:[BI]|[BIR][BIR]|S[MSH]|TP|IP)\s+(.*)", line)
            line = marked[1].replace('"', "") if marked and not line.startswith((".TP", ".IP")) else ""
        lines.append(line)
    text = re.sub(r"\\f.|\\[&c/|^]|\\s[-+]?\d", "", " ".join(lines).replace(r"\-", "-"))
    return collapse(re.sub(r"\\\(\w\w|\\\[\w+\]|\\.", " ", text))


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
                some = draw.sample(words, min(len(words), draw.randint(2, 4)))
                yield Pair(
                    device, f"Maker: {maker}. Bus: {bus}. Number: {code}.", " ".join(some) if len(words) > 3 else ""
                )


class _Paragraphs(html.parser.HTMLParser):
    """(tag, text) of headings, paragraphs, list items and definitions, in their order."""

    TAGS = frozenset({"h1", "h2", "h3", "h4", "h5", "p", "li", "dd", "title"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.blocks: list[tuple[str, str]] = []
        self._parts: list[str] = []
        self._tag = ""
        self.feed(source)
        self.close()
        self._close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in self.TAGS:
            self._close()
            self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        if tag in self.TAGS or tag in ("pre", "table", "div"):
            self._close()

    def handle_data(self, data: str) -> None:
        if self._tag:
            self._parts.append(data)

    def _close(self) -> None:
        if text := collapse("".join(self._parts)):
            self.blocks.append((self._tag, text))
        self._parts, self._tag = [], ""


def read_blocks(path: Path) -> list[tuple[str, str]]:
    """Headings and paragraphs of a page."""
    return _Paragraphs(read_text(path)).blocks


def read_essays() -> Iterator[Pair]:
    """Paragraphs of essays: a second half, of 40 to 120 words, should find its first."""
    for path in package_files("anarchism", "sec*.html"):
        for tag, text in read_blocks(path):
            words = text.split()
            if tag == "p" and 80 <= len(words) <= 240:
                yield Pair("", " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]))


def read_sections() -> Iterator[Pair]:
    """Paragraphs of PostgreSQL's manual: one, of 25 to 80 words, should find the next."""
    for path in package_files("postgresql-doc-15", "*.html") if _has("postgresql-doc-15") else _newer_manual():
        texts = [text for tag, text in read_blocks(path) if tag == "p" and len(text.split()) >= 25]
        yield from (
            Pair("", text, before if len(before.split()) <= 80 else "")
            for before, text in zip(["", *texts], texts, strict=False)
        )


def _has(package: str) -> bool:
    return bool(subprocess.run(["apt-cache", "show", package], capture_output=True).stdout)


def _newer_manual() -> list[Path]:
    return package_files("postgresql-doc-17", "*.html")


def read_questions() -> Iterator[Pair]:
    """Answers of FAQs and of a manual by their questions, as a forum has them."""
    for path in package_files("perl-doc", "perlfaq[1-9].pod"):
        for part in re.split(r"^=head2 ", read_text(path), flags=re.M)[1:]:
            question, _, answer = part.partition("\n")
            yield Pair("", plain_pod(answer), question)
    for path in package_files("anarchism", "sec*.html") + package_files("debian-faq", "*.en.html"):
        yield from _answers(read_blocks(path))


def plain_pod(source: str) -> str:
    """The first 250 words of a pod's text."""
    text = re.sub(r"[A-Z]<+\s*(.*?)\s*>+", r"\1", re.sub(r"^=.*$", "", source, flags=re.M))
    return " ".join(text.split()[:250])


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
    "manuals": (read_manuals, 2000),
    "devices": (read_devices, 12000),
    "essays": (read_essays, 6000),
    "sections": (read_sections, 8000),
    "questions": (read_questions, 2000),
}


def build(kind: str) -> Corpus:
    """UserError for a kind that is not there."""
    if kind not in KINDS:
        raise UserError(f"{kind}: no such kind; there are {', '.join(KINDS)}")
    reader, documents = KINDS[kind]
    return build_corpus(reader(), documents)


def main() -> None:
    """Read the command line and write the folder."""
    if len(sys.argv) != 3:
        raise UserError(f"usage: {(__doc__ or '').splitlines()[0]}")
    kind, target = sys.argv[1:]
    corpus = build(kind)
    write(corpus, Path(target))
    judged = {split: len({query for query, *_ in rows}) for split, rows in corpus.judgements.items()}
    print(f"{target}: {len(corpus.documents)} documents, judged queries {judged}")


if __name__ == "__main__":
    guarded(main)
