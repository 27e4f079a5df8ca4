"""Graphs whose products are of another kind than those that are smoothed stay as they are."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from steps.release.quantisation import smooth


def test_a_graph_with_nothing_to_smooth_stays_as_it_is(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), dtype=np.float32), "weight")
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y"))
    node = helper.make_node("Gemm", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "gpt2", [next(ends)], [next(ends)], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    smooth(tmp_path / "model.onnx", tmp_path / "smooth.onnx", [{"x": np.ones((1, 4), dtype=np.float32)}])
    assert onnx.load(tmp_path / "smooth.onnx").graph == model.graph
