"""BertSum's attention against its formulas: masks, caches, the graph, the unmerged heads, and bad input."""

import pytest
import torch
from errors import error_cases, raises
from oracle import bertsum as oracle
from parity import check_outputs_and_gradients, double_leaves, random, strengthen
from qacg_models import MultiHeadedAttention, empty_layer_cache
from torch.nn.attention.bias import causal_upper_left

B, L, S, H, D = 2, 5, 7, 3, 4
MODEL = H * D
MASK_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32)


def attention(use_final_linear=True, dtype=torch.float32, heads=H, dropout=0.1, **options):
    return strengthen(MultiHeadedAttention(heads, heads * D, dropout, use_final_linear, **options)).eval().to(dtype)


def tensors(dtype=torch.float32):
    sizes = {"key": S, "value": S, "query": L}
    return {name: random(B, n, MODEL, seed=i, dtype=dtype) for i, (name, n) in enumerate(sizes.items())}


def hidden(keys=S):
    """Returns a random mask with a query that sees one key, one that sees no key, and a padded second sequence."""
    mask = random(B, L, keys, seed=9) > 0.3
    mask[0, 1, 1:], mask[0, 1, 0] = True, False
    mask[0, 2] = True
    mask[1, :, 5:] = True
    return mask


def graph():
    g = (random(B, L, S, seed=11) > 0).float() * random(B, L, S, seed=12).abs()
    g[1, 3] = 0.0
    return g


def check_against(given, call, truth, **options):
    """Compares outputs and the gradients of every input and every used parameter with the formulas."""
    for dtype in (torch.float32, torch.float64):
        module = attention(dtype=dtype, **options)
        mine = {name: t.clone().to(dtype).requires_grad_() for name, t in given.items()}
        inputs = {name: t.clone().double().requires_grad_() for name, t in given.items()}
        leaves = double_leaves(module)
        exact = truth(leaves, inputs)
        unread = [name for name, leaf in leaves.items() if not _is_reached(exact["out"], leaf)]
        check_outputs_and_gradients(module, call(module, mine), leaves, exact, unused=unread, roundings=200)
        for name, t in mine.items():
            expected = inputs[name].grad
            torch.testing.assert_close(
                t.grad.double(), expected, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-11
            )


def _is_reached(out, leaf):
    return torch.autograd.grad(out.sum(), leaf, retain_graph=True, allow_unused=True)[0] is not None


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("with_graph", [True, False])
@pytest.mark.parametrize("blind", ["zeros", "average", None])
def test_attention_and_gradients_match_the_formulas(blind, with_graph, final):
    """With `blind` None, no key is hidden."""
    g, mask = graph() if with_graph else None, hidden() if blind else None

    def call(module, given):
        options = {"mask": mask, "predefined_graph_1": g}
        out = module(**given, **options)
        assert out.shape == ((B, L, MODEL) if final else (B, H, L, D))
        return {"out": out}

    def truth(leaves, given):
        softmax = oracle.row_as_published if blind == "average" else oracle.row_without_hidden_keys
        seen = torch.zeros(B, L, S, dtype=torch.bool) if mask is None else mask
        options = {"graph": None if g is None else g.double(), "softmax": softmax}
        found = oracle.multi_headed_attention(leaves, **given, hidden=seen, heads=H, **options)
        return {"out": found["out" if final else "heads"]}

    check_against(tensors(), call, truth, use_final_linear=final, blind_queries=blind or "zeros")


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_attention_mask_of_any_dtype_hides_nonzero(dtype):
    module, given = attention(), tensors()
    leaves = double_leaves(module)
    expected = oracle.multi_headed_attention(leaves, **_double(given), hidden=hidden(), heads=H, graph=graph().double())
    out = module(**given, mask=hidden().to(dtype), predefined_graph_1=graph())
    check_outputs_and_gradients(module, {"out": out}, leaves, {"out": expected["out"]}, roundings=200)
    padding = hidden()[:, 4:5]
    one_row = module(**given, mask=padding.to(dtype))
    torch.testing.assert_close(one_row, module(**given, mask=padding.expand(B, L, S)))


def test_attention_graph_of_a_single_head():
    single, given = strengthen(MultiHeadedAttention(1, MODEL)).eval(), tensors()
    leaves, nothing = double_leaves(single), torch.zeros(B, L, S, dtype=torch.bool)
    exact = oracle.multi_headed_attention(leaves, **_double(given), hidden=nothing, heads=1, graph=graph().double())
    out = single(**given, predefined_graph_1=graph())
    check_outputs_and_gradients(single, {"out": out}, leaves, {"out": exact["out"]}, roundings=200)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_empty_graph_row_is_zero_in_half_precision(dtype):
    module, given = attention(use_final_linear=False, dtype=dtype), tensors(dtype)
    out = module(**given, mask=hidden(), predefined_graph_1=graph().bool())
    assert out.dtype == dtype
    assert bool(out.isfinite().all())
    assert not out[1, -1, 3].any()


def test_self_cache_appends_over_time():
    module, cache = attention(), empty_layer_cache()
    steps = [random(B, n, MODEL, seed=20 + i) for i, n in enumerate((2, 1, 3))]
    first, *_ = (module(None, None, x, layer_cache=cache, type="self") for x in steps)
    assert cache["self_keys"].shape == (B, H, 6, D) and cache["memory_keys"] is None
    # Keys and values beside the query are not read, as published.
    other = random(B, S, MODEL)
    torch.testing.assert_close(module(other, other, steps[0], layer_cache={}, type="self"), first)


def test_context_cache_projects_the_memory_once():
    module, given, cache = attention(), tensors(), empty_layer_cache()
    calls = []
    module.linear_keys.register_forward_hook(lambda *_: calls.append(1))
    first = module(**given, mask=hidden(), layer_cache=cache, type="context")
    torch.testing.assert_close(first, module(**given, mask=hidden()))
    del calls[:]
    query = random(B, 2, MODEL, seed=40)
    second = module(None, None, query, layer_cache=cache, type="context")
    assert not calls and cache["self_keys"] is None
    torch.testing.assert_close(second, module(given["key"], given["value"], query))


def test_caches_pass_gradients():
    """Gradients of every parameter and input through two steps of self-attention and two reads of one memory."""
    module = attention()
    steps = [random(B, n, MODEL, seed=20 + n).requires_grad_() for n in (2, 1)]
    memory = random(B, S, MODEL, seed=50).requires_grad_()
    cache = empty_layer_cache()
    outputs = {}
    for i, x in enumerate(steps):
        outputs[f"self {i}"] = module(None, None, x, layer_cache=cache, type="self")
        outputs[f"context {i}"] = module(memory, memory, x, layer_cache=cache, type="context")
    leaves = double_leaves(module)
    inputs = [x.detach().double().requires_grad_() for x in (*steps, memory)]
    exact, past = {}, (torch.zeros(B, H, 0, D, dtype=torch.float64),) * 2
    for i, x in enumerate(inputs[:2]):
        nothing = torch.zeros(B, x.shape[1], past[0].shape[2] + x.shape[1], dtype=torch.bool)
        found = oracle.multi_headed_attention(leaves, None, None, x, nothing, heads=H, past=past)
        past, exact[f"self {i}"] = (found["keys"], found["values"]), found["out"]
        nothing = torch.zeros(B, x.shape[1], S, dtype=torch.bool)
        found = oracle.multi_headed_attention(leaves, inputs[2], inputs[2], x, nothing, heads=H)
        exact[f"context {i}"] = found["out"]
    check_outputs_and_gradients(module, outputs, leaves, exact, roundings=200)
    for mine, expected in zip((*steps, memory), inputs):
        torch.testing.assert_close(mine.grad.double(), expected.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_attention_dropout_keeps_the_mean():
    module, given = attention(dropout=0.4), tensors() | {"predefined_graph_1": graph()}
    torch.manual_seed(0)
    with torch.no_grad():
        whole = module(**given)
        draws = torch.stack([module.train()(**given) for _ in range(500)])
    deviation = draws.std(0)
    assert bool((deviation > 0).all())
    assert bool(((draws.mean(0) - whole).abs() < 5 * deviation / 500**0.5).all())


def test_attention_parameter_names_are_published():
    names = {f"linear_{n}.{kind}" for n in ("keys", "values", "query") for kind in ("weight", "bias")}
    assert set(attention(use_final_linear=False).state_dict()) == names
    assert set(attention().state_dict()) == names | {"final_linear.weight", "final_linear.bias"}


@pytest.mark.compiles
@pytest.mark.full
def test_attention_compiles_without_graph_breaks():
    module, given = attention(), tensors()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    extra = {"mask": hidden(), "predefined_graph_1": graph()}
    torch.testing.assert_close(compiled(**given, **extra), module(**given, **extra))
    averaging = attention(blind_queries="average")
    torch.testing.assert_close(
        torch.compile(averaging, fullgraph=True, backend="aot_eager")(**given, **extra), averaging(**given, **extra)
    )
    caches = empty_layer_cache(), empty_layer_cache()
    for _ in range(2):
        ours, theirs = (
            m(None, None, given["query"], layer_cache=c, type="self") for m, c in zip((module, compiled), caches)
        )
        torch.testing.assert_close(theirs, ours)


def _double(given):
    return {name: t.double() for name, t in given.items()}


def _cache(**entries):
    return empty_layer_cache() | entries


GOOD = torch.zeros(B, H, 4, D)


@error_cases(
    {
        "ValueError: query: expected shape (B, length, 12), got shape (2, 5, 13)": {
            "query": torch.zeros(B, L, MODEL + 1)
        },
        "ValueError: mask: expected shape (B, L, T) = (2, 5, 7)": {"mask": torch.zeros(B, L, 3)},
        "TypeError: mask: expected a tensor whose memory has its values, got CausalBias": {
            "mask": causal_upper_left(L, S)
        },
        "TypeError: layer_cache: expected a dictionary or None, got list. Use empty_layer_cache().": {
            "layer_cache": [],
            "type": "self",
        },
        "ValueError: type: expected 'self', 'context' or None, got 'memory'": {"type": "memory"},
        "ValueError: type: expected 'self' or 'context' with a layer_cache, got None": {"layer_cache": _cache()},
        "ValueError: layer_cache['self_keys']: expected shape (2, 3, T, 4), got shape (1, 3, 4, 4)": {
            "layer_cache": _cache(self_keys=GOOD[:1], self_values=GOOD[:1]),
            "type": "self",
        },
        "ValueError: layer_cache['memory_keys']: expected 7 keys as in `key`, got 4. Create a new cache": {
            "layer_cache": _cache(memory_keys=GOOD, memory_values=GOOD),
            "type": "context",
        },
    },
)
def test_attention_bad_input_raises(error, given):
    with raises(error):
        attention()(**{**tensors(), **given})


def test_attention_bad_size_raises():
    with raises("ValueError: model_dim: expected a positive multiple of head_count = 2, got 0"):
        MultiHeadedAttention(2, 0)


def test_attention_dropout_of_one_has_zero_gradients():
    module = MultiHeadedAttention(H, MODEL, dropout=1.0, use_final_linear=False).train()
    x = torch.ones(B, L, MODEL, requires_grad=True)
    out = module(x, x, x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(x.grad, torch.zeros_like(x))
