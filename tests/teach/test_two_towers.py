"""A teacher whose query and document tower have different weights: each text is read by the tower of its role."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize
from stages import DISTILL, RANKED, STATIC, TWO_LAYERS, distill_params, run_distill, run_embed, run_release, run_score
from teach_fakes import PARAMS, write_tower, write_world
from towers import other_weights

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.release import load_release
from slimtower.serving.tower_files import tower_bytes, tower_facts
from steps.core.tables import read_table
from steps.encoders.towers import encode, load_tower, route
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.medium


def two_towers(query: Path, document: Path, target: Path, *, outside: bool = False) -> Path:
    """A Router of two plain towers; with `outside` their Normalize is one module behind it."""
    sides = [list(load_tower(folder)) for folder in (query, document)]
    sides = [[module for module in side if not isinstance(module, Normalize)] for side in sides]
    if not outside:
        sides = [[*side, Normalize()] for side in sides]
    routes = Router.for_query_document(query_modules=sides[0], document_modules=sides[1])
    behind = [Normalize()] if outside else []
    prompts = {"query": "asked: ", "document": ""}
    tower = SentenceTransformer(modules=[routes, *behind], device="cpu", similarity_fn_name="cosine", prompts=prompts)
    tower.save_pretrained(str(target), create_model_card=False)
    return target


@pytest.fixture(scope="module", params=[False, True], ids=["inside", "outside"])
def root(request: pytest.FixtureRequest, tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of such a teacher in which `embed` is done."""
    folder = tmp_path_factory.mktemp("two-towers")
    other_weights(tiny_tower, folder / "documents", seed=4)
    router = two_towers(tiny_tower, folder / "documents", folder / "router", outside=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        run_embed(folder, router)
    return folder


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_documents_texts_lengths_and_tokens_are_each_embedded_by_their_own_tower(root: Path, tiny_tower: Path) -> None:
    asking = load_tower(tiny_tower)
    bare = SentenceTransformer(modules=list(asking)[:2], device="cpu")
    reading = load_tower(root / "documents")
    embed = root / "data/embed"
    texts = read_table(embed, "alignment_texts")["text"].to_pylist()
    raw = bare.encode([f"asked: {text}" for text in texts], batch_size=1)
    np.testing.assert_allclose(np.load(embed / "lengths.npy"), np.linalg.norm(raw, axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.load(embed / "alignment.npy"), unit(raw), atol=2e-3)
    corpus = read_table(root / "data/ingest", "corpus").to_pylist()
    documents = [DocumentTemplate().text(row["title"], row["topic"], row["content"]) for row in corpus]
    np.testing.assert_allclose(np.load(embed / "documents.npy"), unit(reading.encode(documents)), atol=1e-5)
    token = asking.tokenizer.convert_tokens_to_ids("axis")
    np.testing.assert_allclose(np.load(embed / "tokens.npy")[token], asking.encode("axis"), atol=1e-5)


@pytest.mark.slow
def test_students_start_from_the_query_tower_and_are_released_over_the_document_tower(
    root: Path, tiny_tower: Path
) -> None:
    students = {"static": STATIC, "2l": TWO_LAYERS | {"learning_rate": 1e-9}, "ranked": RANKED}
    params = distill_params(students=list(students), student=DISTILL["student"] | students)  # type: ignore[operator]
    queries = ["how to sum the mean", "a file"]
    for student in students:
        output = run_distill(root, student, params)
        both = load_tower(output / "router")
        np.testing.assert_allclose(
            encode(both, queries, "document"),
            unit(encode(load_tower(root / "documents"), queries, "document")),
            atol=1e-5,
        )
        np.testing.assert_allclose(
            encode(both, queries, "query"), encode(load_tower(output / "query_encoder"), queries, "query"), atol=1e-6
        )
    teacher = load_tower(tiny_tower)[0].auto_model.state_dict()
    student = load_tower(root / "models/distill/2l/query_encoder")[0].auto_model.state_dict()
    for ours, theirs in (("encoder.layer.0", "encoder.layer.0"), ("encoder.layer.1", "encoder.layer.3")):
        name = "output.dense.weight"
        np.testing.assert_allclose(student[f"{ours}.{name}"], teacher[f"{theirs}.{name}"], atol=1e-5)

    for name in ("static", "2l"):
        release = load_release(run_release(root, name))
        assert release.manifest.normalised and release.manifest.modules == ["Transformer", "Pooling", "Normalize"]
        assert release.manifest.pooling == ["mean"] and release.manifest.prompts["query"] == "asked: "
        assert release.manifest.teacher == vars(fingerprint(root / "models/teach/dense/tower"))
        vectors = release.encode(queries)
        _, hits = release.search("one", vectors, 3, "flat")
        ids = [row["doc_id"] for row in read_table(root / "data/ingest", "corpus").to_pylist()]
        document_vectors = np.load(root / "data/embed/documents.npy")
        dataset_rows = [row for row, doc_id in enumerate(ids) if doc_id.startswith("one/")]
        best = [
            [ids[dataset_rows[rank]] for rank in np.argsort(-(document_vectors[dataset_rows] @ vector))[:3]]
            for vector in vectors
        ]
        assert hits == best


def test_such_a_teacher_scores_by_both_of_its_towers(root: Path, tiny_tower: Path) -> None:
    write_json(root / "models/teach/dense/report.json", {"kind": "dual_encoder"})
    output = run_score(root, "dense")
    embed = root / "data/embed"
    query_vectors, document_vectors, nearest = (
        np.load(embed / f"{name}.npy") for name in ("alignment", "documents", "nearest")
    )
    expected = np.einsum("td,tkd->tk", query_vectors.astype(np.float64), document_vectors[nearest].astype(np.float64))
    scores = read_table(output, "scores")["score"].to_numpy()
    np.testing.assert_allclose(scores, expected.reshape(-1), atol=5e-3)  # alignment.npy is in half precision


def test_a_fingerprint_tells_apart_which_tower_reads_queries(tiny_tower: Path, tmp_path: Path) -> None:
    other_weights(tiny_tower, tmp_path / "other", seed=4)
    first = two_towers(tiny_tower, tmp_path / "other", tmp_path / "one")
    swapped = two_towers(tmp_path / "other", tiny_tower, tmp_path / "swapped")
    assert fingerprint(first).id != fingerprint(swapped).id
    for name in ("query", "document"):  # the same files, read by the other role
        assert (first / "router_config.json").is_file() and list(first.glob(f"{name}_*"))
    config = read_json(first / "router_config.json")
    config["structure"]["query"], config["structure"]["document"] = (
        config["structure"]["document"],
        config["structure"]["query"],
    )
    before = fingerprint(first).id
    write_json(first / "router_config.json", config)
    assert fingerprint(first).id != before


def test_the_files_say_of_each_role_what_reads_it(tiny_tower: Path, tmp_path: Path) -> None:
    two_towers(tiny_tower, tiny_tower, tmp_path / "both")
    plain = tower_facts(tiny_tower, "document")
    for role in ("query", "document"):
        facts = tower_facts(tmp_path / "both", role)  # type: ignore[arg-type]
        assert facts["modules"] == plain["modules"] == ["Transformer", "Pooling", "Normalize"]
        assert facts["pooling"] == ["mean"] and facts["normalised"]
    sizes = [tower_bytes(folder, "query") for folder in (tiny_tower, tmp_path / "both")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_both_towers_of_a_teacher_train_and_are_kept(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest, mine = write_world(tmp_path)
    plain = write_tower(tmp_path / "model")
    base = two_towers(plain, plain, tmp_path / "base")
    params = PARAMS.model_copy(update={"base": str(base), "epochs": 6.0, "learning_rate": 5e-3})
    teach(ingest, mine, tmp_path / "teach", params, NullRun())
    before, after = load_tower(base), load_tower(tmp_path / "teach/tower")
    for role in ("query", "document"):
        old, new = (dict(route(tower, role).named_parameters()) for tower in (before, after))  # type: ignore[arg-type]
        assert any(not np.allclose(old[name].detach(), new[name].detach()) for name in old), role
        assert route(after, role).max_seq_length == PARAMS.max_document_length  # type: ignore[arg-type]
    query_weights, two = (route(after, role).state_dict() for role in ("query", "document"))  # type: ignore[arg-type]
    assert any(not np.allclose(query_weights[name], two[name]) for name in query_weights)
    comparison = read_json(tmp_path / "teach/report.json")["comparison"]
    assert comparison["ndcg_teacher"] > comparison["ndcg_base"]


def test_an_untied_teacher_begins_as_two_copies_of_its_base_which_both_train(tmp_path: Path, own_cache: Path) -> None:
    ingest, mine = write_world(tmp_path)
    plain = write_tower(tmp_path / "model")
    untied = PARAMS.model_copy(update={"base": str(plain), "untied": True})
    texts = ["sum all", "sort rows at once"]
    for epochs in (0.0, 6.0):
        params = untied.model_copy(update={"epochs": epochs, "learning_rate": 5e-3})
        teach(ingest, mine, tmp_path / f"teach{epochs:g}", params, NullRun())
    base = load_tower(plain)
    untrained, trained = (load_tower(tmp_path / f"teach{epochs}/tower") for epochs in (0, 6))
    earlier = load_tower(tmp_path / "teach6/earlier/base")
    moved = []
    for role in ("query", "document"):
        for copied in (untrained, earlier):
            np.testing.assert_allclose(encode(copied, texts, role), encode(base, texts, role), atol=1e-6)  # type: ignore[arg-type]
        moved.append(route(trained, role).state_dict())  # type: ignore[arg-type]
        assert any(not np.allclose(moved[-1][name], weight) for name, weight in base.state_dict().items()), role
        assert route(trained, role).max_seq_length == PARAMS.max_document_length  # type: ignore[arg-type]
    assert any(not np.allclose(moved[0][name], moved[1][name]) for name in moved[0])
    with pytest.raises(UserError, match=r"teach6/tower .*untied: false"):
        retrained = untied.model_copy(update={"base": str(tmp_path / "teach6/tower")})
        teach(ingest, mine, tmp_path / "twice", retrained, NullRun())


def test_a_router_whose_routes_end_differently_is_refused_unless_it_compares_by_cosine(tmp_path: Path) -> None:
    plain = write_tower(tmp_path / "model")
    ingest, mine = write_world(tmp_path)
    for similarity in ("dot", "cosine"):
        asking, reading = list(load_tower(plain)), list(load_tower(plain))[:2]
        routes = Router.for_query_document(query_modules=asking, document_modules=reading)
        mixed = SentenceTransformer(modules=[routes], device="cpu", similarity_fn_name=similarity)
        mixed.save_pretrained(str(tmp_path / similarity), create_model_card=False)
    params = PARAMS.model_copy(update={"epochs": 0.0, "base": str(tmp_path / "dot")})
    with pytest.raises(UserError, match=r"^teach\.teacher: base .*query and document"):
        teach(ingest, mine, tmp_path / "teach", params, NullRun())
    teach(ingest, mine, tmp_path / "teach", params.model_copy(update={"base": str(tmp_path / "cosine")}), NullRun())
    tower = load_tower(tmp_path / "teach/tower")
    for role in ("query", "document"):
        vectors = encode(tower, ["sum all", "sort"], role)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_router_without_the_two_routes_is_named(tiny_tower: Path, tmp_path: Path) -> None:
    routes = Router({"text": list(load_tower(tiny_tower))}, route_mappings={(None, "text"): "text"})
    SentenceTransformer(modules=[routes], device="cpu").save_pretrained(str(tmp_path / "x"), create_model_card=False)
    with pytest.raises(UserError, match=r"a Router with the routes \['text'\] has none for 'query'; make it with"):
        load_tower(tmp_path / "x", "query")
