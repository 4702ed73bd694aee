#!/usr/bin/env bash
# torch 2.13.0 (CPU, inductor; needs a C++ compiler).
#
# Guess: torch.compile gives the results of eager for a lazily negated tensor, such as `z.conj().imag`.
# Seen: the code of inductor reads the memory without the sign. t * 2 of the values 0, -1, -2 is 0, 2, 4 compiled and
# 0, -2, -4 in eager; t.resolve_neg() before the call gives the right values.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy setuptools
"$folder/venv/bin/python" - <<'PYTHON'
import torch


def twice(t):
    return t * 2


lazy = torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag
assert lazy.is_neg()
eager, compiled, resolved = twice(lazy), torch.compile(twice)(lazy), torch.compile(twice)(lazy.resolve_neg())
print(f"torch {torch.__version__}")
print("eager:", eager.tolist(), "compiled:", compiled.tolist(), "compiled after resolve_neg:", resolved.tolist())
assert torch.equal(eager, torch.tensor([0.0, -2.0, -4.0])) and torch.equal(resolved, eager)
assert torch.equal(compiled, -eager), "the behaviour has changed"
PYTHON
