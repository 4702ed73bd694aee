#!/usr/bin/env bash
# torch 2.13.0 on Linux with glibc.
#
# Guess: an extension that torch has not linked finds torch's C functions by dlsym(RTLD_DEFAULT) once torch is imported.
# Seen: it does not. The function is only found in the handle of the library, which dlopen with RTLD_NOLOAD returns
# without loading anything. So an extension must link the library, or look the function up in it.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import os

import torch

NAME = "aoti_torch_get_dim"
everywhere = ctypes.CDLL(None)  # its functions are those of dlsym(RTLD_DEFAULT)
library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
print(f"torch {torch.__version__}")
print("in the global scope:", hasattr(everywhere, NAME), "in the library:", hasattr(library, NAME))
assert hasattr(library, NAME) and not hasattr(everywhere, NAME), "the behaviour has changed"
PYTHON
