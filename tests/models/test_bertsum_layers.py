"""BertSum's transformer over sentences against its formulas."""

import math

import pytest
import torch
from errors import error_cases, raises
from oracle import bertsum as oracle
from parity import check_outputs_and_gradients, double_leaves, random, strengthen
from qacg_models import (
    PositionalEncoding,
    PositionwiseFeedForward,
    TransformerEncoderLayer,
    TransformerInterEncoder,
)

B, S, MODEL, HEADS, WIDE = 3, 6, 8, 2, 14
FIRST_NORM = ("transformer_inter.0.layer_norm.weight", "transformer_inter.0.layer_norm.bias")
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
MASK_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32)


def inter_encoder(layers=2, dtype=torch.float32, dropout=0.1):
    return strengthen(TransformerInterEncoder(MODEL, WIDE, HEADS, dropout, layers)).eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_inter_encoder_and_gradients_match_the_formulas(layers, dtype):
    module, x = inter_encoder(layers), random(B, S, MODEL)
    module.to(dtype).pos_emb.reset_table()
    scores, logits = module(x.to(dtype), MASK), module.logits(x.to(dtype), MASK)
    leaves = double_leaves(module)
    exact = oracle.inter_encoder(leaves, x.double(), MASK.bool(), heads=HEADS, layers=layers)
    real = MASK.bool()
    check_outputs_and_gradients(
        module,
        {"scores": scores, "logits": logits[real]},
        leaves,
        {"scores": exact["scores"], "logits": exact["logits"][real]},
        unused=FIRST_NORM if layers else (),
        roundings=400,
    )
    assert not scores[~real].any()


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_inter_encoder_accepts_masks_of_any_dtype(dtype):
    module, x = inter_encoder(), random(B, S, MODEL)
    expected = oracle.inter_encoder(double_leaves(module), x.double(), MASK.bool(), heads=HEADS, layers=2)["scores"]
    torch.testing.assert_close(module(x, MASK.to(dtype)).double(), expected, rtol=1e-4, atol=1e-5)
    layer = strengthen(TransformerEncoderLayer(MODEL, HEADS, WIDE, 0.0)).eval()
    hidden = ~MASK.bool()
    exact = torch.stack(
        [oracle.encoder_layer(double_leaves(layer), 1, d, m.bool(), heads=HEADS) for d, m in zip(x.double(), MASK)]
    )
    torch.testing.assert_close(layer(1, x, x, hidden.to(dtype)).double(), exact, rtol=1e-4, atol=1e-4)


def test_inter_encoder_ignores_nan_padding():
    module, x = inter_encoder(), random(B, S, MODEL)
    padded = x.masked_fill(~MASK.bool().unsqueeze(-1), float("nan"))
    scores = module(padded, MASK)
    torch.testing.assert_close(scores, module(x, MASK))
    for row, length in enumerate(MASK.sum(1).tolist()):
        alone = module(x[row : row + 1, :length], MASK[row : row + 1, :length])
        torch.testing.assert_close(alone[0], scores[row, :length])


def test_inter_encoder_empty_document_scores_zero():
    module, x = inter_encoder(), random(B, S, MODEL).requires_grad_()
    scores = module(x, torch.zeros(B, S))
    assert not scores.any()
    scores.sum().backward()
    assert bool(x.grad.isfinite().all())


def test_inter_encoder_empty_document_can_average():
    module = strengthen(TransformerInterEncoder(MODEL, WIDE, HEADS, 0.1, 2, blind_queries="average")).eval()
    module.pos_emb.reset_table()
    x, mask = random(B, S, MODEL), MASK.clone()
    mask[1] = 0
    logits, scores = module.logits(x, mask), module(x, mask)
    leaves = double_leaves(module)
    options = {"heads": HEADS, "layers": 2, "softmax": oracle.row_as_published}
    exact = oracle.inter_encoder(leaves, x.double(), mask.bool(), **options)
    assert not scores[1].any()
    expected = {name: exact[name] for name in ("scores", "logits")}
    outputs = {"scores": scores, "logits": logits}
    check_outputs_and_gradients(module, outputs, leaves, expected, unused=FIRST_NORM, roundings=400)


def test_feed_forward_and_gradients_match_the_formulas():
    module, x = strengthen(PositionwiseFeedForward(MODEL, WIDE)).eval(), random(B, S, MODEL)
    leaves = double_leaves(module)
    exact = oracle.feed_forward(leaves, x.double())
    check_outputs_and_gradients(module, {"out": module(x)}, leaves, {"out": exact})
    assert module.layer_norm.eps == 1e-6


@pytest.mark.parametrize("dim", [8, 7])
def test_positional_encoding_matches_the_formulas(dim):
    module = PositionalEncoding(0.0, dim, max_len=40)
    expected = torch.stack([oracle.position(i, dim) for i in range(40)])
    torch.testing.assert_close(module.pe[0].double(), expected, rtol=0, atol=1e-7)
    emb = random(2, 5, dim).requires_grad_()
    torch.testing.assert_close(module(emb).double(), emb.double() * math.sqrt(dim) + expected[:5], rtol=0, atol=1e-5)
    module(emb).sum().backward()
    torch.testing.assert_close(emb.grad, torch.full_like(emb, math.sqrt(dim)))
    for step in (0, 3):
        one = module(emb[:, :1], step=step)
        torch.testing.assert_close(
            one[:, 0].double(), emb[:, 0].double() * math.sqrt(dim) + expected[step], atol=1e-5, rtol=0
        )


def test_bertsum_layers_apply_dropout():
    positions = PositionalEncoding(0.5, 8, max_len=9)
    out = positions(torch.ones(40, 9, 8))
    assert 0.4 < float((out == 0).float().mean()) < 0.6
    module = PositionwiseFeedForward(MODEL, WIDE, dropout=0.5)
    x = random(200, MODEL)
    untouched = (module(x) == x).float().mean()
    assert 0.4 < float(untouched) < 0.6


def test_inter_encoder_parameter_names_are_published():
    attention = [f"self_attn.{n}" for n in ("linear_keys", "linear_values", "linear_query", "final_linear")]
    parts = [*attention, "feed_forward.w_1", "feed_forward.w_2", "feed_forward.layer_norm", "layer_norm"]
    modules = [f"transformer_inter.{i}.{part}" for i in (0, 1) for part in parts] + ["layer_norm", "wo"]
    expected = {f"{name}.{kind}" for name in modules for kind in ("weight", "bias")} | {"pos_emb.pe"}
    assert set(inter_encoder().state_dict()) == expected
    assert inter_encoder().pos_emb.pe.shape == (1, 5000, MODEL)


@error_cases(
    {
        "TypeError: top_vecs: expected a torch.Tensor, got list": lambda m, x: m([1], MASK),
        "ValueError: top_vecs: expected shape (B, S, 8), got shape (3, 6, 7)": lambda m, x: m(x[..., :-1], MASK),
        "ValueError: mask: expected 1 for sentences and 0 for padding": lambda m, x: m(x, MASK * 2),
        "ValueError: length: expected at most max_len = 5000 ..., got 5001": lambda m, x: m(
            x[:, :1].expand(-1, 5001, -1), torch.ones(3, 5001)
        ),
        "ValueError: query: expected None or the tensor `inputs`, got": lambda m, x: m.transformer_inter[1](
            1, x + 1, x, MASK
        ),
        "ValueError: emb: expected shape (B, L, 8), got shape (6, 8)": lambda m, x: m.pos_emb(x[0]),
    },
)
def test_inter_encoder_bad_input_raises(error, given):
    with raises(error):
        given(inter_encoder(), random(B, S, MODEL))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_inter_encoder_converts_narrower_vectors(dtype):
    module, x = inter_encoder(), random(B, S, MODEL).to(dtype)
    assert torch.equal(module(x, MASK), module(x.float(), MASK))


NAN = float("nan")


@error_cases(
    {
        "ValueError: model_dim: expected a positive multiple of head_count = 3, got 8": lambda: TransformerEncoderLayer(
            8, 3, 32, 0.1
        ),
        "ValueError: num_inter_layers: expected at least 0, got -1": lambda: TransformerInterEncoder(8, 32, 2, 0.1, -1),
        "ValueError: dropout probability has to be between 0 and 1, but got 2": lambda: TransformerInterEncoder(
            8, 32, 2, 2
        ),
        "ValueError: blind_queries: expected one of 'zeros', 'average', got 'x'": lambda: TransformerInterEncoder(
            8, 32, 2, 0, blind_queries="x"
        ),
    }
)
def test_bertsum_layers_bad_settings_raise(error, given):
    with raises(error):
        given()
