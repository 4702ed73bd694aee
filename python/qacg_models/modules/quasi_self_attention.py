"""Self-attention of QACG-BERT, by the fused operator or by plain PyTorch operations."""

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_kernels.call.equations import MINUS_LOG_KEYS, bias_of_keys, gate_values
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import row_dtype
from qacg_kernels.functional import quasi_attention, quasi_attention_varlen
from qacg_kernels.nn import FusedQuasiAttention, with_lambda
from qacg_models.modules.bert_layers import Dropout
from qacg_models.modules.context_fold import Projections
from qacg_models.modules.packing import Packing, SharedTexts
from qacg_models.modules.softmax_attention import softmax_map

IMPLEMENTATIONS = ("fused", "eager")
# Attention from first tokens only is faster on padded keys if B * max_seqlen is at most this multiple of T.
_MOST_PADDING = 2


class QuasiSelfAttention(FusedQuasiAttention):
    """`FusedQuasiAttention` with the sizes and the implementation of a configuration.

    Every call reads the implementation from the configuration, so `model.set_attn_implementation` takes effect at once.
    """

    def __init__(self, config):
        super().__init__(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_probs_dropout_prob,
            context_projection=config.context_projection,
            lambda_bias=config.lambda_bias,
            lambda_per_head=config.lambda_per_head,
            naming=config.attention_naming,
            quasi_scale=config.quasi_scale,
            quasi_bias=config.quasi_bias,
            beta=config.beta,
            gamma=config.gamma,
        )
        self.config = config
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        projections: Projections,
        mask: Packing | Tensor | None,
        texts: SharedTexts | None,
        *,
        first_only: bool,
        output_attentions: bool,
        output_gates: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Computes self-attention within each of N questions.

        A question is a text with one context.

        A packed batch is padded for the attention if output_attentions is True or the implementation is "eager".
        Otherwise, with first_only and without output_gates, only keys, values and context keys are padded, if padding
        is faster. In all other calls the batch stays packed.

        Args:
            projections: query, key, value, context query and context key, before dropout; see `Projections`.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            texts: the text of each question; None: every question has a text of its own.
            first_only: return only the first token of each sequence; requires a packed batch.
            output_attentions: also return the attention matrices.
            output_gates: also return the gate lambda.

        Returns:
            A tuple: the output (N, L, hidden), packed (T, hidden), or (N, hidden) with first_only; three maps; lambda
            (N, H, L, 1), or (T, H, 1) if packed. The maps are A after dropout, the softmax map P and the gated
            quasi-attention map lambda * G, (N, H, L, L) each, with L = max_seqlen if packed. Maps and lambda are None
            unless requested.
        """
        fused = self.config._attn_implementation == "fused"
        if first_only and fused and _padding_pays(mask) and not (output_attentions or output_gates):
            first, keys = projections.first_tokens(mask, texts), projections.padded_keys(mask, texts)
            return self.attend_from_first(first, keys, mask), None, None, None, None
        heads = projections.heads(mask, texts)
        heads = (*heads[:-2], *map(self.drop_context, heads[-2:]))
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        if not isinstance(mask, Packing):
            heads = tuple(x.transpose(1, 2) for x in heads)
            out, maps, lam = self.attend(heads, self.gate(heads), mask, dropout_p, output_attentions, output_gates)
            out = out.transpose(1, 2)
        elif output_attentions or not fused:
            heads = tuple(mask.pad(x).transpose(1, 2) for x in heads)
            out, maps, lam = self.attend(
                heads, self.gate(heads), mask.pairs(), dropout_p, output_attentions, output_gates
            )
            out, lam = (None if x is None else mask.unpad(x.transpose(1, 2)) for x in (out, lam))
        else:
            maps = None
            out, lam = with_lambda(
                quasi_attention_varlen(
                    *heads,
                    self.gate(heads),
                    cu_seqlens=mask.cu_seqlens,
                    max_seqlen=mask.max_seqlen,
                    dropout_p=dropout_p,
                    quasi_scale=self.quasi_scale,
                    quasi_bias=self.quasi_bias,
                    return_lambda=output_gates,
                )
            )
        out = out.flatten(-2)
        return mask.first(out) if first_only else out, *(maps or (None, None, None)), lam

    def drop_context(self, x: Tensor) -> Tensor:
        """Applies dropout to a context query or context key; a subclass may override it."""
        return self.dropout(x)

    def attend_from_first(
        self, first: tuple[Tensor, ...], padded: tuple[Tensor, Tensor, Tensor], packing: Packing
    ) -> Tensor:
        """Returns the attention output of the first token of each sequence.

        Args:
            first: query, key, value, context query and context key of the first tokens, (N, 1, H, D) each, before
                dropout.
            padded: key, value and context key, (N, max_seqlen, H, D) each, before dropout.
            packing: the packing of the N sequences.

        Returns:
            (N, hidden), 0 for a sequence without tokens.
        """
        query, key, value, context_query, context_key = first
        keys, values, context_keys = padded
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        context_query = self.drop_context(context_query)
        if dropout_p > 0:
            # context_key gets the dropout mask of the first token in context_keys. Slicing context_keys would have the
            # same effect, but is slow: the gradient of the slice has the size of context_keys.
            kept = self.drop_context(torch.ones_like(context_keys))
            context_keys, context_key = context_keys * kept, context_key * kept[:, :1]
        heads = tuple(x.transpose(1, 2) for x in (query, key, value, context_query, context_key))
        gate = self.gate(heads)
        out = quasi_attention(
            *(x.transpose(1, 2) for x in (query, keys, values, context_query, context_keys)),
            gate if isinstance(gate, Tensor) else lambda_of_rows(heads, gate),
            key_lengths=packing.lengths(),
            dropout_p=dropout_p,
            quasi_scale=self.quasi_scale,
            quasi_bias=self.quasi_bias,
        )
        return out.flatten(1)

    def attend(self, heads, gate, mask, dropout_p, returns_maps, returns_lambda):
        if self.config._attn_implementation == "fused":
            return super().attend(heads, gate, mask, dropout_p, returns_maps, returns_lambda)
        out, maps, lam = eager_quasi_attention(heads, gate, mask, dropout_p, self.quasi_scale, self.quasi_bias)
        return out, maps if returns_maps else None, lam.unsqueeze(-1) if returns_lambda else None


def eager_quasi_attention(
    heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    gate: GateParameters | Tensor,
    mask: Tensor | None,
    dropout_p: float,
    quasi_scale: float,
    quasi_bias: float | str = 0.0,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Tensor]:
    """Computes quasi-attention from its equations with plain PyTorch operations.

    The equations are 1 to 5, 7 and 8 of `qacg_kernels/MATH.md`.

    Args:
        heads: query, key, value, context query and context key, (B, H, L, D) each.
        gate: the parameters of lambda, or lambda (B, H, L).
        mask: None, or boolean, True where attention is allowed, broadcastable to (B, H, L, L).
        dropout_p: dropout probability of A.
        quasi_scale: alpha, the factor of the quasi-attention map.
        quasi_bias: number that is added to the context scores, or "-log(keys)": minus the logarithm of the number of
            keys that a query sees.

    Returns:
        The output (B, H, L, D); three maps, (B, H, L, L) each: A after dropout, the softmax map P and the gated
        quasi-attention map lambda * G; lambda (B, H, L).
    """
    query, key, value, context_query, context_key = heads
    scale = query.shape[-1] ** -0.5
    attended = softmax_map(query, key, mask)
    context_scores = context_query @ context_key.transpose(-1, -2) * scale
    if quasi_bias == MINUS_LOG_KEYS:
        bias = bias_of_keys(query, key, mask, key_lengths=None, is_causal=False)
        context_scores = context_scores + bias.unsqueeze(-1).to(context_scores.dtype)
    else:
        context_scores = context_scores + quasi_bias
    quasi_map = quasi_scale * context_scores.sigmoid()
    if mask is not None:
        quasi_map = quasi_map.masked_fill(~mask, 0.0)
    if isinstance(gate, GateParameters):
        query_gate = _gate(query, context_query, gate.query, gate.context_query, gate.query_bias)
        key_gate = _gate(key, context_key, gate.key, gate.context_key, gate.key_bias)
        gate = 1 - (gate.beta * query_gate + gate.gamma * key_gate)
    lam = gate
    gated_map = lam.unsqueeze(-1) * quasi_map
    combined = F.dropout(attended + gated_map, dropout_p, training=dropout_p > 0)
    return combined @ value, (combined, attended, gated_map), lam


def _padding_pays(packing: Packing) -> bool:
    """Returns whether padding the keys is faster than leaving the batch packed.

    It is if the padded batch is not empty and has at most _MOST_PADDING positions per token.
    """
    return 0 < packing.batch * packing.max_seqlen <= _MOST_PADDING * packing.sequences.shape[0]


def lambda_of_rows(heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], gate: GateParameters) -> Tensor:
    """Returns the gate lambda of each query, (B, H, L), in the dtype of the queries.

    As in the kernels, the computation is in float32, or in float64 for float64 inputs.

    Args:
        heads: query, key, value, context query and context key at the same positions, (B, H, L, D) each.
        gate: the parameters of lambda.
    """
    query, key, context_query, context_key = (x.to(row_dtype(x)) for x in (*heads[:2], *heads[3:]))
    query_gate = gate_values(query, context_query, gate.query, gate.context_query, gate.query_bias)
    key_gate = gate_values(key, context_key, gate.key, gate.context_key, gate.key_bias)
    return (1 - (gate.beta * query_gate + gate.gamma * key_gate)).to(heads[0].dtype)


def _gate(x: Tensor, context: Tensor, vector: Tensor, context_vector: Tensor, bias: Tensor | None) -> Tensor:
    """Returns sigmoid(x . vector + context . context_vector + bias), (B, H, L), by matrix products.

    Both vectors are (D) or (H, D). `equations.gate_values` has element-wise products and sums instead, which would
    change the graph of exported models.
    """
    logit = _dot(x, vector) + _dot(context, context_vector)
    if bias is not None:
        logit = logit + bias.view(-1, 1)
    return logit.sigmoid()


def _dot(x: Tensor, vector: Tensor) -> Tensor:
    columns = vector.unsqueeze(-1)  # (D, 1), or (H, D, 1), which broadcasts over the heads of x
    return (x @ columns).squeeze(-1)
