"""A docstring as the two texts of a search task: its summary (the query) and the rest (the document)."""

import inspect
import re

SUMMARY_WORDS = 40  # a longer first paragraph is prose: its first sentence is the summary
_ROLE = re.compile(r":[a-zA-Z][\w:+-]*:`~?[._]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}")
_MARK = re.compile(r"`\.(?=[A-Za-z])|`{1,2}(?:\\(?=\w)|_{1,2}(?!\w))?|\*\*(?=\S)|(?<=\S)\*\*|\[(?=`)|(?<=`)\]|(?<=`)~")
_TEMPLATE = re.compile(r"%\(\w+\)s|\$\{\w+\}|\{\w+\}")
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(\s*->\s*.+|\s*-->?)?$", re.DOTALL)
_UNDERLINE = re.compile(r"^\s*([-=~^\"*#+])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"^\s*\.\.\s+(?:[\w:-]+::|_[^:]+:|\[\w+\])\s*")
_VERSION = re.compile(r"^\s*\.\.\s+(?:version\w+|deprecated|currentmodule|index|rubric|plot|testcode)::")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_DROPPED_SECTIONS = {"see also", "examples", "example", "references"}  # other objects' summaries, code, citations


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """(summary, content) of a docstring, markup lightly cleaned; None where either is missing or a template.

    The summary is the first paragraph that is no signature, as one line. Paragraphs of the content are separated
    by a blank line. The content never repeats the summary.
    """
    paragraphs = [part for part in re.split(r"\n\s*\n", inspect.cleandoc(docstring)) if part.strip()]
    while paragraphs and _SIGNATURE.match(paragraphs[0].strip()):
        del paragraphs[0]
    if len(paragraphs) < 2 and not (paragraphs and len(paragraphs[0].split()) > SUMMARY_WORDS):
        return None
    first = " ".join(paragraphs[0].split())
    rest = paragraphs[1:]
    if len(first.split()) > SUMMARY_WORDS:
        sentences = _SENTENCE.split(first, maxsplit=1)
        first, rest = sentences[0], [*sentences[1:], *rest]
    if _TEMPLATE.search(first) or _DIRECTIVE.match(first) or first.startswith((">>>", ":")):
        return None
    summary = " ".join(plain(first).split()).rstrip(" :")
    content = without_phrase(_content(rest), summary)
    return (summary, content) if summary and content else None


def plain(text: str) -> str:
    """The text without reStructuredText and Markdown marks: roles, links, literals, emphasis."""
    text = _ROLE.sub(lambda match: match[1], text)
    text = _LINK.sub(lambda match: match[1], text)
    return _MARK.sub("", _TEMPLATE.sub("", text))


def without_phrase(text: str, phrase: str) -> str:
    """The text without any occurrence of the phrase, whatever its case, spacing and punctuation."""
    tokens = re.findall(r"\w+", phrase)
    lower = text.lower()
    if not tokens or not all(token.lower() in lower for token in tokens):
        return text  # the usual case, without the cost of a pattern
    pattern = re.compile(r"\b" + r"[\W_]+".join(map(re.escape, tokens)) + r"\b[.!]?", re.IGNORECASE)
    return "\n\n".join(part for paragraph in pattern.sub("", text).split("\n\n") if (part := paragraph.strip()))


def cut_words(text: str, limit: int) -> str:
    """The first `limit` words, paragraphs kept."""
    paragraphs: list[str] = []
    for paragraph in text.split("\n\n"):
        words = paragraph.split()[:limit]
        limit -= len(words)
        if words:
            paragraphs.append(" ".join(words))
    return "\n\n".join(paragraphs)


def _content(paragraphs: list[str]) -> str:
    selected: list[str] = []
    dropping = False
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        if len(lines) > 1 and _UNDERLINE.match(lines[1]):
            dropping = lines[0].strip().lower() in _DROPPED_SECTIONS
            lines = lines[2:]
        elif lines[0].strip().rstrip(":").lower() in _DROPPED_SECTIONS and lines[0].rstrip().endswith(":"):
            continue
        if not dropping and (text := _paragraph(lines)):
            selected.append(text)
    return "\n\n".join(selected)


def _paragraph(lines: list[str]) -> str:
    selected = []
    for line in lines:
        if line.lstrip().startswith((">>>", "```")):
            break  # code and its output run to the end of their paragraph
        if _VERSION.match(line) or _UNDERLINE.match(line):
            continue
        selected.append(_DIRECTIVE.sub("", line))
    return " ".join(plain(" ".join(selected)).split())
