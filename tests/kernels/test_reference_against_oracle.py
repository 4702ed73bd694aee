"""The reference, the eager formulation and the maps in float64 equal the row-by-row oracle."""

import pytest
import torch
from cases import LAYOUT_CASES, SMALL
from full_members import member
from oracle.quasi_attention import kept, philox, quasi_attention

import qacg_kernels as qk
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

# Sums of a few hundred terms of size one in another order differ by a few hundred times eps.
TOLERANCE = 1e-12


def _oracle_call(case, tensors, options, first_sequence=0):
    keep = None
    if case.dropout_p > 0:
        sizes = (*tensors["query"].shape[:3], tensors["key"].shape[2])
        keep = kept(int(options["dropout_seed"]), case.dropout_p, sizes, first_sequence)
    gates = {"lam": tensors.get("lambda")}
    if case.gate != "lambda":
        names = ("query", "context_query", "key", "context_key")
        gates = {
            "vectors": tuple(tensors[f"gate.{n}"] for n in names),
            "biases": tuple(tensors.get(f"gate.{n}_bias") for n in names),
            "beta": case.beta,
            "gamma": case.gamma,
            "column": case.form == "column",
        }
    lengths = options.get("key_lengths")
    return quasi_attention(
        *(tensors[n] for n in ("query", "key", "value", "context_query", "context_key")),
        **gates,
        mask=options.get("attn_mask"),
        key_lengths=None if lengths is None else lengths.tolist(),
        causal=case.is_causal,
        scale=case.scale,
        alpha=case.quasi_scale,
        bias=options.get("quasi_bias"),
        keep=keep,
        dropout_p=case.dropout_p,
    )


def through_oracle(inputs, tensors):
    case = inputs.case
    if case.sequences is None:
        result = _oracle_call(case, tensors, inputs.options)
        return result.out, _row_lambda(case, tensors, result)
    outs, lams, start = [], [], 0
    for index, length in enumerate(case.sequences):
        stop = start + length
        part = {
            name: t if name.startswith("gate.") else t[start:stop].transpose(0, 1).unsqueeze(0)
            for name, t in tensors.items()
        }
        options = dict(inputs.options)
        bias = options.get("quasi_bias")
        if bias is not None:
            options["quasi_bias"] = bias.expand(sum(case.sequences), case.heads)[start:stop].T
        result = _oracle_call(case, part, options, first_sequence=index)
        outs.append(result.out[0].transpose(0, 1))
        if case.returns_lambda:
            lams.append(_row_lambda(case, part, result)[0].transpose(0, 1))
        start = stop
    return torch.cat(outs), torch.cat(lams) if lams else None


def _row_lambda(case, x, result):
    """lambda (B, H, L) from the formula; the oracle's map has none for a row without visible keys."""
    if not case.returns_lambda:
        return None

    def gate(side):
        logit = 0.0
        for name in (side, f"context_{side}"):
            vector = x[f"gate.{name}"]
            logit = logit + torch.einsum("bhld,hd->bhl", x[name], vector.expand(case.heads, -1))
            bias = x.get(f"gate.{name}_bias")
            logit = logit if bias is None else logit + bias.reshape(-1, 1)
        return torch.sigmoid(logit)

    return 1 - (case.beta * gate("query") + case.gamma * gate("key"))


def through_maps(inputs, tensors):
    """The maps are plain PyTorch, differentiated by autograd."""
    attention, _, _, lam = qk.attention_maps(*inputs.arguments(tensors), **inputs.options)
    return attention @ tensors["value"], lam if inputs.case.returns_lambda else None


FORMULATIONS = {"reference": through_backend("reference"), "maps": through_maps}


# The default run has every case in one of the two formulations, which alternate.
@pytest.mark.parametrize(
    ("case", "attend"),
    [
        member(case, attend, id=f"{case.name}-{formulation}", fast=n % len(FORMULATIONS) == w)
        for n, case in enumerate(SMALL + LAYOUT_CASES)
        for w, (formulation, attend) in enumerate(FORMULATIONS.items())
    ],
)
def test_output_lambda_and_gradients_equal_the_oracle(case, attend):
    if attend is through_maps and case.sequences is not None:
        pytest.skip("attention_maps supports dense calls only")
    inputs = make_inputs(case, torch.float64)
    expected = evaluate(inputs, through_oracle)
    got = evaluate(inputs, attend)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("rows", [None, [0, 3, 3, 16], []], ids=["all rows", "some rows", "no rows"])
@pytest.mark.parametrize(
    "case",
    [
        Case("maps, shared gate", gate="one_row", bias="shared", context_bias="one_row", mask="boolean_empty_rows"),
        Case("maps, lambda, dropout", dropout_p=0.3, mask="additive", quasi_scale=0.5),
        Case("maps, column gate, dropout", keys=23, gate="per_head", form="column", dropout_p=0.2, is_causal=True),
        Case("maps, lengths", key_lengths=(0, 11), gate="shared"),
    ],
    ids=lambda case: case.name,
)
def test_attention_maps_equal_the_oracle(case, rows):
    inputs = make_inputs(case, torch.float64)
    result = _oracle_call(case, inputs.tensors, inputs.options)
    attention, softmax, gated, lam = qk.attention_maps(*inputs.arguments(), **inputs.options, rows=rows)
    selected = slice(None) if rows is None else torch.tensor(rows, dtype=torch.int64)
    got = {"attention": attention, "softmax": softmax, "gated": gated}
    expected = {name: getattr(result, name)[:, :, selected] for name in got}
    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if case.form == "row":
        expected = _row_lambda(case, inputs.tensors, result) if case.gate != "lambda" else inputs.tensors["lambda"]
        torch.testing.assert_close(lam, expected[:, :, selected], rtol=TOLERANCE, atol=TOLERANCE)
    else:
        seen = result.softmax[:, :, selected] > 0
        torch.testing.assert_close(lam[seen], result.gate[:, :, selected][seen], rtol=TOLERANCE, atol=TOLERANCE)


def test_philox_gives_the_known_answers():
    # The three vectors for seven rounds published with Random123.
    ones = 2**32 - 1
    assert philox((0,) * 4, (0, 0), 7) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
    assert philox((ones,) * 4, (ones, ones), 7) == (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(pi, (0xA4093822, 0x299F31D0), 7) == (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**62 - 1, 2**63 - 1])
def test_keep_mask_equals_the_oracle(seed):
    sizes = (2, 3, 5, 300)
    got = qk.keep_mask(torch.tensor(seed), 0.37, *sizes)
    assert torch.equal(got, kept(seed, 0.37, sizes))
    later = qk.keep_mask(torch.tensor(seed), 0.37, 1, *sizes[1:], first_sequence=1)
    assert torch.equal(later, got[1:])
    rows = torch.tensor([4, 0, 4])
    assert torch.equal(qk.keep_mask(torch.tensor(seed), 0.37, *sizes, rows=rows), got[:, :, rows])
