"""What is shown of a search: queries that are answered, and the part of a document that fits."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_run import read_mapping, run_ingest, write_lines

from pipeline.params import check_params
from pipeline.recipe import overlay
from slimtower.serving import display
from slimtower.serving.display import ANSWERS, answered_examples, snippet
from slimtower.serving.release import load_release
from steps.core.tables import SCHEMAS, read_table, write_table
from steps.encoders.towers import encode, load_tower
from steps.tracking.runs import NullRun


@pytest.mark.medium
def test_an_example_is_offered_where_the_release_answers_it(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = load_release(released / "models/release/2l")
    assert [answered_examples(release, dataset) for dataset in release.datasets] == [[], []]  # of other data
    hits = [hit.id.removeprefix("one/") for hit in release.query("sum", 10, "one")]
    answers = {"sum": frozenset({hits[2]}), " sum ": frozenset({"absent"}), "sum.": frozenset({hits[9]})}
    monkeypatch.setattr(display, "ANSWERS", answers)
    assert answered_examples(release, "one") == ["sum"]  # the first three are what people look at


def write_api_docs(folder: Path) -> int:
    """A BEIR folder of what the embedded data hold of five modules; a document's query is its summary line."""
    import matplotlib.axes
    import pandas.io.parsers.readers
    import pandas.plotting
    import PIL.Image
    import PIL.ImageOps

    documents, queries = {}, {}
    modules = (
        matplotlib.axes.Axes, pandas.io.parsers.readers, pandas.plotting, PIL.Image.Image, PIL.ImageOps,
    )  # fmt: skip
    for module in modules:
        prefix = f"{module.__module__}.{module.__qualname__}" if inspect.isclass(module) else module.__name__
        prefix = prefix.replace("matplotlib.axes._axes", "matplotlib.axes").replace("pandas.plotting._core", "pandas")
        for name, member in inspect.getmembers(module, callable):
            summary, _, rest = (inspect.getdoc(member) or "").partition("\n\n")
            if not name.startswith("_") and len(rest.split()) > 12:
                documents[f"{prefix}.{name}"], queries[f"{prefix}.{name}"] = " ".join(rest.split())[:200], summary
    write_lines(folder / "corpus.jsonl", [{"_id": f"api/{n}", "title": n, "text": t} for n, t in documents.items()])
    write_lines(folder / "queries.jsonl", [{"_id": n, "text": " ".join(text.split())} for n, text in queries.items()])
    for split, chosen in {"train": list(documents)[20:], "dev": list(documents)[:20]}.items():
        (folder / "qrels").mkdir(exist_ok=True)
        rows = "".join(f"{name}\tapi/{name}\t1\n" for name in chosen)
        (folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    return len(documents)


@pytest.mark.slow
@pytest.mark.nightly
def test_teacher_and_student_answer_every_example_among_their_first_three(tmp_path: Path) -> None:
    from steps.distill.run import run as distill
    from steps.embed.run import run as embed
    from steps.teach.run import run as teach

    assert write_api_docs(tmp_path / "beir") > 200
    small: dict[str, Any] = {
        "ingest": {"sources": [{"name": "api", "kind": "beir", "path": str(tmp_path / "beir")}]},
        "teach": {"teacher": {"dense": {"epochs": 0.0, "max_document_length": 48, "dev_documents": 20}}},
        "embed": {"parts": ["train_queries", "titles"], "least_texts": 0},
        "distill": {"students": ["static"], "student": {"static": {"epochs": 24.0, "batch_size": 256}}},
    }
    params, run = check_params(overlay(read_mapping(Path("params.yaml")), small), "small"), NullRun()
    ingest = run_ingest(tmp_path, params)
    for name, folder in (("triplets", "mine"), ("generated_queries", "generate")):
        write_table(tmp_path / folder, name, SCHEMAS[name].empty_table())
    teach(ingest, tmp_path / "mine", tmp_path / "teach", params.teach.described("dense"), run)
    embed(ingest, tmp_path / "generate", tmp_path / "teach", tmp_path / "embed", params.embed, run)
    inputs = {name: tmp_path / name for name in ("mine", "embed", "score", "teach")}
    distill("static", ingest, **inputs, output=tmp_path / "distill", params=params.distill, run=run)
    documents = np.load(tmp_path / "embed/documents.npy")
    names = [doc_id.rpartition("api/")[2] for doc_id in read_table(ingest, "corpus")["doc_id"].to_pylist()]
    for folder in ("teach/tower", "distill/query_encoder"):
        scores = encode(load_tower(tmp_path / folder), list(ANSWERS), "query") @ documents.T
        for answers, row in zip(ANSWERS.values(), scores, strict=True):
            first = {names[document] for document in np.argsort(-row)[:3]}
            assert first & answers, (folder, first, answers)


@pytest.mark.parametrize(
    ("content", "query", "expected"),
    [
        ("of\n  a   few words ", "", "of a few words"),
        ("word " * 100, "", " ".join(["word"] * 43) + " …"),
        ("字" * 300, "字", "字" * 218 + " …"),
        ("One thing. Draws a histogram of x. More.", "draw a histogram", "… Draws a histogram of x. More."),
        ("Draws it. Histograms are drawn.\n\nIt resizes images.", "resize an image", "… It resizes images."),
        ("Of the and. A word.", "of the and", "Of the and. A word."),  # words that tell nothing
        ("First. Sums. Sums.", "sum", "… Sums. Sums."),
        ("Costs (a+b) [c]. Price of $5.", "price ($5)", "… Price of $5."),
        ("Nothing here.", "absent words", "Nothing here."),
        ("", "word", ""),
    ],
)
def test_a_snippet_begins_with_the_sentence_that_has_most_words_of_the_query(
    content: str, query: str, expected: str
) -> None:
    assert snippet(content, query, 220) == expected


@pytest.mark.parametrize("query", ["", "word", "absent", "other words " * 500])
@pytest.mark.parametrize("length", [40, 220])
def test_a_snippet_is_never_longer_than_asked_for(query: str, length: int) -> None:
    for content in ("word " * 500, "first sentence. " + "word " * 500, "x" * 3000, "a. " * 900 + "word"):
        assert len(snippet(content, query, length)) <= length
