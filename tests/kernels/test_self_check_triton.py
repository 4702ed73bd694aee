"""Mistakes in the source of the Triton kernels, in the interpreter, are detected by the first call that they affect."""

import json

import pytest
from processes import run_python

pytest.importorskip("triton")
pytestmark = pytest.mark.full

# Executes the sources of all kernel modules, one of them with a text replaced, and makes a call. Prints whether there
# was a warning, and whether the gradients are those of the reference. The interpreter reads a kernel's source again.
SCRIPT = """
import json, linecache, sys, warnings
from pathlib import Path
import torch
from qacg_kernels.backends.triton import backward, forward, gates, launch, tiles
from qacg_kernels.operators import self_check
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

edited, old, new, options = json.loads(sys.argv[1])
for module in (tiles, gates, forward, backward, launch):
    text = Path(module.__file__).read_text()
    if module.__name__.endswith(edited):
        assert old in text, f"expected the text {old!r}"
        text = text.replace(old, new)
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
self_check.forget()
inputs = make_inputs(Case("a", **dict(batch=2, heads=1, queries=20, head_dim=16) | options), torch.float32)
expected = evaluate(inputs, through_backend("reference"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    got = evaluate(inputs, through_backend("triton"))
warned = any("backend 'triton' fails" in str(warning.message) for warning in caught)
equal = all(torch.equal(got[name], t) for name, t in expected.items() if name.startswith("grad"))
print(json.dumps([warned, equal, self_check.summary(torch.device("cpu"))]))
"""
LONG = dict(batch=1, queries=140)
EDITS = {
    "causal ignores key_lengths": (
        "tiles",
        "visible &= j <= i",
        "visible = (i < place.queries) & (j <= i)",
        dict(is_causal=True, key_lengths=(7, 20)),
    ),
    "gradients of dropped entries": (
        "backward",
        "da = tl.where(keep, call.factors.keep * da, 0.0)",
        "da = call.factors.keep * da",
        dict(dropout_p=0.3),
    ),
}


def result_of(*edit):
    variables = dict(TRITON_INTERPRET="1", QACG_SELF_CHECK="first")
    return json.loads(run_python("-c", SCRIPT, json.dumps(edit), **variables).stdout)


@pytest.mark.parametrize("options", [dict(gate="shared", mask="additive", dropout_p=0.1), LONG], ids=str)
def test_unchanged_kernels_print_no_warning(options):
    warned, _, summary = result_of("tiles", "visible", "visible", options)
    assert not warned
    assert summary.endswith(" 0 failed")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edit_is_detected_and_falls_back(edit):
    assert result_of(*edit)[:2] == [True, True]
