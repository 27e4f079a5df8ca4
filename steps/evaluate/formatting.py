"""Figures, names and blocks of the report as people read them: on the page, in Markdown, in a terminal."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_COLUMN = 12  # letters of a column in a terminal at least


def percent(ratio: float) -> str:
    """0.9871 -> 98.7 %, with a space that does not break."""
    return f"{ratio * 100:.1f}\u00a0%"


def size(count: float) -> str:
    """Bytes as MB or kB."""
    return f"{count / 1e6:,.1f}\u00a0MB" if count >= 1e5 else f"{count / 1e3:,.1f}\u00a0kB"


def milliseconds(value: float) -> str:
    """Milliseconds with the digits that a timing can bear: 0.0102 -> 0.010, 0.677 -> 0.68, 12.94 -> 12.9."""
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def format_measure(values: Mapping[str, float], measure: str) -> str:
    """A value with four digits, a dash where the data set has no such measure."""
    return f"{values[measure]:.4f}" if measure in values else "–"


def rounded(count: float) -> int:
    """An estimate with two digits: 3142 -> 3100."""
    return int(float(f"{count:.2g}"))


def times(ratio: float) -> str:
    """A speed-up with two digits: 892.5 -> 890, 81.3 -> 81, 1.647 -> 1.6, 5.01 -> 5, 0.0234 -> 0.02."""
    return (
        f"{rounded(ratio):,}" if ratio >= 10 else f"{ratio:.1f}".removesuffix(".0") if ratio >= 0.1 else f"{ratio:.1g}"
    )


def in_words(model: str) -> str:
    """What a system is, if its name says that: `4l` -> 4 layers, `static` -> no transformer; else the name."""
    words = {"static": "no transformer", "bm25": "BM25"}
    if match := re.fullmatch(r"(\d+)l", model):
        return "1 layer" if match[1] == "1" else f"{match[1]} layers"
    return words.get(model, model)


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with a smaller line below it."""

    text: str
    small: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of as many cells as there are heads; the first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]


@dataclass(frozen=True)
class Drawing:
    """Inline SVG for a screen and for a phone, and what is told below it; report.md and the terminal do not show it."""

    wide: str
    narrow: str
    caption: str


Block = str | Table | Drawing
"""A paragraph, whose words may be `*emphasised*` or `[linked](https://...)`, a table or a drawing."""


def as_html(blocks: Iterable[Block]) -> Markup:
    """Blocks as elements of the page."""
    return Markup("\n").join(_html(block) for block in blocks)


def as_markdown(blocks: Iterable[Block]) -> list[str]:
    """Lines of report.md, a blank one between blocks."""
    return _joined(blocks, lambda table: markdown_table(table.heads, [list(map(_one_line, row)) for row in table.rows]))


def as_text(blocks: Iterable[Block]) -> list[str]:
    """Lines for a terminal: columns as wide as they must be, paragraphs without marks."""
    return [re.sub(r"\*|\[(.*?)\]\(.*?\)", r"\1", line) for line in _joined(blocks, _columns)]


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table of words, then figures. No cell ends a cell or begins a tag, whatever a user called a slice."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in line)} |" for line in lines
    ]


def _joined(blocks: Iterable[Block], lines_of: Callable[[Table], list[str]]) -> list[str]:
    parts = [
        [block] if isinstance(block, str) else lines_of(block) for block in blocks if not isinstance(block, Drawing)
    ]
    return [line for part in parts for line in ("", *part)]


def _columns(table: Table) -> list[str]:
    rows = [list(table.heads), *(list(map(_one_line, row)) for row in table.rows)]
    first, *widths = [max(_COLUMN, max(map(len, column)) + 1) for column in zip(*rows, strict=True)]
    return [
        row[0].ljust(first) + "".join(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))
        for row in rows
    ]


def _one_line(cell: str | Cell) -> str:
    text, small = (cell, "") if isinstance(cell, str) else (cell.text, cell.small)
    return f"{text} ({small})" if small else text


def _html(block: Block) -> Markup:
    if isinstance(block, Drawing):
        sides = Markup("").join(
            Markup('<div class="{}">{}</div>').format(name, Markup(svg))
            for name, svg in (("wide", block.wide), ("narrow", block.narrow))
        )
        return Markup('<figure>\n{}\n<figcaption class="small">{}</figcaption>\n</figure>').format(sides, block.caption)
    if isinstance(block, Table):
        head = Markup("").join(Markup("<th>{}</th>").format(name) for name in block.heads)
        rows = (Markup("").join(map(_html_cell, row)) for row in block.rows)
        body = Markup("\n").join(Markup("<tr>{}</tr>").format(row) for row in rows)
        return Markup('<table class="stack">\n<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody></table>').format(
            head, body
        )
    text = re.sub(r"\*(.+?)\*", r"<i>\1</i>", str(escape(block)))
    text = re.sub(r"\[(.+?)\]\((https://[^)]*)\)", r'<a href="\2">\1</a>', text)
    return Markup("<p>{}</p>").format(Markup(text))


def _html_cell(cell: str | Cell) -> Markup:
    text, small = (cell, "") if isinstance(cell, str) else (cell.text, cell.small)
    below = Markup('<span class="small">{}</span>').format(small) if small else ""
    return Markup("<td>{}{}</td>").format(text, below)
