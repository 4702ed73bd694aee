#!/usr/bin/env bash
# onnxruntime 1.31.1 and openvino 2026.4.1 (CPU), with onnx 1.23.2.
#
# Guess: a NaN in a row reaches the row's maximum, its ArgMax and its softmax, as in numpy and torch, so that a result
# shows that the numbers before it are broken.
# Seen, for the row 0, NaN, 2, ..., 19:
#   ONNX Runtime: ReduceMax 18 (with AVX-512), neither NaN nor the largest number; ArgMax 19; Softmax NaN everywhere
#   OpenVINO:     ReduceMax 19; ArgMax 19; Softmax NaN at the one place; Relu of NaN is 0, Exp of NaN is infinity
# numpy and torch give NaN, 1, and NaN everywhere.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/model.onnx" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper

row = np.arange(20, dtype=np.float32)[None].copy()
row[0, 1] = np.nan
core = openvino.Core()


def results(operator, kind=TensorProto.FLOAT, **attributes):
    """Results of ONNX Runtime and OpenVINO for one operator."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 20])
    out = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "one", [given], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, sys.argv[1])
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    compiled = core.compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.ravel(session.run(None, {"x": row})[0]), np.ravel(compiled({"x": row})[compiled.output(0)])]


largest = [float(one[0]) for one in results("ReduceMax", keepdims=0)]
place = [int(one[0]) for one in results("ArgMax", TensorProto.INT64, axis=1, keepdims=0)]
share = [np.flatnonzero(np.isnan(one)).tolist() for one in results("Softmax", axis=1)]
relu, exp = ([float(one[1]) for one in results(operator)] for operator in ("Relu", "Exp"))
print(f"onnxruntime {onnxruntime.__version__}, openvino {openvino.__version__}")
print(f"ReduceMax {largest}, ArgMax {place}, NaN in Softmax at {share}, Relu {relu}, Exp {exp}")
assert not np.isnan(largest).any() and place == [19, 19], "the behaviour has changed"
assert share == [list(range(20)), [1]], "the behaviour has changed"
assert np.isnan([relu[0], exp[0]]).all() and (relu[1], exp[1]) == (0, np.inf), "the behaviour has changed"
PYTHON
