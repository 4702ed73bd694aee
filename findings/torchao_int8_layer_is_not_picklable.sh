#!/usr/bin/env bash
# torchao 0.18.0 with torch 2.13.0 (CPU).
#
# Guess: a layer quantized by torchao can be pickled, since its state dict can be saved and loaded.
# Seen: quantize_ stores a functools.partial as `extra_repr` in the instance, and pickle.dumps raises AttributeError,
# "'functools.partial' object has no attribute '__name__'". Without that attribute the layer is pickled, and the copy
# gives the same results.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchao==0.18.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import pickle

import torch
import torchao
from torchao.quantization import Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(8, 8))
quantize_(layer, Int8WeightOnlyConfig())
try:
    pickle.dumps(layer)
    found = "pickled"
except AttributeError as error:
    found = str(error)
print(f"torch {torch.__version__}, torchao {torchao.__version__}: {found}")
assert "functools.partial" in found, "the behaviour has changed"
del layer[0].extra_repr
x = torch.randn(2, 8)
assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
PYTHON
