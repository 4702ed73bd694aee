"""The path of a context to the heads of an attention: the context layer, and the five projections after it.

`project` is the only place where a context enters a layer of CG-BERT and QACG-BERT. The context layer computes
c = W [E ; X] + b + E from the context embedding E and the hidden states X; W = [We | Wx] (qacg_kernels/MATH.md). The
context query is Uq c + uq, the sum of the token part Uq Wx X and the sequence part Uq (We E + b + E) + uq, which is the
same for all tokens; so is the context key. Query, key, value and the token parts do not depend on E. If several
sequences are the same text with different contexts, they are therefore computed once per text.

Folding Uq Wx into one matrix saves one product per token: `fold_context` folds once, for inference, `_project_apart`
within a call that has many tokens. The numbers of products with hidden x hidden matrices, for the context projection
"hidden", are 6 per token and 1 per sequence if the context layer is called, 6 and 3 with separate weights, 5 and 3 if
the call folds, and 5 and 2 after `fold_context`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qacg_kernels.attention_layers import CONTEXT_ROLES, ContextAttention, plain_parameters
from qacg_models.layers.batch import Packing, per_token

_OWN_ROLES = ("query", "key", "value")


class FirstHeads(NamedTuple):
    """The heads that the attention of the first token of each of N sequences requires.

    Attributes:
        first: query, key, value, context query and context key of the first tokens, (N, 1, H, D) each.
        key, value, context_key: of all tokens, padded to (N, max_seqlen, H, D); values at padding are finite.
    """

    first: tuple[Tensor, ...]
    key: Tensor
    value: Tensor
    context_key: Tensor


def project(
    attention: ContextAttention,
    context_layer: nn.Linear,
    hidden_states: Tensor,
    context_embedding: Tensor,
    mask: Packing | Tensor | None,
    text_rows: Tensor | None = None,
    *,
    fold: "ContextFold | None" = None,
    call_layers: bool = False,
    first_only: bool = False,
) -> "tuple[Tensor, ...] | FirstHeads":
    """Returns query, key, value, context query and context key of the sequences, (N, L, H, D) or packed (T, H, D).

    The arguments are those of `ContextBertLayer.forward`, and `attention`, which has the projections. `fold` is used in
    calls that record no gradients. With call_layers, the layers are called as modules, so that hooks see their outputs.
    With first_only, the result is `FirstHeads`, unless layers are called.
    """
    own, context = ([attention.layer(role) for role in roles] for roles in (_OWN_ROLES, CONTEXT_ROLES))
    apart = (
        attention.context_projection == "hidden"
        and not torch.compiler.is_compiling()  # such graphs are traced for any number of tokens
        and _plain(context_layer, *context)
    )
    if fold is not None and not call_layers and not torch.is_grad_enabled() and _plain(context_layer, *own, *context):
        tokens, sequences = fold(hidden_states, context_embedding)
    elif apart and not call_layers:
        tokens, sequences = _project_apart(attention, context_layer, hidden_states, context_embedding)
    else:
        if text_rows is not None:
            hidden_states = hidden_states.index_select(0, text_rows)
        mixed = mix_context(context_layer, context_embedding, hidden_states, mask)
        # `project` of the base class, since that of a subclass may apply dropout.
        return ContextAttention.project(attention, hidden_states, mixed)
    if first_only:
        return _first_heads(tokens, sequences, mask, text_rows)
    if text_rows is not None:
        tokens = tuple(x.index_select(0, text_rows) for x in tokens)
    # Not in place: in an exported graph, an addition in place would be a slow scatter.
    return *tokens[:3], *(x + per_token(part, x, mask) for x, part in zip(tokens[3:], sequences))


def _first_heads(
    tokens: tuple[Tensor, ...], sequences: tuple[Tensor, ...], packing: Packing, text_rows: Tensor | None
) -> FirstHeads:
    """Returns heads from the token parts of the texts and the sequence parts, which are gathered once each."""
    rows = torch.arange(len(tokens[0]), device=tokens[0].device) if text_rows is None else text_rows
    first_rows, key_rows = packing.first(rows), packing.pad(rows)
    own = [x.index_select(0, first_rows) for x in tokens]
    own[3:] = [x + part for x, part in zip(own[3:], sequences)]
    key, value, context_key = (
        tokens[place].index_select(0, key_rows.flatten()).unflatten(0, key_rows.shape) for place in (1, 2, 4)
    )
    return FirstHeads(tuple(x.unsqueeze(1) for x in own), key, value, context_key + sequences[1].unsqueeze(1))


def project_together(layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, ...]:
    """Returns the outputs of linear layers with the same input; in training mode by one product, to save operators.

    Layers that must be called (see `plain_parameters`) are called.
    """
    parameters = [plain_parameters(layer) for layer in layers]
    if torch.compiler.is_compiling() or not layers[0].training or any(one is None for one in parameters):
        return tuple(layer(x) for layer in layers)
    weights, biases = zip(*parameters)
    return F.linear(x, torch.cat(weights), torch.cat(biases)).chunk(len(layers), -1)


def mix_context(
    context_layer: nn.Linear, context_embedding: Tensor, hidden_states: Tensor, mask: Packing | Tensor | None
) -> Tensor:
    """Returns the context of each token, W [E ; X] + b + E, in the shape of X. E is multiplied once per sequence.

    A context layer that must be called (see `plain_parameters`) is called with [E ; X] of every token.
    """
    if (parameters := plain_parameters(context_layer)) is None:
        embedding = per_token(context_embedding, hidden_states, mask).expand_as(hidden_states)
        return context_layer(torch.cat((embedding, hidden_states), -1)) + embedding
    token_weight, per_sequence = _split(*parameters, context_embedding)
    tokens = F.linear(hidden_states, token_weight)
    return tokens + per_token(per_sequence, tokens, mask)


def _project_apart(
    attention: ContextAttention, context_layer: nn.Linear, hidden_states: Tensor, context_embedding: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns query, key, value and the token parts, and the sequence parts; differentiable.

    Folding adds two products of hidden x hidden matrices, which are as much work as 2 * hidden saved products.
    """
    token_weight, per_sequence = _split(context_layer.weight, context_layer.bias, context_embedding)
    layers = [attention.layer(role) for role in CONTEXT_ROLES]
    hidden_states = hidden_states.to(token_weight.dtype)  # with bfloat16 weights, one cast and not one per product
    tokens = project_together([attention.layer(role) for role in _OWN_ROLES], hidden_states)
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    if hidden_states.shape[:-1].numel() > 2 * hidden_states.shape[-1]:
        mixed = F.linear(hidden_states, weight @ token_weight)
    else:
        mixed = F.linear(F.linear(hidden_states, token_weight), weight)
    tokens += mixed.chunk(2, -1)
    sequences = F.linear(per_sequence, weight, bias).chunk(2, -1)
    heads = (attention.num_heads, -1)
    return tuple(x.unflatten(-1, heads) for x in tokens), tuple(x.unflatten(-1, heads) for x in sequences)


def _split(weight: Tensor, bias: Tensor, context_embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Wx of the context layer, and We E + b + E, (N, hidden)."""
    context_weight, token_weight = weight.chunk(2, 1)
    return token_weight, F.linear(context_embedding, context_weight, bias) + context_embedding


def _plain(*layers: nn.Module) -> bool:
    return all(plain_parameters(layer) is not None for layer in layers)


class ContextFold(nn.Module):
    """The folded weights of a context layer and of the projections after it, as non-persistent buffers."""

    def __init__(self, attention: Any, context_layer: nn.Linear):
        super().__init__()
        own, context = ([_foldable(role, attention.layer(role)) for role in r] for r in (_OWN_ROLES, CONTEXT_ROLES))
        mixing, mixing_bias = _foldable("context layer", context_layer)
        self.num_heads = attention.num_heads
        repeats = attention.num_heads if attention.context_projection == "head" else 1
        with torch.no_grad():
            # In float64, so that the only rounding is that of the folded weights.
            context_weight, token_weight = mixing.double().chunk(2, 1)
            outer = torch.cat([torch.block_diag(*[weight.double()] * repeats) for weight, _ in context])
            outer_bias = torch.cat([bias.double().repeat(repeats) for _, bias in context])
            identity = torch.eye(*context_weight.shape, dtype=torch.float64, device=context_weight.device)
            folded = {
                "weight": torch.cat([*(weight.double() for weight, _ in own), outer @ token_weight]),
                "bias": torch.cat([*(bias.double() for _, bias in own), torch.zeros_like(outer_bias)]),
                "context_weight": outer @ (context_weight + identity),
                "context_bias": outer @ mixing_bias.double() + outer_bias,
            }
        for name, value in folded.items():
            self.register_buffer(name, value.to(mixing.dtype), persistent=False)

    def forward(self, hidden_states: Tensor, context_embedding: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """Returns query, key, value and the token parts, (B, L, H, D) or (T, H, D) each; and the sequence parts."""
        tokens = F.linear(hidden_states, self.weight, self.bias)
        sequences = F.linear(context_embedding, self.context_weight, self.context_bias)
        sizes = (tokens, len(_OWN_ROLES) + len(CONTEXT_ROLES)), (sequences, len(CONTEXT_ROLES))
        return tuple(x.unflatten(-1, (roles, self.num_heads, -1)).unbind(-3) for x, roles in sizes)


def _foldable(name: str, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a plain linear layer; raises TypeError for another layer."""
    if (parameters := plain_parameters(layer)) is None:
        kind = type(layer)
        found = f"{kind.__module__}.{kind.__qualname__}"
        found = "one with hooks, its own forward or special weights" if kind is nn.Linear else found
        raise TypeError(f"{name}: expected a plain nn.Linear to fold, got {found}. Remove hooks, and merge adapters.")
    return parameters


def _context_encoders(model: nn.Module) -> list[Any]:
    # Not by isinstance: encoder.py, which defines the class, imports this module.
    return [module for module in model.modules() if isinstance(getattr(module, "context_layer", None), nn.ModuleList)]


def has_context_layers(model: nn.Module) -> bool:
    """Returns whether a model has context layers, which `fold_context` folds."""
    return bool(_context_encoders(model))


def fold_context(model: nn.Module) -> int:
    """Folds the context layers of a QACG-BERT or CG-BERT into projections, for inference.

    Results stay the same up to rounding. The folded weights are used in calls that record no gradients and return no
    attention maps, but not while a folded layer has a hook, an adapter or quantized weights. `train()` and
    `load_state_dict` of the model, its encoder or an encoder layer drop them. After any other change of the weights,
    also by `load_state_dict` of a part of an encoder layer, call this function again. Parameters, state dict and saved
    files stay as they are.

    Args:
        model: any module that contains the encoder of a QACG-BERT or CG-BERT, in evaluation mode.

    Returns:
        The number of folded layers.

    Raises:
        ValueError: the model is in training mode, or has no context layers.
        TypeError: a projection or a context layer must be called (see `plain_parameters`), for example because of a
            hook, an adapter or quantized weights.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> fold_context(QACGBertModel(config).eval())
        2
    """
    if model.training:
        raise ValueError("model: expected evaluation mode, got training mode. Call model.eval() first.")
    encoders = _context_encoders(model)
    if not encoders:
        name = type(model).__name__
        raise ValueError(f"model: expected a QACG-BERT or CG-BERT, got a {name} without context layers.")
    folds = [
        (layer, ContextFold(layer.attention.self, context_layer))
        for encoder in encoders
        for layer, context_layer in zip(encoder.layer, encoder.context_layer)
        if not isinstance(context_layer, nn.Identity)  # layers without a context
    ]
    for layer, fold in folds:
        layer.fold = fold.eval()
    return len(folds)
