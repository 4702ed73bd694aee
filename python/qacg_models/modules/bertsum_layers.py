"""The transformer over sentences of BertSum (Liu, 2019), under the names that its checkpoints have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.modules.multi_headed_attention import MultiHeadedAttention

LAYER_NORM_EPS = 1e-6


class PositionwiseFeedForward(nn.Module):
    """x + dropout(W2 dropout(gelu(W1 LayerNorm(x)))), with the tanh form of gelu.

    Args:
        d_model: width of the input.
        d_ff: width inside.
        dropout: probability, used twice.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.dropout_1 = nn.Dropout(dropout)
        self.dropout_2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to (..., d_model)."""
        inner = self.dropout_1(F.gelu(self.w_1(self.layer_norm(x)), approximate="tanh"))
        return x + self.dropout_2(self.w_2(inner))


class PositionalEncoding(nn.Module):
    """Sinusoids of the position: sin in even columns, cos in odd ones, wavelengths from 2 pi to 20000 pi.

    Args:
        dropout: probability, of the sum.
        dim: width of the embeddings.
        max_len: number of positions in the table `pe`, which is saved with the parameters as (1, max_len, dim).
    """

    def __init__(self, dropout: float, dim: int, max_len: int = 5000):
        super().__init__()
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", torch.empty(1, max_len, dim))
        self.reset_table()

    @torch.no_grad()
    def reset_table(self) -> None:
        """Computes the table anew, in place."""
        _, max_len, dim = self.pe.shape
        # In float64 on the CPU: in float32 the angle of a late position is off in the fourth digit.
        positions = torch.arange(max_len, dtype=torch.float64, device="cpu").unsqueeze(1)
        columns = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
        angles = positions * torch.exp(columns * (-math.log(10000.0) / dim))
        self.pe[0, :, 0::2] = angles.sin().to(self.pe)
        self.pe[0, :, 1::2] = angles.cos()[:, : dim // 2].to(self.pe)

    def positions(self, length: int) -> Tensor:
        """The first `length` rows, (1, length, dim); ValueError beyond the table."""
        if length > self.pe.shape[1]:
            raise ValueError(f"got {length} positions, wanted at most the {self.pe.shape[1]} of the table (max_len)")
        return self.pe[:, :length]

    def forward(self, emb: Tensor, step: int | None = None) -> Tensor:
        """dropout(emb * sqrt(dim) + positions), (B, L, dim).

        Args:
            emb: (B, L, dim).
            step: None for positions 0 to L - 1; else the one position that all of `emb` is at.
        """
        if step is None:
            table = self.positions(emb.shape[1])
        else:
            table = self.positions(step + 1)[:, step : step + 1]
        return self.dropout(emb * math.sqrt(self.dim) + table)


class TransformerEncoderLayer(GradientCheckpointingLayer):
    """Self-attention and feed-forward block, each normalised before and added to its input.

    Args:
        d_model, heads, d_ff: widths and number of heads.
        dropout: probability, of the attention map and of both blocks' outputs.
        blind_queries: as in `MultiHeadedAttention`.
    """

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float, *, blind_queries: str = "zeros"):
        super().__init__()
        self.self_attn = MultiHeadedAttention(heads, d_model, dropout=dropout, blind_queries=blind_queries)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        iter: int,
        query: Tensor | None,
        inputs: Tensor,
        mask: Tensor,
        attn_implementation: str = "sdpa",
        output_attentions: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """One layer.

        Args:
            iter: number of the layer; layer 0 attends over its input as it is, without LayerNorm.
            query: None, or `inputs` itself, as published callers pass it. The published layer never reads it.
            inputs: (B, S, d_model).
            mask: (B, S) of any dtype, other than 0 where a key is HIDDEN.
            attn_implementation, output_attentions: as in `MultiHeadedAttention`.

        Returns:
            (B, S, d_model), with the map (B, heads, S, S) if asked for.
        """
        if query is not None and query is not inputs:
            raise ValueError("query: got another tensor than inputs; this layer is self-attention, pass inputs or None")
        x = inputs if iter == 0 else self.layer_norm(inputs)
        attended = self.self_attn(
            x,
            x,
            x,
            mask=mask.unsqueeze(1),
            attn_implementation=attn_implementation,
            output_attentions=output_attentions,
        )
        attended, weights = attended if output_attentions else (attended, None)
        out = self.feed_forward(inputs + self.dropout(attended))
        return (out, weights) if output_attentions else out


@dataclass
class TransformerInterEncoderOutput(ModelOutput):
    """Output of `TransformerInterEncoder`.

    Attributes:
        scores: sigmoid(logits) * mask, (B, S).
        logits: (B, S); those of padding mean nothing.
        attentions: map of each layer, (B, heads, S, S), if asked for.
    """

    scores: Tensor | None = None
    logits: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransformerInterEncoder(nn.Module):
    """Scores of sentences from their vectors: positions, transformer layers, LayerNorm, linear, sigmoid.

    Args:
        d_model, d_ff, heads: widths and number of heads.
        dropout: probability, inside the layers.
        num_inter_layers: number of layers; 0 leaves LayerNorm and the linear classifier.
        blind_queries: as in `MultiHeadedAttention`.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        heads: int,
        dropout: float,
        num_inter_layers: int = 0,
        *,
        blind_queries: str = "zeros",
    ):
        super().__init__()
        self.d_model = d_model
        self.num_inter_layers = num_inter_layers
        self.pos_emb = PositionalEncoding(dropout, d_model)
        self.transformer_inter = nn.ModuleList(
            TransformerEncoderLayer(d_model, heads, d_ff, dropout, blind_queries=blind_queries)
            for _ in range(num_inter_layers)
        )
        self.freeze_unread()
        self.layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.wo = nn.Linear(d_model, 1)

    def freeze_unread(self) -> None:
        """Freezes the first layer's LayerNorm, which checkpoints have and that layer skips: distributed training waits
        for the gradient of every parameter that asks for one."""
        if self.num_inter_layers:
            self.transformer_inter[0].layer_norm.requires_grad_(False)

    def forward(
        self,
        top_vecs: Tensor,
        mask: Tensor,
        *,
        attn_implementation: str = "sdpa",
        output_attentions: bool = False,
        return_dict: bool = False,
    ) -> Tensor | TransformerInterEncoderOutput:
        """Scores every sentence in view of the others.

        Args:
            top_vecs: (B, S, d_model), a vector of each sentence.
            mask: (B, S) of any dtype, 1 for a sentence and 0 for padding.
            attn_implementation: "sdpa" or "eager".
            output_attentions: give the maps too; only with `return_dict`.
            return_dict: give logits and maps beside the scores.

        Returns:
            scores (B, S), 0 for padding; or all of `TransformerInterEncoderOutput`.

        Raises:
            TypeError, ValueError: naming the argument, what came and what was wanted.
        """
        if output_attentions and not return_dict:
            raise ValueError("output_attentions: got True without return_dict=True, which has a place for the maps")
        sentence = self._sentences(top_vecs, mask)
        # Zeroed by selection, not by a product: a NaN in padding stays out.
        x = top_vecs.masked_fill(~sentence.unsqueeze(-1), 0.0) + self.pos_emb.positions(top_vecs.shape[1])
        maps = []
        for i, layer in enumerate(self.transformer_inter):
            x = layer(i, None, x, ~sentence, attn_implementation, output_attentions)
            if output_attentions:
                x, weights = x
                maps.append(weights)
        logits = self.wo(self.layer_norm(x)).squeeze(-1)
        scores = logits.sigmoid() * sentence
        if not return_dict:
            return scores
        return TransformerInterEncoderOutput(
            scores=scores, logits=logits, attentions=tuple(maps) if output_attentions else None
        )

    def _sentences(self, top_vecs: object, mask: object) -> Tensor:
        """The mask as booleans, True for a sentence."""
        if not isinstance(top_vecs, Tensor) or not isinstance(mask, Tensor):
            name, x = ("mask", mask) if isinstance(top_vecs, Tensor) else ("top_vecs", top_vecs)
            raise TypeError(f"{name}: got {type(x).__name__}, wanted a torch.Tensor")
        if top_vecs.dim() != 3 or top_vecs.shape[2] != self.d_model:
            raise ValueError(f"top_vecs: got shape {tuple(top_vecs.shape)}, wanted (B, S, {self.d_model})")
        if mask.shape != top_vecs.shape[:2]:
            raise ValueError(f"mask: got shape {tuple(mask.shape)}, wanted (B, S) = {tuple(top_vecs.shape[:2])}")
        sentence = mask != 0
        if values_readable(mask) and bool((sentence & (mask != 1)).any()):
            raise ValueError("mask: got values other than 0 and 1, wanted 1 for sentences and 0 for padding")
        return sentence
