"""Attention layers of the encoders: softmax, fused quasi-attention and its eager form, and that of transformers.

Every mask of an encoder is applied in this module. A mask is a `Packing`, for a packed batch, in which tokens attend
within their sequence; booleans (B, 1, 1, L), True for tokens; or None, for a batch without padding.

Quasi-attention with a gate of 0 is softmax attention. The result of a query that sees no key is 0.

Other models of transformers select the fused softmax attention by `attn_implementation="qacg_fused"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging

from qacg_kernels import quasi_attention, quasi_attention_varlen
from qacg_kernels.attention_layers import ContextAttention, accept_other_naming
from qacg_kernels.backends import cpu
from qacg_kernels.call.equations import MINUS_LOG_KEYS, bias_of_keys, gate_values
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import row_dtype
from qacg_kernels.nn import FusedQuasiAttention, with_lambda
from qacg_models.layers.batch import Packing, near
from qacg_models.layers.context import FirstHeads, project_together
from qacg_models.layers.embeddings import Dropout

# The first is the default: of BERT, CG-BERT and Aspect-BERT, and of QACG-BERT.
IMPLEMENTATIONS = ("sdpa", "fused", "eager")
QUASI_IMPLEMENTATIONS = ("fused", "eager")
# Attention from first tokens only is faster on padded keys if B * max_seqlen is at most this multiple of T.
_MOST_PADDING = 2
_ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    implementation: str,
    want_map: bool,
) -> tuple[Tensor, Tensor | None]:
    """Returns A V with A = dropout(softmax(Q K^T / sqrt(D))), (B, H, L, D), and A (B, H, L, S) on request.

    The query is (B, H, L, D), key and value are (B, H, S, D). The mask is None, or boolean, True where attention is
    allowed, broadcastable to (B, H, L, S). With want_map, plain operations compute A and the output, whatever the
    implementation, so that both have the same dropped entries. For sequences as short as sentences, the backward of
    "fused" is faster on the CPU than that of "sdpa", which is faster at inference.
    """
    if implementation == "sdpa" and not want_map:
        return sdpa(query, key, value, mask, dropout_p), None
    if implementation == "fused" and not want_map:
        inputs = _without_context(query, key, value)
        return quasi_attention(*inputs, attn_mask=mask, dropout_p=dropout_p), None
    weights = F.dropout(softmax_map(query, key, mask), dropout_p, training=dropout_p > 0)
    return weights @ value, weights if want_map else None


def _without_context(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Returns the inputs with which quasi-attention is softmax attention: their gate is 0.

    With a gate of 0 any context gives the same result. Detaching avoids adding gradients of 0.
    """
    return query, key, value, query.detach(), key.detach(), query.new_zeros(query.shape[:-1])


def softmax_map(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Returns softmax(Q K^T / sqrt(D)), (B, H, L, S); the row of a query that sees no key is 0.

    `query`, `key` and `mask` are those of `softmax_attention`.
    """
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)
    if mask is None:
        return scores.softmax(-1)
    # Hidden scores are the lowest finite number, since -inf would give NaN in a row without visible keys.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """Returns the output of `softmax_attention` by PyTorch's fused attention."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    # Not every kernel returns 0 for a row without visible keys: such rows see all keys and are set to 0 afterwards.
    blind = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, dropout_p=dropout_p)
    return out.masked_fill(blind, 0.0)


def _attend(
    module: Any, heads: tuple[Tensor, ...], mask: Packing | Tensor | None, want_map: bool, first_only: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns A V, and A on request, for padded heads (B, L, H, D) or packed heads (T, H, D).

    A is dropout(softmax(Q K^T / sqrt(D))) within each sequence. The output is (B, L, H D) or (T, H D), or (B, H D) of
    first tokens with first_only, which requires a packed batch. A is (B, H, L, L); for a packed batch L is max_seqlen,
    and A is 0 beyond the length of the sequence.
    """
    dropout_p = module.dropout.p if module.dropout.training else 0.0
    implementation = module.config._attn_implementation
    options = {"dropout_p": dropout_p, "implementation": implementation, "want_map": want_map}
    if not isinstance(mask, Packing):
        out, attention = softmax_attention(*(x.transpose(1, 2) for x in heads), mask, **options)
        return merge_heads(out), attention
    # For float32 and bfloat16 on the CPU, the compiled kernel for packed batches is two to four times as fast as
    # padding the batch for scaled_dot_product_attention. It has no windows.
    whole = mask.window is None and not want_map
    if whole and (implementation == "fused" or (implementation == "sdpa" and _has_kernel(heads[0]))):
        attention, lengths = None, {"cu_seqlens": mask.cu_seqlens, "max_seqlen": mask.max_seqlen}
        out = quasi_attention_varlen(*_without_context(*heads), **lengths, dropout_p=dropout_p)
    else:
        padded = (mask.pad(x).transpose(1, 2) for x in heads)
        out, attention = softmax_attention(*padded, mask.pairs(), **options)
        out = mask.unpad(out.transpose(1, 2))
    out = out.flatten(-2)
    return mask.first(out) if first_only else out, attention


def _has_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and not cpu.missing()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Returns x (B, L, H D) as (B, H, L, D), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Returns x (B, H, L, D) as (B, L, H D)."""
    return x.transpose(1, 2).flatten(-2)


class RotaryPositions(NamedTuple):
    """Positions of tokens in a layer of ModernBERT: rotated queries and keys, and attention within a window.

    BERT adds the embedding of a position to that of a word instead. Context queries and keys are not rotated.

    Attributes:
        theta: base of the angles (Su et al., 2021).
        window: the largest distance of a token to the tokens that it attends to; None: any distance.
    """

    theta: float
    window: int | None

    @classmethod
    def of(cls, config, layer: int) -> RotaryPositions | None:
        """Returns the positions of a layer, by its index; None for layers of BERT."""
        if (fields := config.modernbert) is None:
            return None
        local = layer in fields["local_layers"]
        theta = fields["local_rotary_theta" if local else "rotary_theta"]
        return cls(theta, fields["local_attention"] // 2 if local else None)

    def mask(self, mask: Packing | Tensor | None, hidden_states: Tensor) -> Packing | Tensor | None:
        """Returns the mask of the layer, which hides tokens outside the window, from the mask of an encoder."""
        if self.window is None:
            return mask
        if isinstance(mask, Packing):
            return mask if mask.max_seqlen <= self.window + 1 else mask._replace(window=self.window)
        length = hidden_states.shape[1]
        # A graph is traced for any length.
        if not torch.compiler.is_compiling() and length <= self.window + 1:
            return mask
        visible = near(length, self.window, hidden_states.device)
        return visible if mask is None else mask & visible

    def rotate(self, heads: tuple[Tensor, ...] | FirstHeads, mask: Packing | Tensor | None):
        """Returns the heads, (B, L, H, D) or packed (T, H, D), of which the first two, query and key, are rotated."""
        if isinstance(heads, FirstHeads):  # a rotation by position 0 is the identity
            return heads._replace(key=self._rotated(heads.key, _arange(heads.key)))
        places = mask.places if isinstance(mask, Packing) else _arange(heads[0])
        return *(self._rotated(x, places) for x in heads[:2]), *heads[2:]

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        # Angles are float32, as in transformers. Products are computed in float32 under autocast.
        size = x.shape[-1]
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=x.device) / size
        angles = (places.unsqueeze(-1) * (1 / self.theta**exponents)).unsqueeze(-2)
        cos, sin = angles.cos(), angles.sin()
        left, right = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def _arange(heads: Tensor) -> Tensor:
    """Returns the positions (L) of padded heads (B, L, H, D)."""
    return torch.arange(heads.shape[1], device=heads.device)


class BertSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D)) V for each head.

    Every call reads the implementation from the configuration, so `set_attn_implementation` takes effect at once.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
        first_only: bool = False,
        positions: RotaryPositions | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output and A on request; arguments and shapes are those of `BertLayer.forward`."""
        projected = project_together((self.query, self.key, self.value), hidden_states)
        heads = tuple(x.unflatten(-1, (self.config.num_attention_heads, -1)) for x in projected)
        heads = heads if positions is None else positions.rotate(heads, mask)
        attended, attention = _attend(self, heads, mask, output_attentions, first_only)
        if head_mask is None:
            return attended, attention
        # (m A) V = m (A V), which does not require A.
        head_mask = head_mask.to(attended.dtype).unsqueeze(-1)
        attended = (attended.unflatten(-1, (self.config.num_attention_heads, -1)) * head_mask).flatten(-2)
        return attended, attention if attention is None else attention * head_mask.unsqueeze(-1)


class ContextMixingSelfAttention(ContextAttention):
    """Self-attention of CG-BERT, whose queries and keys are mixed with a context (Wu and Ong, 2021).

    The output is A V with A = softmax(Q' K'^T / sqrt(D)). The gate lq mixes the context query Qc = Uq c + uq of the
    context vector c of each token into the query Q: lq = act(Q . vq + Qc . vqc + bq),  Q' = (1 - lq) Q + lq Qc. A gate
    lk mixes the context key into the key K in the same way. Unlike in QACG-BERT, Qc and Kc have no dropout. Layers have
    the same names as in QACG-BERT; state dicts with the other published names (Wq, Wcq, lambda_Q, ...) load as well.
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
        heads: tuple[Tensor, ...],
        mask: Packing | Tensor | None,
        *,
        output_attentions: bool,
        output_gates: bool,
        first_only: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Returns the output; A after dropout; lq and lk, (B, H, L, 1) or packed (T, H, 1).

        Args and shapes are those of `QuasiSelfAttention.forward`; `heads` is never a `FirstHeads`.
        """
        query, key, value, context_query, context_key = heads
        query_gate = self._gate("query", query, context_query)
        key_gate = self._gate("key", key, context_key)
        mixed = torch.lerp(query, context_query, query_gate), torch.lerp(key, context_key, key_gate), value
        out, attention = _attend(self, mixed, mask, output_attentions, first_only)
        if not output_gates:
            return out, attention, None, None
        if not isinstance(mask, Packing):
            query_gate, key_gate = query_gate.transpose(1, 2), key_gate.transpose(1, 2)
        return out, attention, query_gate, key_gate

    def attends_from_first(self, mask: Packing | Tensor | None) -> bool:
        """Returns False: all tokens attend, and the last layer then keeps the first ones."""
        return False

    def _gate(self, side: str, x: Tensor, context: Tensor) -> Tensor:
        """Returns act(x . v + context . vc + b) of `side`, (..., H, 1), for x and context (..., H, D)."""
        return _ACTIVATIONS[self.config.gate_activation](self.gate_logits(side, x, context, x.dim() - 2)).unsqueeze(-1)


class QuasiSelfAttention(FusedQuasiAttention):
    """Self-attention of QACG-BERT: `FusedQuasiAttention` with the sizes and the implementation of a configuration.

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
        heads: tuple[Tensor, ...] | FirstHeads,
        mask: Packing | Tensor | None,
        *,
        output_attentions: bool,
        output_gates: bool,
        first_only: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Returns the output (B, L, hidden), packed (T, hidden), or (N, hidden) with first_only; three maps; lambda.

        The maps are A after dropout, the softmax map P and the gated quasi-attention map lambda * G, (B, H, L, L) each
        with L = max_seqlen if packed. lambda is (B, H, L, 1), or packed (T, H, 1). Both are None unless requested.

        `heads` are query, key, value, context query and context key, (B, L, H, D) or packed (T, H, D) each; or
        `FirstHeads`, if `attends_from_first` is true and neither maps nor gates are requested.
        """
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        if isinstance(heads, FirstHeads):
            return self._attend_from_first(heads, mask, dropout_p), None, None, None, None
        heads = (*heads[:-2], *map(self.dropout, heads[-2:]))
        packing, maps = mask if isinstance(mask, Packing) else None, None
        whole = packing is not None and packing.window is None and not output_attentions
        if whole and self.config._attn_implementation == "fused":
            out, lam = with_lambda(
                quasi_attention_varlen(
                    *heads,
                    self.gate(heads),
                    cu_seqlens=packing.cu_seqlens,
                    max_seqlen=packing.max_seqlen,
                    return_lambda=output_gates,
                    **self._options(dropout_p),
                )
            )
        else:
            heads = tuple((x if packing is None else packing.pad(x)).transpose(1, 2) for x in heads)
            pairs = mask if packing is None else packing.pairs()
            out, maps, lam = self.attend(heads, self.gate(heads), pairs, dropout_p, output_attentions, output_gates)
            out = out.transpose(1, 2)
            if packing is not None:
                out, lam = packing.unpad(out), None if lam is None else packing.unpad(lam.transpose(1, 2))
        out = out.flatten(-2)
        return packing.first(out) if first_only else out, *(maps or (None, None, None)), lam

    def _options(self, dropout_p: float) -> dict[str, Any]:
        return {"dropout_p": dropout_p, "quasi_scale": self.quasi_scale, "quasi_bias": self.quasi_bias}

    def attends_from_first(self, mask: Packing | Tensor | None) -> bool:
        """Returns whether the first tokens alone attend faster, on padded keys, than all tokens of the packing."""
        packed = isinstance(mask, Packing) and mask.window is None
        if not packed or self.config._attn_implementation != "fused":
            return False
        return 0 < mask.batch * mask.max_seqlen <= _MOST_PADDING * mask.sequences.shape[0]

    def _attend_from_first(self, heads: FirstHeads, packing: Packing, dropout_p: float) -> Tensor:
        """Returns the output (N, hidden) of the first token of each sequence, 0 for a sequence without tokens."""
        query, key, value, context_query, context_key = heads.first
        context_query, context_keys = self.dropout(context_query), heads.context_key
        if dropout_p > 0:
            # context_key gets the dropout mask of the first token in context_keys. Slicing context_keys would have the
            # same effect, but is slow: the gradient of the slice has the size of context_keys.
            kept = self.dropout(torch.ones_like(context_keys))
            context_keys, context_key = context_keys * kept, context_key * kept[:, :1]
        first = tuple(x.transpose(1, 2) for x in (query, key, value, context_query, context_key))
        lam = self.gate(first)
        if isinstance(lam, GateParameters):
            # As in the kernels: in float32, or in float64 for float64 inputs.
            wide = [x.to(row_dtype(x)) for x in (first[0], first[1], first[3], first[4])]
            lam = _lambda(wide, lam, gate_values).to(query.dtype)
        out = quasi_attention(
            *(x.transpose(1, 2) for x in (query, heads.key, heads.value, context_query, context_keys)),
            lam,
            key_lengths=packing.lengths(),
            **self._options(dropout_p),
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
    """Computes quasi-attention from its equations (`qacg_kernels/MATH.md`, 1 to 8) with plain PyTorch operations.

    The arguments are those of `FusedQuasiAttention.attend`; the mask is None or boolean, True where attention is
    allowed. Returns the output (B, H, L, D); A after dropout, the softmax map P and the gated quasi-attention map
    lambda * G, (B, H, L, L) each; lambda (B, H, L).
    """
    query, key, value, context_query, context_key = heads
    attended = softmax_map(query, key, mask)
    context_scores = context_query @ context_key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if quasi_bias == MINUS_LOG_KEYS:
        bias = bias_of_keys(query, key, mask, key_lengths=None, is_causal=False)
        context_scores = context_scores + bias.unsqueeze(-1).to(context_scores.dtype)
    else:
        context_scores = context_scores + quasi_bias
    quasi_map = quasi_scale * context_scores.sigmoid()
    if mask is not None:
        quasi_map = quasi_map.masked_fill(~mask, 0.0)
    lam = _lambda((query, key, context_query, context_key), gate, _gate) if isinstance(gate, GateParameters) else gate
    gated_map = lam.unsqueeze(-1) * quasi_map
    combined = F.dropout(attended + gated_map, dropout_p, training=dropout_p > 0)
    return combined @ value, (combined, attended, gated_map), lam


def _lambda(heads: tuple[Tensor, ...], gate: GateParameters, values: Callable[..., Tensor]) -> Tensor:
    """Returns the gate lambda of each query, (B, H, L).

    `heads` are query, key, context query and context key at the same positions, (B, H, L, D) each. `values` computes
    the gate of a query or key.
    """
    query, key, context_query, context_key = heads
    query_gate = values(query, context_query, gate.query, gate.context_query, gate.query_bias, gate.context_query_bias)
    key_gate = values(key, context_key, gate.key, gate.context_key, gate.key_bias, gate.context_key_bias)
    return 1 - (gate.beta * query_gate + gate.gamma * key_gate)


def _gate(x: Tensor, context: Tensor, vector: Tensor, context_vector: Tensor, *biases: Tensor | None) -> Tensor:
    """Returns sigmoid(x . vector + context . context_vector + biases), (B, H, L), by matrix products.

    Both vectors are (1, D) or (H, D). `equations.gate_values` has element-wise products and sums instead, which would
    change the graph of exported models.
    """
    vector, context_vector = (v.to(x.dtype).unsqueeze(-1) for v in (vector, context_vector))
    logit = (x @ vector + context @ context_vector).squeeze(-1)
    for bias in biases:
        logit = logit if bias is None else logit + bias.to(x.dtype).view(-1, 1)
    return logit.sigmoid()


NAME = "qacg_fused"


def register_attention() -> None:
    """Registers the attention implementation and its mask with transformers."""
    AttentionInterface.register(NAME, fused_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def fused_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes softmax attention by `quasi_attention`, for transformers' `AttentionInterface`.

    The arguments have the meaning of transformers' "sdpa": query (B, H, L, D), key and value (B, H / G, S, D) for G
    query heads per key head, a boolean (True: attend) or additive mask. Other arguments are ignored, except those that
    would change the result, which raise ValueError. Returns the output (B, L, H, D), and None for the attention matrix.
    """
    for name in ("position_bias", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name}: expected None with attn_implementation={NAME!r}, got a value. "
                "Use attn_implementation='eager'."
            )
    if attention_mask is not None and attention_mask.requires_grad:
        raise ValueError(
            f"attention_mask: expected a mask without gradient with attn_implementation={NAME!r}, got one that "
            "requires grad, such as a learned position bias. Call model.set_attn_implementation('sdpa') or 'eager'."
        )
    if kwargs.get("output_attentions"):
        logging.get_logger(f"transformers.{NAME}").warning_once(
            f"`{NAME}` attention does not support `output_attentions=True`, so no attention maps are returned. Call "
            "model.set_attn_implementation('eager') if you need them."
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    options = {"attn_mask": attention_mask, "dropout_p": dropout, "is_causal": causal, "scale": scaling}
    out = quasi_attention(*_without_context(query, key, value), **options)
    return out.transpose(1, 2).contiguous(), None
