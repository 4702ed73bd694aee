"""Self-attention of CG-BERT: softmax attention after gates mix a context into Q and K."""

import torch
from torch import Tensor, nn

from qacg_kernels.attention_layers import ContextAttention, accept_other_naming
from qacg_models.modules.context_fold import Projections
from qacg_models.modules.packing import Packing, SharedTexts
from qacg_models.modules.softmax_attention import attend_split

_ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


class ContextMixingSelfAttention(ContextAttention):
    """Self-attention whose queries and keys are mixed with a context (Wu and Ong, 2021).

    The output is A V with A = softmax(Q' K'^T / sqrt(D)). Every token has a context vector c. The gate lq mixes the
    context query Qc into the query Q:

        Qc = Uq c + uq,  lq = act(Q . vq + Qc . vqc + bq),  Q' = (1 - lq) Q + lq Qc.

    A gate lk mixes the context key Kc into the key K in the same way. act is `config.gate_activation`. Unlike in
    QACG-BERT, Qc and Kc have no dropout. Layers have the same names as in QACG-BERT; state dicts with the other
    published names (Wq, Wcq, lambda_Q, ...) load as well.
    """

    naming = "released"

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.context_projection = config.context_projection
        self.add_layers(lambda_bias=config.lambda_bias, lambda_per_head=config.lambda_per_head)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def forward(
        self,
        projections: Projections,
        mask: Packing | Tensor | None,
        texts: SharedTexts | None,
        *,
        first_only: bool,
        output_attentions: bool,
        output_gates: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Computes self-attention within each of N questions.

        A question is a text with one context.

        Args:
            projections: query, key, value, context query and context key; see `Projections`.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            texts: the text of each question; None: every question has a text of its own.
            first_only: return only the first token of each sequence; requires a packed batch.
            output_attentions: also return the attention matrix A.
            output_gates: also return the gates lq and lk.

        Returns:
            The output (N, L, hidden), packed (T, hidden), or (N, hidden) with first_only; A after dropout,
            (N, H, L, L) with L = max_seqlen if packed; lq and lk, (N, H, L, 1), or (T, H, 1) if packed. A and the gates
            are None unless requested.
        """
        query, key, value, context_query, context_key = projections.heads(mask, texts)
        query_gate = self._gate("query", query, context_query)
        key_gate = self._gate("key", key, context_key)
        out, attention = attend_split(
            torch.lerp(query, context_query, query_gate),
            torch.lerp(key, context_key, key_gate),
            value,
            mask,
            dropout_p=self.dropout.p if self.dropout.training else 0.0,
            implementation=self.config._attn_implementation,
            want_map=output_attentions,
        )
        if first_only:
            out = mask.first(out)
        if not output_gates:
            return out, attention, None, None
        if not isinstance(mask, Packing):
            query_gate, key_gate = query_gate.transpose(1, 2), key_gate.transpose(1, 2)
        return out, attention, query_gate, key_gate

    def _gate(self, side: str, x: Tensor, context: Tensor) -> Tensor:
        """Returns act(x . v + context . vc + b) of `side`, (..., H, 1), for x and context (..., H, D)."""
        return _ACTIVATIONS[self.config.gate_activation](self.gate_logits(side, x, context, x.dim() - 2)).unsqueeze(-1)
