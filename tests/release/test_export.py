"""What is exported embeds as the sentence-transformers model does, and parity notices when it does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding
from torch import nn

from slimtower.common.errors import UserError
from slimtower.serving.query_encoder import load_query_encoder
from steps.core.cosines import cosines
from steps.encoders.bases import resolve_base
from steps.encoders.towers import load_tower
from steps.release.export import Precision, convert, export_table
from steps.release.forms import FORMS, to_try
from steps.release.onnx_encoder import (
    STRENGTH,
    calibration,
    embed,
    export_onnx,
    product_names,
    quantise,
    quantise_smoothed,
    smooth,
    smoothing_factors,
)
from steps.release.params import ReleaseParams
from steps.release.parity import check_export, check_unjudged, closeness

pytestmark = pytest.mark.medium

TEXTS = [
    "cumulative sum of an array",
    "",
    "sum",
    "a " * 200,
    "Ünïcode ☃",
    "the [SEP] of\nlines",
    "cumulative",
    "x" * 120,
]
CALIBRATION = ["sum of the elements", "a", "string window of a graph", "the mean along an axis, in place"]


def save(modules: list[nn.Module], folder: Path) -> Path:
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def linear(rows: int, columns: int, **changes: object) -> Dense:
    torch.manual_seed(1)
    return Dense(rows, columns, **({"bias": False, "activation_function": nn.Identity()} | changes))


def table_modules(tiny_tower: Path) -> list[nn.Module]:
    torch.manual_seed(2)
    return [StaticEmbedding(load_tower(tiny_tower).tokenizer, embedding_weights=torch.randn(30522, 32))]


TOWERS: dict[str, Callable[[nn.Module], list[nn.Module]]] = {
    "mean": lambda bert: [bert, Pooling(32, "mean"), Normalize()],
    "cls": lambda bert: [bert, Pooling(32, "cls"), Normalize()],
    "not normalised": lambda bert: [bert, Pooling(32, "mean")],
    "projected": lambda bert: [bert, Pooling(32, "mean"), linear(32, 48, bias=True), Normalize()],
}


@pytest.mark.parametrize("name", sorted(TOWERS))
def test_the_graph_embeds_as_the_tower_does(tiny_tower: Path, tmp_path: Path, name: str) -> None:
    folder = save(TOWERS[name](load_tower(tiny_tower)[0]), tmp_path / "tower")
    export_onnx(folder, tmp_path / "serving")
    expected = load_tower(folder).encode_query(TEXTS)
    encoder = load_query_encoder(tmp_path / "serving")
    assert encoder.dim == expected.shape[1]
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-5)  # one padded batch
    for text, vector in zip(TEXTS, expected, strict=True):
        np.testing.assert_allclose(encoder.encode([text])[0], vector, atol=2e-5)
    assert encoder.encode([]).shape == (0, expected.shape[1])


def converted(tower: Path, folder: Path, precision: Precision) -> Path:
    """The tower as a graph in a precision; returns its folder."""
    if not (folder / "exported").exists():
        export_onnx(tower, folder / "exported")
    convert(folder / "exported", folder / precision, "onnx", precision, CALIBRATION)
    return folder / precision


def test_the_int8_graph_is_smaller_and_close(tiny_tower: Path, tmp_path: Path) -> None:
    folder = converted(tiny_tower, tmp_path, "int8")
    exported = load_query_encoder(tmp_path / "exported")
    close = cosines(load_query_encoder(folder).encode(TEXTS), exported.encode(TEXTS))
    assert 0.99 < close.min() < 1 - 1e-9  # close, and yet another graph
    assert json.loads((folder / "serving.json").read_text())["precision"] == "int8"
    assert sorted(path.name for path in folder.iterdir()) == ["encoder.int8.onnx", "serving.json", "tokenizer.json"]


def test_a_mixed_graph_keeps_the_products_that_lose_most_and_is_closer(tiny_tower: Path, tmp_path: Path) -> None:
    tower = with_outliers(tiny_tower, tmp_path / "tower", layer=2)
    exact = load_query_encoder(converted(tower, tmp_path, "fp32")).encode(TEXTS)
    close = {}
    for precision in ("int8", "mixed"):
        embeddings = load_query_encoder(converted(tower, tmp_path, precision)).encode(TEXTS)  # type: ignore[arg-type]
        close[precision] = float(cosines(embeddings, exact).mean())
    assert 1 - close["mixed"] < 0.85 * (1 - close["int8"])
    exact_products = product_names(tmp_path / "mixed/encoder.mixed.onnx")
    assert len(exact_products) == 4  # a quarter of sixteen
    assert all(name in product_names(tmp_path / "exported/encoder.onnx") for name in exact_products)


def with_outliers(tower: Path, folder: Path, layer: int) -> Path:
    """The tower with two channels of a layer's output far larger than the others, as trained transformers have."""
    model = load_tower(tower)
    with torch.no_grad():
        model[0].auto_model.encoder.layer[layer].output.LayerNorm.weight[[3, 17]] *= 30
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.slow
def test_smoothing_keeps_the_embeddings_and_saves_int8_much_of_its_loss(tmp_path: Path) -> None:
    """Of a trained transformer: random ones have no channels that stand out."""
    export_onnx(Path(resolve_base("all-MiniLM-L6-v2")), tmp_path / "exported")
    source = tmp_path / "exported/encoder.onnx"
    batches = calibration(tmp_path / "exported", CALIBRATION)
    smooth(source, tmp_path / "smoothed.onnx", batches)
    quantise(source, tmp_path / "plain.onnx")
    quantise_smoothed(source, tmp_path / "int8.onnx", batches)
    test_batches = calibration(tmp_path / "exported", ["running total of a column", "who wrote this file?"])
    exact = embed(source, test_batches)
    np.testing.assert_allclose(embed(tmp_path / "smoothed.onnx", test_batches), exact, atol=1e-5)
    plain, smoothed = (embed(tmp_path / name, test_batches) for name in ("plain.onnx", "int8.onnx"))
    assert 1 - cosines(smoothed, exact).mean() < 0.7 * (1 - cosines(plain, exact).mean())


def test_factors_are_those_of_the_paper_up_to_a_common_one() -> None:
    """SmoothQuant, Eq. 4; a common factor changes no rounding: the scales of int8 follow it."""
    random = np.random.default_rng(3)
    activations, weights = random.uniform(0.1, 50, 9), random.uniform(0.01, 2, 9)
    expected = activations**STRENGTH / weights ** (1 - STRENGTH)
    factors = smoothing_factors(activations, weights)
    np.testing.assert_allclose(factors / factors[0], expected / expected[0], rtol=1e-12)
    assert np.isfinite(smoothing_factors(np.zeros(3), np.zeros(3))).all()


def test_int8_products_cannot_saturate_without_vnni(tiny_tower: Path, tmp_path: Path) -> None:
    """AVX2 adds two products of an unsigned activation (up to 255) and a signed weight in signed 16 bits."""
    graph = onnx.load(converted(tiny_tower, tmp_path, "int8") / "encoder.int8.onnx").graph
    weights = {initializer.name: onnx.numpy_helper.to_array(initializer) for initializer in graph.initializer}
    products = [node for node in graph.node if node.op_type in {"QAttention", "MatMulInteger", "DynamicQuantizeMatMul"}]
    assert len(products) == 4 * 4  # attention, its output and two feed-forward layers, in four layers
    for node in products:
        codes = weights[node.input[1]]
        assert codes.dtype == np.int8
        assert 2 * 255 * np.abs(codes.astype(np.int64)).max() <= 2**15 - 1
        assert np.abs(codes.astype(np.int64)).max(axis=0).min() > 32  # and yet each column uses its range


def test_an_int8_embedding_does_not_depend_on_its_neighbours(tiny_tower: Path, tmp_path: Path) -> None:
    encoder = load_query_encoder(converted(tiny_tower, tmp_path, "int8"))
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_array_equal(encoder.encode(TEXTS), alone)


@pytest.mark.parametrize("normalised", [True, False])
def test_both_exports_keep_the_first_dimensions(tiny_tower: Path, tmp_path: Path, normalised: bool) -> None:
    behind = [Normalize()] if normalised else []
    for name, modules, export in (
        ("graph", [load_tower(tiny_tower)[0], Pooling(32, "mean")], export_onnx),
        ("table", table_modules(tiny_tower), export_table),
    ):
        folder = save([*modules, *behind], tmp_path / name)
        export(folder, tmp_path / f"{name}.serving", dim=12)
        expected = load_tower(folder).encode_query(TEXTS)[:, :12].astype(np.float64)
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected /= np.where(lengths > 0, lengths, 1) if normalised else 1
        encoder = load_query_encoder(tmp_path / f"{name}.serving")
        assert encoder.dim == 12
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-5)


@pytest.mark.slow
def test_the_same_tower_gives_the_same_bytes(tiny_tower: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        for precision in ("fp32", "int8", "mixed"):
            converted(tiny_tower, tmp_path / name, precision)  # type: ignore[arg-type]
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 3 * 4
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path.name


@pytest.mark.parametrize(
    ("behind", "width"),
    [
        ([], 32),
        ([Normalize()], 32),
        ([linear(32, 24), Normalize()], 24),  # a map to fewer dimensions goes into the rows
        ([linear(32, 80), Normalize()], 32),  # one to more lies beside them
        ([linear(32, 24), linear(24, 80), Normalize()], 32),
    ],
)
def test_the_table_embeds_as_the_tower_does(
    tiny_tower: Path, tmp_path: Path, behind: list[nn.Module], width: int
) -> None:
    folder = save([*table_modules(tiny_tower), *behind], tmp_path / "tower")
    export_table(folder, tmp_path / "serving")
    expected = load_tower(folder).encode_query(TEXTS)
    np.testing.assert_allclose(load_query_encoder(tmp_path / "serving").encode(TEXTS), expected, atol=2e-6)
    assert np.load(tmp_path / "serving/table.npy").shape[1] == width
    convert(tmp_path / "serving", tmp_path / "int8", "table", "int8", [])
    assert cosines(load_query_encoder(tmp_path / "int8").encode(TEXTS), expected).min() > 0.999


@pytest.mark.parametrize("dim", [20, 48])
def test_a_narrow_table_keeps_the_first_dimensions_of_its_embeddings(
    tiny_tower: Path, tmp_path: Path, dim: int
) -> None:
    folder = save([*table_modules(tiny_tower), linear(32, 80)], tmp_path / "tower")
    export_table(folder, tmp_path / "serving", dim=dim)
    expected = load_tower(folder).encode_query(TEXTS)[:, :dim]
    np.testing.assert_allclose(load_query_encoder(tmp_path / "serving").encode(TEXTS), expected, atol=1e-5)
    assert np.load(tmp_path / "serving/table.npy").shape[1] == min(dim, 32)


def test_an_int8_table_is_a_quarter_and_each_value_half_a_step_off_at_most(tiny_tower: Path, tmp_path: Path) -> None:
    folder = save(table_modules(tiny_tower), tmp_path / "tower")
    export_table(folder, tmp_path / "serving")
    rows = np.load(tmp_path / "serving/table.npy").astype(np.float64)
    before = (tmp_path / "serving/table.npy").stat().st_size
    convert(tmp_path / "serving", tmp_path / "int8", "table", "int8", [])
    codes, scales = (np.load(tmp_path / "int8" / name) for name in ("table.npy", "scales.npy"))
    assert (tmp_path / "int8/table.npy").stat().st_size < before / 3.9
    steps = np.abs(rows).max(axis=1) / 127
    assert (np.abs(codes * scales[:, None].astype(np.float64) - rows).max(axis=1) <= 0.5001 * steps).all()
    close = cosines(load_query_encoder(tmp_path / "int8").encode(TEXTS), load_tower(folder).encode_query(TEXTS))
    assert close.min() > 0.999


def test_what_cannot_be_exported_is_named(tiny_tower: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no token table"):
        export_table(tiny_tower, tmp_path / "out")
    table = save(table_modules(tiny_tower), tmp_path / "table")
    with pytest.raises(UserError, match="no transformer"):
        export_onnx(table, tmp_path / "out")
    for number, behind in enumerate([linear(32, 24, bias=True), linear(32, 24, activation_function=nn.Tanh())]):
        folder = save([*table_modules(tiny_tower), behind], tmp_path / str(number))
        with pytest.raises(UserError, match="an activation, a residual or a bias"):
            export_table(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def vectors(count: int = 4) -> np.ndarray:
    return np.random.default_rng(6).standard_normal((count, 5)).astype(np.float32)


@pytest.mark.parametrize("damage", [0.5, np.nan])
def test_a_wrong_export_fails_and_names_the_worst_text(damage: float) -> None:
    wrong = vectors()
    wrong[2, 0] += damage
    texts = [f"query {number}" for number in range(4)]
    with pytest.raises(UserError, match=r"parity: the fp32 export of 'query 2' has cosine"):
        check_export(texts, vectors(), wrong, 0.9999)
    assert check_export(texts, vectors(), vectors() * 2, 0.9999) == pytest.approx(1)


def test_without_judged_queries_the_mean_cosine_decides() -> None:
    served = vectors() + np.random.default_rng(7).normal(0, 0.2, vectors().shape).astype(np.float32)
    ours, theirs = served.astype(np.float64), vectors().astype(np.float64)
    cosine_values = [a @ b / np.sqrt(a @ a) / np.sqrt(b @ b) for a, b in zip(ours, theirs, strict=True)]
    close = closeness("one", "too few", vectors(), served)
    assert (close.texts, close.served_cosine_mean) == (4, pytest.approx(np.mean(cosine_values)))
    assert close.served_cosine_min == pytest.approx(min(cosine_values))
    assert close.served_cosine_min < close.served_cosine_mean - 1e-3
    check_unjudged({"one": close}, float(np.mean(cosine_values)) - 1e-9)
    with pytest.raises(UserError, match=r"on 4 texts of 'one'.*below 0\.9999.*precision: auto"):
        check_unjudged({"one": close}, 0.9999)
    served[1, 0] = np.nan  # NaN is as far from the student as can be
    assert closeness("one", "too few", vectors(), served).served_cosine_min == -1
    with pytest.raises(UserError, match="'one': no query and no document has a text"):
        closeness("one", "too few", vectors(0), vectors(0))


def test_a_tower_that_cuts_on_the_left_is_refused(tiny_tower: Path, tmp_path: Path) -> None:
    """What serves cuts on the right: a long query would silently become another one."""
    tower = load_tower(tiny_tower)
    tower.tokenizer.truncation_side = "left"
    tower.save_pretrained(str(tmp_path / "tower"), create_model_card=False)
    with pytest.raises(UserError, match="truncates on the left"):
        export_onnx(tmp_path / "tower", tmp_path / "serving")


def test_every_precision_that_params_allow_is_one_of_every_format() -> None:
    allowed = get_args(ReleaseParams.model_fields["precision"].annotation)
    assert set(allowed) == {"auto", "int8", "mixed", "fp32"}
    for form, precisions in FORMS.items():
        for precision in allowed:
            assert set(to_try(form, precision)) <= set(precisions) and to_try(form, precision)
    assert to_try("table", "mixed") == ("int8",)


def test_a_graph_with_nothing_to_smooth_stays_as_it_is(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), dtype=np.float32), "weight")
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y"))
    node = helper.make_node("Gemm", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "gpt2", [next(ends)], [next(ends)], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    smooth(tmp_path / "model.onnx", tmp_path / "smooth.onnx", [{"x": np.ones((1, 4), dtype=np.float32)}])
    assert onnx.load(tmp_path / "smooth.onnx").graph == model.graph
