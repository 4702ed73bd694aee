"""Runs Triton kernels with a mistake in their source, in Triton's interpreter: the self-check must detect each.

`python tests/support/edited_triton.py` prints one JSON object: whether the unchanged sources pass the self-check; and
for each edit, whether a warning was given, and whether the caller received the reference's gradients and the right
output.
"""

import json
import linecache
import os
import sys
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ["QACG_SELF_CHECK"] = "first"

import torch

from qacg_kernels.backends.triton import backward, forward, gates, launch, tiles
from qacg_kernels.operators import self_check
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

MODULES = {"tiles": tiles, "gates": gates, "forward": forward, "backward": backward, "launch": launch}
SOURCES = {name: Path(module.__file__).read_text() for name, module in MODULES.items()}
SHORT = dict(batch=2, heads=1, queries=20, head_dim=16)
LONG = dict(batch=1, heads=1, queries=140, head_dim=16)
# By name of the edit: module, text, its replacement, and a call whose result the edit changes.
EDITS = {
    "causal ignores key_lengths": (
        "tiles",
        "visible &= j <= i",
        "visible = (i < place.queries) & (j <= i)",
        Case("a", is_causal=True, key_lengths=(7, 20), **SHORT),
    ),
    "softmax without its maximum": (
        "forward",
        "row_max = tl.max(scores, 1) * factor",
        "row_max = tl.max(scores, 1) * 0.0",
        Case("a", score_size=100.0, **SHORT),
    ),
    "sums of a row are not rescaled": (
        "forward",
        "row_sum = row_sum * rescale + ",
        "row_sum = row_sum + ",
        Case("a", **LONG),
    ),
    "outputs are not rescaled": ("forward", "o1 * rescale[:, None]", "o1", Case("a", **LONG)),
    "dropout of other entries": (
        "forward",
        "dropout_keeps(call, place, rows, 0, BLOCK_N, False)",
        "dropout_keeps(call, place, rows, 128, BLOCK_N, False)",
        Case("a", dropout_p=0.3, **SHORT),
    ),
    "additive mask for one map": (
        "tiles",
        "context_scores += bias * LOG2E",
        "context_scores += 0.0",
        Case("a", mask="additive", **SHORT),
    ),
    "bias in other units": (
        "tiles",
        "load_rows(call.quasi_bias, place, rows, present) * LOG2E",
        "load_rows(call.quasi_bias, place, rows, present)",
        Case("a", quasi_bias="per_query", **SHORT),
    ),
    "bias of a long row is lost": (
        "backward",
        "quasi_bias = load_quasi_bias(rows, present, place, call)",
        "quasi_bias = 0.0 * load_quasi_bias(rows, present, place, call)",
        Case("a", quasi_bias="per_query", **LONG),
    ),
    "column gate without gamma": (
        "forward",
        "call.factors.quasi * call.gate.gamma * lk[None, :]",
        "call.factors.quasi * lk[None, :]",
        Case("a", gate="shared", form="column", gamma=0.5, **SHORT),
    ),
    "branch output that is saved": (
        "forward",
        "plain_o2 if config.column_gate else o2, call, config)",
        "plain_o2 if config.column_gate else 2.0 * o2, call, config)",
        Case("a", **LONG),
    ),
    "delta without P": ("backward", "delta = tl.sum(da * p, 0)", "delta = tl.sum(da, 0)", Case("a", **SHORT)),
    "key gate's share is lost": (
        "backward",
        "own_key_logit[None, :], 0.0), 1)",
        "0.0 * own_key_logit[None, :], 0.0), 1)",
        Case("a", gate="shared", **SHORT),
    ),
    "gradients of dropped entries": (
        "backward",
        "da = tl.where(keep, call.factors.keep * da, 0.0)",
        "da = call.factors.keep * da",
        Case("a", dropout_p=0.3, **SHORT),
    ),
    "gate sums of 32 slices": (
        "gates",
        "tl.where(is_idle, 0, sequences * heads * count)",
        "tl.where(is_idle, 0, tl.minimum(sequences * heads * count, 32))",
        Case("a", batch=3, heads=12, queries=3, head_dim=16, gate="shared"),
    ),
    "scale of a long row's gradient": ("backward", "dcq *= call.factors.scale", "dcq *= 1.0", Case("a", **LONG)),
    "packed sequences begin one token late": (
        "tiles",
        "first = _integer(call.cu_seqlens, sequence, call.sizes.tokens)",
        "first = _integer(call.cu_seqlens, sequence, call.sizes.tokens) + 1",
        Case("a", heads=1, sequences=(5, 9), head_dim=16),
    ),
}


def load(edited: str, old: str, new: str) -> None:
    """Executes the sources of all kernel modules, one of them with a text replaced."""
    for name, module in MODULES.items():
        text = SOURCES[name]
        if name == edited:
            assert old in text, f"{edited}.py: expected the text {old!r}, got a source without it"
            text = text.replace(old, new)
        file = f"<{name} with an edit of {edited}: {new}>"
        # The interpreter reads a kernel's source again.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), module.__dict__)
    launch._plans.clear()
    self_check.forget()


def results_with(edit: tuple[str, str, str, Case]) -> dict[str, bool]:
    *change, case = edit
    load(*change)
    inputs = make_inputs(case, torch.float32)
    expected = evaluate(inputs, through_backend("reference"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad():  # inference runs other kernels
            through_backend("triton")(inputs, inputs.tensors)
        got = evaluate(inputs, through_backend("triton"))
    names = [name for name in expected if name.startswith("grad")]
    return {
        "warning": sum("backend 'triton' fails" in str(warning.message) for warning in caught) >= 1,
        "reference's gradients": all(torch.equal(got[name], expected[name]) for name in names),
        "right output": torch.allclose(got["out"], expected["out"], rtol=1e-4, atol=1e-5),
    }


def unchanged() -> bool:
    """Whether the unchanged sources pass the self-check for every call."""
    load("tiles", "visible", "visible")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of NumPy
        for *_, case in EDITS.values():
            evaluate(make_inputs(case, torch.float32), through_backend("triton"))
    return " 0 failed" in (self_check.summary(torch.device("cpu")) or "")


if __name__ == "__main__":
    results = {"unchanged": unchanged()} | {name: results_with(edit) for name, edit in EDITS.items()}
    print(json.dumps(results))
    sys.exit(0)
