"""Vectors of an index that is there already: the teacher's own are taken, others are refused with the reason."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import teach
from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from steps.core.corpus import CorpusTexts
from steps.core.tables import table_from_rows, write_table
from steps.embed import given_vectors
from steps.embed.given_vectors import check_given, sampled_rows
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

ABSTRACTS = Path("tests/helpers/abstracts.txt").read_text(encoding="utf-8").splitlines()
PASSAGE = "passage: "


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_vectors, "CHECKED_DOCUMENTS", 8)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "ingest"
    rows = []
    for number, text in enumerate(ABSTRACTS):
        title, _, content = " ".join(text.split()[:50]).partition(" . ")
        rows.append({"doc_id": f"a/{number:02}", "dataset": "a", "title": title, "topic": "", "content": content})
    write_table(folder, "corpus", table_from_rows("corpus", rows), metadata={"document": "{title}. {content}"})
    (folder / "document_vectors").mkdir()
    return folder


@pytest.fixture(scope="module")
def teacher() -> SentenceTransformer:
    tower = load_tower(resolve_base("all-MiniLM-L6-v2"))
    tower.max_seq_length = 256
    tower.prompts = {"query": "query: ", "document": PASSAGE}
    return tower


Plant = Callable[[SentenceTransformer, list[str], np.ndarray], np.ndarray]


def prompted(prompt: str) -> Plant:
    return lambda tower, texts, teacher_vectors: tower.encode([prompt + text for text in texts])


def cut(tower: SentenceTransformer, texts: list[str], teacher_vectors: np.ndarray) -> np.ndarray:
    tower.max_seq_length = 32
    vectors = encode(tower, texts, "document")
    tower.max_seq_length = 256
    return vectors


def first_token(tower: SentenceTransformer, texts: list[str], teacher_vectors: np.ndarray) -> np.ndarray:
    tower[1].pooling_mode = "cls"
    vectors = encode(tower, texts, "document")
    tower[1].pooling_mode = "mean"
    return vectors


def contents(tower: SentenceTransformer, texts: list[str], teacher_vectors: np.ndarray) -> np.ndarray:
    return encode(tower, [text.partition(". ")[2] for text in texts], "document")


def some_swapped(tower: SentenceTransformer, texts: list[str], teacher_vectors: np.ndarray) -> np.ndarray:
    vectors = teacher_vectors.copy()
    pairs = np.arange(len(teacher_vectors) // 4 * 4).reshape(-1, 4)
    vectors[pairs[:, 0]], vectors[pairs[:, 1]] = teacher_vectors[pairs[:, 1]], teacher_vectors[pairs[:, 0]]
    return vectors


def another_model(tower: SentenceTransformer, texts: list[str], teacher_vectors: np.ndarray) -> np.ndarray:
    """An encoder of its own, and no stranger: the first two layers, mean pooled."""
    stranger = deepcopy(tower)
    network = stranger[0].auto_model
    network.encoder.layer = network.encoder.layer[:2]
    return encode(stranger, texts, "document")


PLANTED: dict[str, tuple[Plant, str]] = {
    "another model": (another_model, "another model made them: nothing that was tried matches"),
    "unnormalised": (lambda _, __, vectors: 3 * vectors, "lengths are not .*not normalised.*divide each by its length"),
    "shuffled": (lambda _, __, vectors: np.roll(vectors, 1, axis=0), "the ids are shuffled: .*one order"),
    "some swapped": (some_swapped, r"[1-7] of 8 have a cosine below.*ids are shuffled: [1-7] of these vectors"),
    "no prompt": (prompted(""), "no prompt matches .*set the teacher's document_prompt to ''"),
    "role": (prompted("query: "), "prompt 'query: ' matches"),
    "truncation": (cut, "cut at 32 tokens matches .*set the teacher's max_document_length to 32"),
    "cls": (first_token, "pooling cls matches .*Pooling the mode cls"),
    "dimensions": (lambda _, __, vectors: vectors[:, :128], "128 dimensions, the teacher 384"),
    "text": (contents, r"text '\{content\}' matches .*set ingest\.document to '\{content\}'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PLANTED)
def test_wrong_vectors_are_refused_with_what_would_match(case: str, corpus: Path, teacher: SentenceTransformer) -> None:
    plant, message = PLANTED[case]
    texts, path = list(CorpusTexts(corpus)), corpus / "document_vectors/vectors.npy"
    vectors = encode(teacher, texts, "document")
    np.save(path, plant(teacher, texts, vectors).astype(np.float32))
    with pytest.raises(UserError, match=message):
        check_given(path, corpus, teacher, 1, "fp32")
    assert teacher.prompts["document"] == PASSAGE and teacher.max_seq_length == 256  # as it was
    np.testing.assert_allclose(encode(teacher, texts[:2], "document"), vectors[:2], atol=1e-5)


def write_corpus(folder: Path, sets: dict[str, int]) -> list[str]:
    """A corpus of so many documents a data set; returns what a document tower reads."""
    words = " ".join(ABSTRACTS).split()
    rows = [
        {"doc_id": f"{name}/{number}", "dataset": name, "title": "", "topic": "",
         "content": " ".join(words[number * 7 : number * 7 + 40])}
        for name, count in sets.items() for number in range(count)
    ]  # fmt: skip
    write_table(folder, "corpus", table_from_rows("corpus", rows), metadata={"document": "{content}"})
    return [row["content"] for row in rows]


def test_a_small_wrong_set_beside_a_large_right_one_is_found(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = load_tower(tiny_tower)
    vectors = encode(tower, write_corpus(tmp_path, {"large": 90, "small": 2}), "document")
    monkeypatch.setattr(given_vectors, "LEAST_COSINE", 0.9999)
    monkeypatch.setattr(given_vectors, "CHECKED_DOCUMENTS", 5)
    assert len(sampled_rows(tmp_path, 1)) == 7
    monkeypatch.setattr(given_vectors, "CHECKED_DOCUMENTS", 2)
    assert sampled_rows(tmp_path, 1)[2:].tolist() == [90, 91] and len(sampled_rows(tmp_path, 1)) == 4
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float16).astype(np.float32))  # rounded, and still its own
    assert check_given(tmp_path / "vectors.npy", tmp_path, tower, 1, "fp32")["documents"] == 4
    vectors[90:] *= -1
    np.save(tmp_path / "vectors.npy", vectors)
    with pytest.raises(UserError, match="2 of 4 have a cosine below"):
        check_given(tmp_path / "vectors.npy", tmp_path, tower, 1, "fp32")


@pytest.mark.parametrize("case", ["cut", "role", "refused"])
def test_of_an_api_other_cuts_and_roles_are_tried(
    case: str, tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setattr(given_vectors, "LEAST_COSINE", 0.9999)
    tower = load_tower(tiny_tower)
    vectors = encode(tower, write_corpus(tmp_path, {"large": 6}), "document")
    np.save(
        tmp_path / "vectors.npy",
        vectors if case == "cut" else -vectors if case == "role" else np.roll(vectors, 1, axis=1),
    )
    messages = {
        "cut": r"cut at \d+ tokens matches .*set max_length of the teacher's document to \d+",
        "role": r"body {'input_type': 'document'} matches .*give the teacher's document the body {'input_type'",
        "refused": r"another model made them: .*body {'input_type': 'query'} refused",
    }[case]
    with serving(tower_reader(tower)) as server:
        reads = {"prompt": "", "body": {}, "max_length": 6 if case == "cut" else 64}
        tower_of_api = load_tower(teach(tmp_path / "teach", server, query=reads, document=reads))
        if case == "refused":
            server.refuse = lambda body: body.get("input_type") == "query"
        with pytest.raises(UserError, match=messages):
            check_given(tmp_path / "vectors.npy", tmp_path, tower_of_api, 1, "fp32")
