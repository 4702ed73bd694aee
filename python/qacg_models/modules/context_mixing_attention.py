"""Self-attention of CG-BERT: gates mix queries and keys with a context, then softmax attention."""

import torch
from torch import Tensor, nn

from qacg_kernels.nn import CONTEXT_ROLES, GATE_ROLES, NAMINGS, GateLayer, accept_other_naming
from qacg_models.configs.cg_bert import CGBertConfig
from qacg_models.modules.packing import Packing
from qacg_models.modules.softmax_attention import attend_split

_ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


class ContextMixingSelfAttention(nn.Module):
    """A V with A = softmax(Q' K'^T / sqrt(D)), where a context c per token gives

        lq = act(Q . vq + Qc . vqc + bq),  Q' = (1 - lq) Q + lq Qc,  Qc = Uq c + uq,

    and the same for K' (Wu and Ong, 2021). Unlike in QACG-BERT, Qc and Kc have no dropout. Layers have the names of
    QACG-BERT's; state dicts with the other published names (Wq, Wcq, lambda_Q, ...) load as well.
    """

    naming = "released"

    def __init__(self, config: CGBertConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.context_projection = config.context_projection
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
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        *,
        context: Tensor | None,
        projected: tuple[Tensor, ...] | None,
        output_attentions: bool,
        output_gates: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Attends within each sequence. N is B, L if padded and T if packed.

        Args:
            hidden_states: (N, hidden).
            mask: None or boolean (B, 1, 1, L); or the packing.
            context: (N, hidden), or None with `projected`.
            projected: query, key, value, context query and context key, (N, H, D) each, or None.
            output_attentions: also return A.
            output_gates: also return the gates.

        Returns:
            The output (N, hidden); A after dropout (B, H, L, L), with L = max_seqlen if packed, or None; the gates
            lq and lk, (B, H, L, 1), or (T, H, 1) if packed, or None.
        """
        if projected is None:
            projected = self.project(hidden_states, context)
        query, key, value, context_query, context_key = projected
        query_gate = self._gate("gate_query", query, "gate_context_query", context_query)
        key_gate = self._gate("gate_key", key, "gate_context_key", context_key)
        out, attention = attend_split(
            torch.lerp(query, context_query, query_gate),
            torch.lerp(key, context_key, key_gate),
            value,
            mask,
            dropout_p=self.dropout.p if self.dropout.training else 0.0,
            implementation=self.config._attn_implementation,
            want_map=output_attentions,
        )
        if not output_gates:
            return out, attention, None, None
        if not isinstance(mask, Packing):
            query_gate, key_gate = query_gate.transpose(1, 2), key_gate.transpose(1, 2)
        return out, attention, query_gate, key_gate

    def layer(self, role: str) -> nn.Module:
        """Returns the layer of a role, a key of NAMINGS["released"]."""
        return getattr(self, NAMINGS[self.naming][role])

    def project(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Projects two (N, hidden) to query, key, value, context query and context key, (N, H, D) each."""
        query, key, value = (self._split(self.layer(role)(hidden_states)) for role in ("query", "key", "value"))
        context_query, context_key = (self._project_context(role, context) for role in CONTEXT_ROLES)
        return query, key, value, context_query, context_key

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))

    def _project_context(self, role: str, context: Tensor) -> Tensor:
        if self.context_projection == "head":
            return self.layer(role)(self._split(context))
        return self._split(self.layer(role)(context))

    def _gate(self, role: str, x: Tensor, context_role: str, context: Tensor) -> Tensor:
        """act(x . v + context . vc + b), (N, H, 1), of x and context (N, H, D)."""
        logit = _gate_logit(self.layer(role), x) + _gate_logit(self.layer(context_role), context)
        return _ACTIVATIONS[self.config.gate_activation](logit)


def _gate_logit(layer: GateLayer, x: Tensor) -> Tensor:
    shared = layer.weight.shape[0] == 1
    logit = x @ layer.weight.t() if shared else (x * layer.weight.to(x.dtype)).sum(-1, keepdim=True)
    return logit if layer.bias is None else logit + layer.bias.view(-1, 1)
