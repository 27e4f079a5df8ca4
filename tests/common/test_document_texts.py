"""What a document's text is: the default as it always was, empty fields with what is around them gone."""

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slimtower.common.document_texts import DEFAULT, DocumentTemplate, template_of
from steps.core.corpus import CorpusTexts, corpus_template
from steps.core.tables import read_table, table_from_rows, write_table

ROWS = [
    {"doc_id": "a", "dataset": "one", "title": "Title", "topic": "causes", "content": "Body."},
    {"doc_id": "b", "dataset": "one", "title": "Title", "topic": "", "content": "Body."},
    {"doc_id": "c", "dataset": "one", "title": "", "topic": "causes", "content": "Body."},
]


def before_templates(title: str, content: str) -> str:
    """The text of a document before there were templates."""
    return f"{title}. {content}".strip(". ") if title else content


def test_the_default_is_title_and_content_as_ever() -> None:
    text = DocumentTemplate().text
    assert text("Title", "", "Body.") == "Title. Body"
    assert text("", "", "Body.") == "Body."
    random = Random(7)
    seen = set()
    for _ in range(20_000):
        title, topic, content = ("".join(random.choices(". aB{\n\té", k=random.randrange(5))) for _ in range(3))
        assert text(title, topic, content) == before_templates(title, content), (title, content)
        seen.add((title, content))
    assert len(seen) > 10_000 and {("", ""), (".", ""), (" ", "."), ("", ". ")} <= seen


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        ("{title} {topic} {content}", ("T", "U", "C."), "T U C."),
        ("{title} {topic} {content}", ("T", "", "C."), "T C."),
        ("{title} {topic} {content}", ("T", "U", ""), "T U"),
        ("{title} {topic} {content}", ("", "", " C. "), " C. "),
        ("{title} {topic} {content}", ("", "", ""), ""),
        ("{title}: {topic}. {content}", ("T", "", "C."), "T. C"),
        ("{title}: {topic}. {content}", ("T", "U", ""), "T: U"),
        ("{content} ({title})", ("T", "U", "C"), "C (T)"),
        ("{content} ({title})", ("", "U", "C"), "C"),
        ("title: {title} | text: {content}", ("T", "U", "C"), "title: T | text: C"),
        ("title: {title} | text: {content}", ("", "U", "C"), "C"),
        ("[{title}] {{{topic}}} {content}!", ("T", "U", "C"), "[T] {U} C!"),
        ("[{title}] {content}!", ("T", "U", ""), "[T"),
        ("{title}\n{content}", ("T.", "", " C. "), "T.\n C. "),
        ("{title}\n{content}", ("", "", "one\n\ntwo"), "\none\n\ntwo"),
        ("{title}\n{content}", ("", "", "one"), "one"),
        ("{title}\n{topic} {content}", ("", "U", "one\ntwo"), "\nU one\ntwo"),
        ("{content}", ("T", "U", ".C."), ".C."),
    ],
)
def test_an_empty_field_goes_with_what_is_around_it(template: str, fields: tuple[str, str, str], expected: str) -> None:
    assert DocumentTemplate(template).text(*fields) == expected


@pytest.mark.parametrize(
    "template",
    ["", "{title}", "{title} {body} {content}", "{content} {content}", "{content!r}", "{content:>9}", "{}", "{content",
     "content}", "{content.x}", "{0} {content}"],
)  # fmt: skip
def test_a_broken_template_says_what_is_allowed(template: str) -> None:
    with pytest.raises(ValueError, match=r"the fields are \{title\}, \{topic\} and \{content\}, each at most once"):
        DocumentTemplate(template)


def test_the_template_travels_with_the_corpus(tmp_path: Path) -> None:
    table = table_from_rows("corpus", ROWS)
    template = DocumentTemplate("{title} / {topic} / {content} é")
    write_table(tmp_path, "corpus", table, metadata=template.metadata)
    assert corpus_template(tmp_path) == template
    corpus = read_table(tmp_path, "corpus")
    assert corpus.equals(table) and template_of(corpus.schema) == template_of(corpus.slice(1).schema) == template
    parquet = pq.read_metadata(tmp_path / "corpus.parquet").metadata
    assert parquet[b"slimtower.document"].decode() == template.template
    assert pa.concat_tables([corpus, table]).num_rows == 6
    assert list(CorpusTexts(tmp_path)) == ["Title / causes / Body. é", "Title / Body. é", "causes / Body. é"]
    assert list(CorpusTexts(tmp_path, np.array([0, 2]))) == ["Title / causes / Body. é", "causes / Body. é"]
    write_table(tmp_path / "copy", "corpus", corpus)  # a table of another corpus is written without
    assert corpus_template(tmp_path / "copy").template == DEFAULT
    assert list(CorpusTexts(tmp_path / "copy")) == ["Title. Body", "Title. Body", "Body."]
