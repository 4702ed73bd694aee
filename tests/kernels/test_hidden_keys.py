"""An additive mask hides a key at or below half the lowest number of its dtype (MATH.md, eq. 1), in all functions."""

import pytest
import torch
from judging import compare, judges_of

import qacg_kernels as qk
from qacg_kernels.call.problem import HIDING, cast_mask
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def edge_of(dtype):
    """The largest number of a dtype that hides a key, and the smallest that does not."""
    hiding = torch.tensor(HIDING[dtype], dtype=dtype)
    assert hiding.item() == HIDING[dtype], "the bound must be a number of the dtype"
    return hiding.item(), torch.nextafter(hiding, torch.zeros((), dtype=dtype)).item()


def numbers_that_hide(dtype):
    return -torch.inf, torch.finfo(dtype).min, edge_of(dtype)[0]


def mask_of(shape, value, hidden, dtype):
    return torch.zeros(shape, dtype=dtype).masked_fill(hidden, value)


@pytest.mark.parametrize("keys", [17, 600])
def test_hiding_value_equals_a_boolean_mask(keys, backend, dtype, device):
    inputs = make_inputs(Case("hides", queries=5, keys=keys), dtype, device)
    hidden = torch.zeros(2, 1, 5, keys, dtype=torch.bool, device=device)
    hidden[..., 3] = hidden[:, :, 2] = True
    inputs.options["attn_mask"] = ~hidden
    expected = evaluate(inputs, through_backend(backend))
    assert expected["out"][:, :, 2].eq(0).all()
    for value in numbers_that_hide(dtype):
        inputs.options["attn_mask"] = mask_of(hidden.shape, value, hidden.cpu(), dtype).to(device)
        for name, t in evaluate(inputs, through_backend(backend)).items():
            # Boolean and additive masks may round a score differently.
            torch.testing.assert_close(t, expected[name], msg=lambda m, n=name, v=value: f"{n}, {v}: {m}")
            assert torch.equal(t == 0, expected[name] == 0), f"{name}, {value}"


@pytest.mark.parametrize("keys", [17, 600])
def test_hidden_nan_score_does_not_reach_the_output(keys, backend, dtype, device):
    inputs = make_inputs(Case("hides NaN", queries=5, keys=keys), dtype, device)
    inputs.tensors["key"][:, :, 3] = inputs.tensors["context_key"][:, :, 3] = torch.nan
    for value in numbers_that_hide(dtype):
        mask = torch.zeros(keys, dtype=dtype, device=device)
        mask[3] = value
        assert qk.quasi_attention(*inputs.arguments(), attn_mask=mask, backend=backend).isfinite().all()


@pytest.mark.parametrize("keys", [17, 600])
def test_value_above_the_bound_is_added_to_the_scores(keys, backend, dtype, device):
    """The same large negative summand for all keys of a row leaves the softmax unchanged and makes the sigmoid 0."""
    inputs = make_inputs(Case("summands", queries=5, keys=keys), dtype, device)
    inputs.options["attn_mask"] = torch.full((1, 1, 1, keys), edge_of(dtype)[1], dtype=dtype, device=device)
    out = evaluate(inputs, through_backend(backend))["out"]
    # Except in float16, such a summand absorbs scores of ordinary size.
    if dtype != torch.float16:
        value = inputs.tensors["value"].double()
        expected = value.mean(2, keepdim=True).expand(out.shape)
        assert float((out.double() - expected).abs().max()) <= 4 * torch.finfo(dtype).eps * float(value.abs().max())
    assert not out.eq(0).all(-1).any()


def check_bias_without_numbers(keys, backend, dtype):
    """A bias of infinity shows no hidden key, and that of a query without keys is ignored, in all results."""
    inputs = make_inputs(Case("biased", queries=5, keys=keys), dtype)
    hidden = torch.zeros(2, 1, 5, keys, dtype=torch.bool)
    hidden[..., 3] = hidden[:, :, 2] = True
    inputs.options["attn_mask"] = ~hidden
    inputs.options["quasi_bias"] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0, -1.0])
    results = evaluate(inputs, through_backend(backend))
    assert all(t.isfinite().all() for t in results.values())
    assert results["out"][:, :, 2].eq(0).all()


KEY_MASKS = [(kind, lead) for kind in ("boolean", "additive") for lead in ((2, 1, 1), (2, 2, 1), (1, 1, 1))]


def check_key_mask(kind, lead, keys, tile, head_dim, backend, dtype):
    """A mask of shape (*lead, keys), the same for all queries, meets the error rule, forward and backward.

    The first tile is visible, the second mixed, the third hidden, the last mixed and not full. If there are several
    masks, the last one hides all keys.
    """
    case = Case(f"key mask {kind} {lead}", heads=2, queries=70, keys=keys, head_dim=head_dim)
    inputs = make_inputs(case, dtype)
    generator = torch.Generator().manual_seed(keys)
    values = torch.randn(*lead, keys, generator=generator)
    hidden = torch.rand(*lead, keys, generator=generator) < 0.2
    values[..., :tile] = 0.0
    hidden[..., :tile] = False
    hidden[..., 2 * tile : 3 * tile] = True
    hidden.view(-1, keys)[1:][-1:] = True
    mask = ~hidden if kind == "boolean" else values.masked_fill(hidden, -torch.inf).to(dtype)
    inputs.options["attn_mask"] = mask
    judges = judges_of(inputs)
    compare(evaluate(inputs, through_backend(backend)), judges, case.name)
    with torch.no_grad():
        out, _ = through_backend(backend)(inputs, inputs.tensors)
    compare({"out": out}, judges, f"{case.name}, no grad")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_row_with_all_keys_hidden_is_zero_everywhere(dtype):
    inputs = make_inputs(Case("hidden throughout", queries=5, keys=9), dtype)
    for value in numbers_that_hide(dtype):
        mask = torch.zeros(5, 9, dtype=dtype)
        mask[1] = value
        arguments = inputs.arguments()
        for backend in ("auto", "reference"):
            assert qk.quasi_attention(*arguments, attn_mask=mask, backend=backend)[:, :, 1].eq(0).all()
        for shown in qk.attention_maps(*arguments, attn_mask=mask)[:3]:
            assert shown[:, :, 1].eq(0).all()
            assert shown[:, :, 0].ne(0).all()


@pytest.mark.parametrize("made_in", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mask_cast_to_another_dtype_hides_the_same_keys(made_in, dtype):
    """Under autocast the dtype of the scores is not that of the mask."""
    numbers = [0.0, -10000.0, HIDING[made_in] / 2, *numbers_that_hide(made_in)]
    seen = cast_mask(torch.tensor(numbers, dtype=made_in), dtype) > HIDING[dtype]
    # Half a bound of the wide dtypes is beyond the range of float16.
    fits = made_in == torch.float16 or dtype != torch.float16
    assert seen.tolist() == [True, True, fits, False, False, False]


def test_module_hides_by_the_dtype_of_the_mask():
    """The lowest number of float16 is an ordinary one in float32."""
    module = qk.FusedQuasiAttention(16, 2, dropout=0.0).eval()
    x, c = torch.randn(2, 1, 5, 16).unbind(0)
    mask = torch.zeros(1, 1, 5, 5, dtype=torch.float16)
    mask[:, :, 2] = torch.finfo(torch.float16).min
    out, *maps, _ = module(x, mask, None, c, output_attentions=True)
    assert out[:, 2].eq(0).all()
    assert out[:, 1].ne(0).any()
    assert all(m[:, :, 2].eq(0).all() for m in maps)
