"""The one way a document becomes a text: a template of its fields, which stands in the metadata of the corpus."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

DEFAULT = "{title}. {content}"
FIELDS = ("title", "topic", "content")
_KEY = "slimtower.document"  # of the metadata of the table `corpus`


@dataclass(frozen=True)
class DocumentTemplate:
    """How title, topic and content become what towers and BM25 read.

    A field that is empty is left out with the text in front of it; what stands before the first field of the template
    or after its last one goes with that field. Where the content is not alone, full stops and spaces of which the
    text between the fields is made are taken from both ends: "Title. Body", but "Body.". Where the title comes first
    and a line break follows it, a document of several lines without a title begins with one: no line of it is a title.
    ValueError for a template without content, or with anything but these fields, each once at most.
    """

    template: str = DEFAULT

    def __post_init__(self) -> None:
        allowed = (
            "the fields are {title}, {topic} and {content}, each at most once and {content} always; a brace itself is"
            " written {{ or }}"
        )
        try:
            parsed = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(f"{error}; {allowed}") from None
        names = [name for _, name, _, _ in parsed if name is not None]
        plain = not any(spec or conversion for _, _, spec, conversion in parsed)
        if not plain or not set(names) <= set(FIELDS) or len(names) > len(set(names)) or "content" not in names:
            raise ValueError(allowed)

    @cached_property
    def _parts(self) -> tuple[tuple[tuple[str, str], ...], str]:
        """Each field with the text in front of it, in their order, and the text behind the last one."""
        parts, before = [], ""
        for literal, name, _, _ in string.Formatter().parse(self.template):
            before += literal
            if name is not None:
                parts.append((before, name))
                before = ""
        return tuple(parts), before

    @cached_property
    def _trimmed(self) -> str:
        """Full stops and spaces of the text between fields."""
        parts, _ = self._parts
        return "".join(sorted(set(". ") & set("".join(before for before, _ in parts[1:]))))

    @cached_property
    def _has_title_line(self) -> bool:
        """Whether the title is a line of its own before all else."""
        parts, _ = self._parts
        return parts[0][1] == "title" and "\n" in parts[1][0]

    def names(self, field: str) -> bool:
        """Whether this field of a document is part of its text."""
        return any(name == field for _, name in self._parts[0])

    def text(self, title: str, topic: str, content: str) -> str:
        parts, behind = self._parts
        fields = {"title": title, "topic": topic, "content": content}
        filled = [(before, name) for before, name in parts if fields[name]]
        joined = "".join((before if at else "") + fields[name] for at, (before, name) in enumerate(filled))
        if any(name != "content" for _, name in filled):
            joined = joined.strip(self._trimmed)
        if self._has_title_line and not title and "\n" in joined:
            joined = "\n" + joined
        return (parts[0][0] if parts[0] in filled else "") + joined + (behind if parts[-1] in filled else "")

    @property
    def metadata(self) -> dict[str, str]:
        """What `write_table` writes with the table `corpus`."""
        return {_KEY: self.template}


def template_of(schema: pa.Schema) -> DocumentTemplate:
    """The template in the schema of a corpus that was read; the default where there is none."""
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    return DocumentTemplate(metadata.get(_KEY.encode(), DEFAULT.encode()).decode("utf-8"))
