#!/usr/bin/env bash
# torch 2.13.0 (CPU), an embedding with bfloat16 weights.
#
# Guess: the gradient of a token is the rounded sum over its occurrences, as it is for the weight of a linear layer.
# Seen: each occurrence is added to the bfloat16 gradient, which stops growing at 256: 3,000 occurrences with gradient 1
# give 256 (a linear layer of one-hot rows gives the rounded sum, 3,008). The same holds for index_add. With float32
# weights the gradient is 3,000.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn.functional import embedding, linear, one_hot

tokens = torch.zeros(3000, dtype=torch.long)  # a frequent token, such as [SEP] in a large batch


def gradient(dtype, layer):
    weight = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    layer(weight).sum().backward()
    return weight.grad[0, 0].item()


looked_up = [gradient(dtype, lambda weight: embedding(tokens, weight)) for dtype in (torch.bfloat16, torch.float32)]
rows = one_hot(tokens, 2).bfloat16()
multiplied = gradient(torch.bfloat16, lambda weight: linear(rows, weight.T))
added = torch.zeros(1, dtype=torch.bfloat16).index_add(0, tokens, torch.ones(3000, dtype=torch.bfloat16)).item()
print(f"torch {torch.__version__}: embedding {looked_up}, linear layer {multiplied}, index_add {added}")
assert looked_up == [256, 3000], "the behaviour has changed"
assert (multiplied, added) == (3008, 256), "the behaviour has changed"
PYTHON
