"""Closeness to the teacher where nothing is judged: which texts it is measured on, and what is measured."""

from pathlib import Path

import pytest
from evaluate_fakes import FakeRelease, bag_of_words

from slimtower.common.errors import UserError
from steps.core.tables import table_from_rows, write_table
from steps.evaluate.figures.base import overlaps
from steps.evaluate.figures.closeness import measure_closeness
from steps.evaluate.judging import describe_parts, read_texts

Row = tuple[str, str, str]


def write(root: Path, students: dict[str, list[Row]], contents: list[str]) -> list[Path]:
    """Tables of what each student held out, as (part, source id, text), and a corpus of the data set `a`."""
    for name, rows in students.items():
        held_out = [
            {"text_sha": text, "text": text, "part": part, "role": "query", "source_id": source}
            for part, source, text in rows
        ]
        write_table(root / name, "held_out", table_from_rows("held_out", held_out))
    corpus = [
        {"doc_id": f"a/{at}", "dataset": "a", "title": "", "topic": "", "content": content}
        for at, content in enumerate(contents)
    ]
    write_table(root, "corpus", table_from_rows("corpus", corpus))
    return [root / name for name in students]


def test_texts_are_those_that_every_student_held_out_of_that_data_set(tmp_path: Path) -> None:
    rows = [
        ("unlabelled_queries", "a/q", "one"),
        ("titles", "a/1", "two"),
        ("unlabelled_queries", "b/q", "other"),
        ("sentences", "a/2", "three"),
    ]
    generated = [("generated_queries", "a/q#0", "made")]
    folders = write(tmp_path, {"x": rows + generated, "y": rows[:3] + generated}, ["text"])
    [sample] = read_texts(tmp_path, folders, ["a"], 1)
    assert (sorted(sample.texts), sample.parts) == (["one", "two"], {"unlabelled_queries": 1, "titles": 1})
    assert describe_parts(sample.parts) == "1 titles, 1 unlabelled queries that trained no student"
    assert read_texts(tmp_path, [], [], 1) == []


def test_queries_count_before_texts_of_documents_and_there_is_a_limit(tmp_path: Path) -> None:
    def parts(*held_out: Row) -> dict[str, int]:
        [sample] = read_texts(tmp_path, write(tmp_path, {"x": list(held_out)}, contents), ["a"], 1)
        assert len(set(sample.texts)) == sum(sample.parts.values())
        return dict(sample.parts)

    train_queries = [("train_queries", f"a/{at}", f"own {at}") for at in range(20)]
    unlabelled = [("unlabelled_queries", f"a/{at}", f"query {at}") for at in range(20)]
    nobodys = [("unlabelled_queries", f"unlabelled_queries/{at}", f"query {at}") for at in range(20)]
    titles = [("titles", f"a/{at}", f"title {at}") for at in range(600)]
    contents = [f"Text number {at}." for at in range(50)]
    assert parts(*unlabelled, *titles) == {"unlabelled_queries": 20}, "enough queries stand alone"
    assert sum(parts(*unlabelled[1:], *titles).values()) == 500
    assert parts(*train_queries[:3], *nobodys, *titles[:30]) == {"train_queries": 3, "unlabelled_queries": 20}
    assert parts(*nobodys) == {"unlabelled_queries": 20}
    assert parts(*nobodys[:5], *titles[:30]) == {"unlabelled_queries": 5, "titles": 30}
    assert parts(*train_queries, *nobodys) == {"train_queries": 20}, "its own are enough"


def test_without_any_held_out_text_the_corpus_stands_in_and_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path, {"x": [("unlabelled_queries", "b/q", "other")]}, ["First here. Then more.", ""])
    [sample] = read_texts(tmp_path, folders, ["a"], 1)
    assert (sample.texts, sample.parts) == (["First here."], {"corpus": 1})
    assert "may have trained students: too few texts of this data set were held out" in describe_parts(sample.parts)
    with pytest.raises(UserError, match="'c': no document has a title or a sentence"):
        read_texts(tmp_path, folders, ["c"], 1)


def test_the_corpus_stands_in_where_students_of_several_seeds_hold_out_little_in_common(tmp_path: Path) -> None:
    shared = [("titles", "a/0", "both")]
    held_out = {name: [("titles", f"a/{name}{at}", f"{name} {at}") for at in range(40)] + shared for name in ("x", "y")}
    [sample] = read_texts(tmp_path, write(tmp_path, held_out, [f"Text number {at}." for at in range(50)]), ["a"], 1)
    assert sample.parts == {"corpus": 50}
    [sample] = read_texts(tmp_path, write(tmp_path, {"x": held_out["x"]}, ["One."]), ["a"], 1)
    assert sample.parts == {"titles": 41}


def test_closeness_is_1_for_the_teacher_itself_and_less_for_one_that_reads_less() -> None:
    documents = {"a": {f"a/{at}": f"word{at % 7} word{at}" for at in range(40)}}
    same, less = FakeRelease(documents), FakeRelease(documents, known=1)
    texts = [f"word{at} word{at + 7}" for at in range(10)]
    teacher_vectors = bag_of_words(texts)
    close, far = (
        {
            name: values.mean()
            for name, values in measure_closeness(release, "a", teacher_vectors, release.encode(texts)).items()
        }
        for release in (same, less)
    )
    assert close == pytest.approx({"cosine": 1.0, "overlap": 1.0})
    assert far["cosine"] < 0.9 and far["overlap"] < 1
    assert set(same.searched) == {"flat"}
    assert overlaps([["a", "b"], ["a"], []], [["b", "c"], ["b"], []]).tolist() == [0.5, 0.0, 1.0]
