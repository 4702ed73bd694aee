#!/usr/bin/env bash
# torch 2.13.0 (CPU) with onnx 1.23.2, onnxscript 0.7.2 and onnxruntime 1.31.1.
#
# Guess: torch.onnx.export of a module in training mode gives the graph for inference, as the exporter without
# dynamo=True did by default.
# Seen: it warns, and the graph has a Dropout node in training mode. ONNX Runtime drops other entries in each run: two
# runs on one input differ. OpenVINO 2026.4.1 refuses the file. A module in eval mode has no such node.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
import torch

layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
x = torch.randn(4, 8)
found = {}
for mode in ("training", "eval"):
    layers.train(mode == "training")
    model = torch.onnx.export(layers, (x,), dynamo=True, verbose=False).model_proto
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    first, second = (session.run(None, {session.get_inputs()[0].name: x.numpy()})[0] for _ in range(2))
    found[mode] = ([node.op_type for node in model.graph.node], np.array_equal(first, second))
print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}:", found)
expected = {"training": (["Gemm", "Dropout"], False), "eval": (["Gemm"], True)}
assert found == expected, "the behaviour has changed"
PYTHON
