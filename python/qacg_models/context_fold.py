"""The exact inference fold of a context layer and the projections that follow it (qacg_kernels/MATH.md).

With W = [We | Wx] the context query of a layer is Uq (Wx X + We E + b + E) + uq. Folded, it is (Uq Wx) X plus
Uq (We E + b + E) + uq, which no token enters; the same for the key. So queries, keys, values and both context parts
are one product of the hidden states, 5 H x H per token in place of 6, and one small product per sequence.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qacg_kernels.nn import CONTEXT_ROLES
from qacg_models.packing import Packing

_OWN_ROLES = ("query", "key", "value")


class ContextFold(nn.Module):
    """The folded weights of one layer, in buffers that no state dict holds.

    Args:
        attention: a self-attention with `layer(role)`, `num_heads` and `context_projection`.
        context_layer: W (hidden, 2 hidden) and b.

    Raises:
        TypeError: a layer is no plain nn.Linear, such as one with an adapter around it.
    """

    def __init__(self, attention: nn.Module, context_layer: nn.Linear):
        super().__init__()
        layers = {role: attention.layer(role) for role in (*_OWN_ROLES, *CONTEXT_ROLES)}
        for name, layer in {**layers, "context layer": context_layer}.items():
            if type(layer) is not nn.Linear:
                raise TypeError(f"{name}: got {type(layer).__name__}, wanted a plain nn.Linear to fold")
        self.num_heads = attention.num_heads
        own, uses = ([layers[role] for role in roles] for roles in (_OWN_ROLES, CONTEXT_ROLES))
        repeats = attention.num_heads if attention.context_projection == "head" else 1
        with torch.no_grad():
            # In float64, so that the only rounding is that of the folded weights.
            of_context, of_tokens = context_layer.weight.double().chunk(2, 1)
            outer = torch.cat([torch.block_diag(*[use.weight.double()] * repeats) for use in uses])
            outer_bias = torch.cat([use.bias.double().repeat(repeats) for use in uses])
            identity = torch.eye(*of_context.shape, dtype=torch.float64, device=of_context.device)
            folded = {
                "weight": torch.cat([*(layer.weight.double() for layer in own), outer @ of_tokens]),
                "bias": torch.cat([*(layer.bias.double() for layer in own), torch.zeros_like(outer_bias)]),
                "context_weight": outer @ (of_context + identity),
                "context_bias": outer @ context_layer.bias.double() + outer_bias,
            }
        for name, value in folded.items():
            self.register_buffer(name, value.to(context_layer.weight.dtype), persistent=False)

    def forward(
        self, hidden_states: Tensor, context_embedding: Tensor, layout: Packing | Tensor | None
    ) -> tuple[Tensor, ...]:
        """Query, key, value, context query and context key, views (..., H, D) of one tensor.

        Args:
            hidden_states: (B, L, hidden), or (T, hidden) with a packing.
            context_embedding: (B, hidden).
            layout: the packing, or whatever masks a padded batch.
        """
        projected = F.linear(hidden_states, self.weight, self.bias)
        per_sequence = F.linear(context_embedding, self.context_weight, self.context_bias)
        packed = isinstance(layout, Packing)
        per_token = layout.per_token(per_sequence) if packed else per_sequence.unsqueeze(1)
        projected[..., 3 * hidden_states.shape[-1] :] += per_token
        return projected.unflatten(-1, (5, self.num_heads, -1)).unbind(-3)


def fold_context(model: nn.Module) -> int:
    """Folds the context path of every layer of a QACG-BERT or CG-BERT, for inference; returns how many layers.

    Results stay the same up to rounding. The folded weights are used where no gradients are recorded and no maps
    are asked for. Putting the model into training mode or loading a state dict drops them; after any other change
    of the weights call this again. Parameters, state dict and saved files stay as they are.

    Raises:
        ValueError: the model is in training mode, or has no layer with a context.
        TypeError: a projection is no plain nn.Linear.
    """
    from qacg_models.context_encoder import ContextBertEncoder

    if model.training:
        raise ValueError("model: got one in training mode, wanted model.eval() before folding for inference")
    encoders = [module for module in model.modules() if isinstance(module, ContextBertEncoder)]
    if not encoders:
        raise ValueError(f"model: got a {type(model).__name__} without context layers, wanted a QACG-BERT or CG-BERT")
    folds = [
        (layer, ContextFold(layer.attention.self, context_layer))
        for encoder in encoders
        for layer, context_layer in zip(encoder.layer, encoder.context_layer)
    ]
    for layer, fold in folds:
        layer.fold = fold.eval()
    return len(folds)
