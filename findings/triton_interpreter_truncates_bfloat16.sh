#!/usr/bin/env bash
# triton 3.7.1 in its interpreter (TRITON_INTERPRET=1), with torch 2.13.0 (CPU).
#
# Guess: `.to(tl.bfloat16)` rounds to the nearest, as in torch and on GPUs, since `.to(tl.float16)` does.
# Seen: it cuts the lower bits off: 1.999 becomes 1.9921875 (nearest: 2.0), and 3.4e38, which rounds to infinity, stays
# finite. So a kernel tested in the interpreter has up to twice the rounding error in bfloat16, all towards 0.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 triton==3.7.1 numpy
cat > "$folder/cast.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def cast(x, out, size: tl.constexpr, dtype: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(out + place, tl.load(x + place).to(dtype))


x = torch.tensor([1.999, -1.999, 1.005, 3.4e38])
found, expected = {}, {}
for name, kind, dtype in (("bfloat16", tl.bfloat16, torch.bfloat16), ("float16", tl.float16, torch.float16)):
    out = torch.zeros(4, dtype=dtype)
    cast[(1,)](x, out, 4, kind)
    found[name], expected[name] = out.tolist(), x.to(dtype).tolist()
print(f"triton {triton.__version__}: {found['bfloat16']}; torch {torch.__version__}: {expected['bfloat16']}")
assert found["float16"] == expected["float16"], "the behaviour has changed"
cut = (x.view(torch.int32) & -65536).view(torch.float32).tolist()
assert found["bfloat16"] == cut and expected["bfloat16"][0] == 2.0, "the behaviour has changed"
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" -W ignore "$folder/cast.py"
