"""CG-BERT's self-attention: mixes a context into queries and keys, then calls torch's fused attention."""

import torch
from torch import Tensor, nn

from qacg_kernels.call.masks import hides
from qacg_kernels.nn import ContextAttention, accept_other_naming, check_order, mask_for_scores, one_context


class FusedContextMixing(ContextAttention):
    """CG-BERT's self-attention: softmax(Q' K'^T / sqrt(D)) V, where a context is mixed into Q' and K':

        Q' = (1 - lq) Q + lq Qc,  lq = sigmoid(Q . vq + Qc . vqc + bq),  and K' in the same way.

    Q and Qc are query and context query; vq, vqc and bq are the weights and the bias of the query gate.
    Follows Wu and Ong (2021) and their released code: there is no dropout on the context query and key, and `forward`
    returns one tensor. The softmax attention is torch.nn.functional.scaled_dot_product_attention.
    `apply_fused_attention` replaces a module by this class if it has the nine layers of NAMINGS and returns one tensor.
    """

    def configure(self, *, hidden_size: int, num_heads: int, context_projection: str, naming: str) -> None:
        """Sets all attributes except the layers and `dropout`, and registers `accept_other_naming` as a load hook."""
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.context_projection = context_projection
        self.naming = naming
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        context: Tensor | None = None,
        *,
        C_embed: Tensor | None = None,
        context_embedded: Tensor | None = None,
    ) -> Tensor:
        """Computes the attention within each sequence; in training, dropout acts on the attention map.

        Args:
            hidden_states: (B, L, hidden_size).
            attention_mask: None, a key mask or a score mask. A key mask is (B, L), boolean or integer, with True or 1
                where a key is visible. A score mask has three dimensions that broadcast to (B, L, L), or four that
                broadcast to (B, H, L, L). It is either boolean, with True where attention is allowed, or floating-point
                and added to the scores. A floating mask is converted to the dtype of the queries (that of
                hidden_states, unless autocast changes it). A value hides the key if, before or after this conversion,
                it is at or below half the lowest finite number of its dtype (of float32 if the dtype is float64).
            device: not used. If it is not None, its type must be that of hidden_states. The published models pass it.
            context: (B, L, hidden_size), one context per token.
            C_embed: another name of `context` in published code; pass exactly one of the three names.
            context_embedded: another name of `context` in published code.

        Returns:
            The output, (B, L, hidden_size); 0 for a query that sees no key.

        Raises:
            TypeError: an argument has the wrong type or dtype, or the context is missing or given twice.
            ValueError: an argument has the wrong shape or device, or the mask has an unsupported dtype. Or a key mask
                has integers other than 0 and 1 (checked only on the CPU, and not while compiling or under vmap).
        """
        check_order(hidden_states, attention_mask, device, (context, C_embed, context_embedded))
        context = one_context(context, C_embed, context_embedded)
        self.check_inputs(hidden_states, context, device, packed=False)
        heads = (x.transpose(1, 2) for x in self.project(hidden_states, context))
        query, key, value, context_query, context_key = heads
        query, key = self._mixed("query", query, context_query), self._mixed("key", key, context_key)
        mask = mask_for_scores(attention_mask, query)
        if mask is not None and mask.is_floating_point():
            mask = mask.masked_fill(hides(mask), -torch.inf)
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout.p if self.dropout.training else 0.0
        )
        return out.transpose(1, 2).flatten(-2)

    def _mixed(self, side: str, x: Tensor, context: Tensor) -> Tensor:
        """Mixes x and context, (B, H, L, D) each: (1 - l) x + l context with the gate l of `side`, query or key."""
        gate = self.gate_logits(side, x, context, 1).sigmoid().unsqueeze(-1)
        return torch.lerp(x, context, gate)

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, "
            f"context_projection={self.context_projection!r}, naming={self.naming!r}"
        )
