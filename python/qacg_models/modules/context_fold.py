"""A context layer and the projections after it, separate or folded into one product (qacg_kernels/MATH.md).

With W = [We | Wx] the context query of a layer is Uq (Wx X + We E + b + E) + uq. Folded, it is (Uq Wx) X plus
Uq (We E + b + E) + uq, which is the same for all tokens of a sequence. The context key is folded in the same way.
Queries, keys, values, context queries and context keys then take five H x H products per token instead of six, and two
small ones per sequence; H is the hidden size. `fold_context` folds weights once, for inference. `project_folded` folds
them within a call whose batch is large enough.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qacg_kernels.nn import CONTEXT_ROLES
from qacg_models.modules.packing import Packing

_OWN_ROLES = ("query", "key", "value")


class ContextFold(nn.Module):
    """The folded weights of one layer, in buffers outside the state dict.

    Args:
        attention: a self-attention with `layer(role)`, `num_heads` and `context_projection`.
        context_layer: W (hidden, 2 hidden) and b (hidden).

    Raises:
        TypeError: a layer is not a plain nn.Linear, for example one wrapped by an adapter.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> encoder = QACGBertModel(config).eval().encoder
        >>> fold = ContextFold(encoder.layer[0].attention.self, encoder.context_layer[0])
        >>> [x.shape for x in fold(torch.zeros(1, 5, 32), torch.zeros(1, 32), None)][0]
        torch.Size([1, 5, 2, 16])
    """

    def __init__(self, attention: nn.Module, context_layer: nn.Linear):
        super().__init__()
        layers = {role: attention.layer(role) for role in (*_OWN_ROLES, *CONTEXT_ROLES)}
        for name, layer in {**layers, "context layer": context_layer}.items():
            if type(layer) is not nn.Linear:
                raise TypeError(f"{name}: expected a plain nn.Linear to fold, got {type(layer).__name__}")
        self.num_heads = attention.num_heads
        own, context = ([layers[role] for role in roles] for roles in (_OWN_ROLES, CONTEXT_ROLES))
        repeats = attention.num_heads if attention.context_projection == "head" else 1
        with torch.no_grad():
            # In float64, so that the only rounding is that of the folded weights.
            context_weight, token_weight = context_layer.weight.double().chunk(2, 1)
            outer = torch.cat([torch.block_diag(*[layer.weight.double()] * repeats) for layer in context])
            outer_bias = torch.cat([layer.bias.double().repeat(repeats) for layer in context])
            identity = torch.eye(*context_weight.shape, dtype=torch.float64, device=context_weight.device)
            folded = {
                "weight": torch.cat([*(layer.weight.double() for layer in own), outer @ token_weight]),
                "bias": torch.cat([*(layer.bias.double() for layer in own), torch.zeros_like(outer_bias)]),
                "context_weight": outer @ (context_weight + identity),
                "context_bias": outer @ context_layer.bias.double() + outer_bias,
            }
        for name, value in folded.items():
            self.register_buffer(name, value.to(context_layer.weight.dtype), persistent=False)

    def forward(
        self, hidden_states: Tensor, context_embedding: Tensor, layout: Packing | Tensor | None
    ) -> tuple[Tensor, ...]:
        """Returns query, key, value, context query and context key, (..., H, D) each.

        Args:
            hidden_states: (B, L, hidden), or (T, hidden) with a packing.
            context_embedding: (B, hidden).
            layout: the packing; any other value for a padded batch.
        """
        projected = F.linear(hidden_states, self.weight, self.bias)
        per_sequence = F.linear(context_embedding, self.context_weight, self.context_bias)
        own, context = projected.tensor_split([len(_OWN_ROLES) * hidden_states.shape[-1]], -1)
        # Not in place: an exported graph would contain a slow scatter for it.
        context = context + _per_token(per_sequence, projected, layout)
        parts = (own, len(_OWN_ROLES)), (context, len(CONTEXT_ROLES))
        return tuple(x for part, roles in parts for x in part.unflatten(-1, (roles, self.num_heads, -1)).unbind(-3))


def mix_context(
    context_layer: nn.Linear, context_embedding: Tensor, hidden_states: Tensor, layout: Packing | Tensor | None
) -> Tensor:
    """Returns the context of a layer, W [E ; X] + b + E.

    Args:
        context_layer: W (hidden, 2 hidden) and b (hidden).
        context_embedding: E, (B, hidden).
        hidden_states: X, (B, L, hidden), or (T, hidden) with a packing.
        layout: the packing; any other value for a padded batch.

    Returns:
        A tensor in the shape of hidden_states.

    Example:
        >>> mix_context(nn.Linear(16, 8), torch.zeros(2, 8), torch.zeros(2, 5, 8), None).shape
        torch.Size([2, 5, 8])
    """
    tokens = F.linear(hidden_states, _token_weight(context_layer))
    return tokens + _per_token(_sequence_part(context_layer, context_embedding), tokens, layout)


def folding_pays(attention: nn.Module, hidden_states: Tensor) -> bool:
    """Returns whether `project_folded` takes less work than projecting the result of `mix_context`.

    Folding saves one H x H product per token, for the hidden size H, and adds two products of weights, so it takes less
    work above 2 H tokens. The result is False for layers with wrappers or hooks, which must be called as modules, and
    in compiled and exported graphs, which are traced for any number of tokens.

    Args:
        attention: a self-attention with `layer(role)` and `context_projection`.
        hidden_states: (B, L, hidden) or (T, hidden).

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> attention = QACGBertModel(config).encoder.layer[0].attention.self
        >>> folding_pays(attention, torch.zeros(1, 5, 32)), folding_pays(attention, torch.zeros(1, 100, 32))
        (False, True)
    """
    if torch.compiler.is_compiling():
        return False
    tokens = hidden_states.shape[:-1].numel()
    return (
        attention.context_projection == "hidden"
        and tokens > 2 * hidden_states.shape[-1]
        and all(_is_plain(attention.layer(role)) for role in CONTEXT_ROLES)
    )


def project_folded(
    attention: nn.Module,
    context_layer: nn.Linear,
    context_embedding: Tensor,
    hidden_states: Tensor,
    layout: Packing | Tensor | None,
) -> tuple[Tensor, ...]:
    """Returns query, key, value, context query and context key, (..., H, D) each; differentiable.

    Args:
        attention: a self-attention with `layer(role)` and `num_heads`, of context projection "hidden".
        context_layer: W (hidden, 2 hidden) and b (hidden).
        context_embedding: E, (B, hidden).
        hidden_states: X, (B, L, hidden), or (T, hidden) with a packing.
        layout: the packing; any other value for a padded batch.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> encoder = QACGBertModel(config).encoder
        >>> layers = encoder.layer[0].attention.self, encoder.context_layer[0]
        >>> len(project_folded(*layers, torch.zeros(1, 32), torch.zeros(1, 5, 32), None))
        5
    """
    per_sequence = _sequence_part(context_layer, context_embedding)
    projected = [attention.layer(role)(hidden_states) for role in _OWN_ROLES]
    for role in CONTEXT_ROLES:
        layer = attention.layer(role)
        tokens = F.linear(hidden_states, layer.weight @ _token_weight(context_layer))
        projected.append(tokens + _per_token(F.linear(per_sequence, layer.weight, layer.bias), tokens, layout))
    return tuple(x.unflatten(-1, (attention.num_heads, -1)) for x in projected)


def _token_weight(context_layer: nn.Linear) -> Tensor:
    return context_layer.weight[:, context_layer.out_features :]


def _sequence_part(context_layer: nn.Linear, context_embedding: Tensor) -> Tensor:
    """Returns We E + b + E, (B, hidden): one row per sequence."""
    weight = context_layer.weight[:, : context_layer.out_features]
    return F.linear(context_embedding, weight, context_layer.bias) + context_embedding


def _per_token(per_sequence: Tensor, like: Tensor, layout: Packing | Tensor | None) -> Tensor:
    """Expands (B, N) to (T, N) or (B, 1, N), in the dtype of `like`, which autocast may have changed."""
    per_sequence = per_sequence.to(like.dtype)
    return layout.per_token(per_sequence) if isinstance(layout, Packing) else per_sequence.unsqueeze(1)


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and not (
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )


def has_context_layers(model: nn.Module) -> bool:
    """Returns whether a model has context layers, which `fold_context` folds."""
    return bool(_context_encoders(model))


def fold_context(model: nn.Module) -> int:
    """Folds the context path of every layer of a QACG-BERT or CG-BERT for inference.

    Results stay the same up to rounding. The folded weights are used where no gradients are recorded and no attention
    maps are requested. `model.train()` and `load_state_dict` drop them. After any other change of the weights call this
    function again. Parameters, state dict and saved files stay as they are.

    Args:
        model: any module that contains the encoder of a QACG-BERT or CG-BERT, in evaluation mode.

    Returns:
        The number of folded layers.

    Raises:
        ValueError: the model is in training mode, or has no context layers.
        TypeError: a projection is not a plain nn.Linear.

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
    pairs = [
        (layer, context_layer)
        for encoder in encoders
        for layer, context_layer in zip(encoder.layer, encoder.context_layer)
        if not isinstance(context_layer, nn.Identity)  # layers without a context
    ]
    folds = [(layer, ContextFold(layer.attention.self, context_layer)) for layer, context_layer in pairs]
    for layer, fold in folds:
        layer.fold = fold.eval()
    return len(folds)


def _context_encoders(model: nn.Module) -> list[Any]:
    # Not by isinstance: context_encoder.py, which defines the class, imports this module.
    return [module for module in model.modules() if isinstance(getattr(module, "context_layer", None), nn.ModuleList)]
