"""Plain text of HTML, of manual pages and of pod."""

import html.parser
import re


def collapse(text: str) -> str:
    """White space as one blank."""
    return " ".join(text.split())


class Paragraphs(html.parser.HTMLParser):
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


def plain_roff(source: str) -> str:
    """Text of a manual page's source: macros of fonts keep what they mark, others go."""
    lines = []
    for line in source.splitlines():
        if line.startswith((".", "'")):
            marked = re.match(r"\.(?:[BI]|[BIR][BIR]|S[MSH]|TP|IP)\s+(.*)", line)
            line = marked[1].replace('"', "") if marked and not line.startswith((".TP", ".IP")) else ""
        lines.append(line)
    text = re.sub(r"\\f(?:\(..|\[\w*\]|.)|\\[&c/|^]|\\s[-+]?\d", "", " ".join(lines).replace(r"\-", "-"))
    return collapse(re.sub(r"\\\(\w\w|\\\[\w+\]|\\.", " ", text))


def plain_pod(source: str) -> str:
    """The first 250 words of a pod's text, without its index and codes, which program text, indented, does not have."""
    paragraphs = re.split(r"\n(?:[ \t]*\n)+", re.sub(r"^=.*$|X<[^<>]+>", "", source, flags=re.M))
    text = " ".join(part if part.startswith((" ", "\t")) else _without_codes(part) for part in paragraphs)
    return " ".join(text.split()[:250])


def _without_codes(text: str) -> str:
    """I<one>, C<< $a->two >> and B<nested I<codes>>: each ends with as many brackets as it begins with."""
    parts, opened, at = [], [0], 0
    while bracket := re.compile(rf"[A-Z](?:(<<+)\s+|(<))|{_closing(opened[-1])}").search(text, at):
        parts.append(text[at : bracket.start()])
        if opening := bracket[1] or bracket[2]:
            opened.append(len(opening))
        else:
            opened.pop()
        at = bracket.end()
    return "".join([*parts, text[at:]])


def _closing(brackets: int) -> str:
    """What ends a code that begins with so many brackets; nothing does if none has begun."""
    return {0: "(?!)", 1: ">"}.get(brackets, rf"\s+>{{{brackets}}}")
