"""Self-attention of CG-BERT: gates mix queries and keys with a context, ordinary softmax attention follows."""

import torch
from torch import Tensor, nn

from qacg_kernels.nn import CONTEXT_ROLES, GATE_ROLES, NAMINGS, GateLayer, accept_other_naming
from qacg_models.configuration import CGBertConfig
from qacg_models.softmax_attention import merge_heads, softmax_attention, split_heads

_ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


class ContextMixingSelfAttention(nn.Module):
    """A V with A = softmax(Q' K'^T / sqrt(D)) and, from a context c per token,

        lq = act(Q . vq + Qc . vqc + bq),  Q' = (1 - lq) Q + lq Qc,  Qc = Uq c + uq,

    and the same for K' (Wu and Ong, 2021). Unlike in QACG-BERT, Qc and Kc have no dropout of their own. Layers
    have the names of QACG-BERT's; a state dict under the other published names (Wq, Wcq, lambda_Q, ...) loads
    as well.
    """

    naming = "released"

    def __init__(self, config: CGBertConfig):
        super().__init__()
        self.config = config
        head_size = config.hidden_size // config.num_attention_heads
        context_size = config.hidden_size if config.context_projection == "hidden" else head_size
        gates = config.num_attention_heads if config.lambda_per_head else 1
        for role, name in NAMINGS[self.naming].items():
            if role in GATE_ROLES:
                layer = GateLayer(head_size, gates, bias=config.lambda_bias)
            else:
                size = context_size if role in CONTEXT_ROLES else config.hidden_size
                layer = nn.Linear(size, size)
            self.add_module(name, layer)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None, *, context: Tensor, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Attends within each sequence.

        Args:
            hidden_states, context: (B, L, hidden).
            mask: None or boolean (B, 1, 1, L).

        Returns:
            The attended values (B, L, hidden); A after dropout (B, H, L, L) or None; the gates lq and lk,
            (B, H, L, 1).
        """
        heads = self.config.num_attention_heads
        query, key, value = (
            split_heads(self._layer(role)(hidden_states), heads) for role in ("query", "key", "value")
        )
        context_query, context_key = (self._project_context(role, context) for role in CONTEXT_ROLES)
        query_gate = self._gate("gate_query", query, "gate_context_query", context_query)
        key_gate = self._gate("gate_key", key, "gate_context_key", context_key)
        out, attention = softmax_attention(
            torch.lerp(query, context_query, query_gate),
            torch.lerp(key, context_key, key_gate),
            value,
            mask,
            dropout_p=self.dropout.p if self.dropout.training else 0.0,
            implementation=self.config._attn_implementation,
            want_map=output_attentions,
        )
        return merge_heads(out), attention, query_gate, key_gate

    def _layer(self, role: str) -> nn.Module:
        return getattr(self, NAMINGS[self.naming][role])

    def _project_context(self, role: str, context: Tensor) -> Tensor:
        """(B, L, hidden) to (B, H, L, D)."""
        heads, layer = self.config.num_attention_heads, self._layer(role)
        if self.config.context_projection == "head":
            return layer(split_heads(context, heads))
        return split_heads(layer(context), heads)

    def _gate(self, role: str, x: Tensor, context_role: str, context: Tensor) -> Tensor:
        """act(x . v + context . vc + b), (B, H, L, 1), of x and context (B, H, L, D)."""
        logit = _gate_logit(self._layer(role), x) + _gate_logit(self._layer(context_role), context)
        return _ACTIVATIONS[self.config.gate_activation](logit)


def _gate_logit(layer: GateLayer, x: Tensor) -> Tensor:
    logit = x @ layer.weight.unsqueeze(-1)  # (D, 1), or (H, D, 1) which meets the heads of x
    return logit if layer.bias is None else logit + layer.bias.view(-1, 1, 1)
