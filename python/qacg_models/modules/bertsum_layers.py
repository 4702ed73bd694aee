"""The inter-sentence transformer of BertSum (Liu, 2019).

Parameters have the names of its checkpoints.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from qacg_kernels.attention_layers import check_input_dtype
from qacg_kernels.call.validation import check_choice
from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.modules.multi_headed_attention import BLIND_QUERIES, IMPLEMENTATIONS, MultiHeadedAttention
from qacg_models.utils.field_checks import check_dropout, check_integer

LAYER_NORM_EPS = 1e-6


def _check_last_dimension(name: str, x: object, width: int) -> None:
    """Raises TypeError or ValueError unless x is a tensor whose last dimension is `width`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.shape[-1:] != (width,):
        raise ValueError(f"{name}: expected shape (..., {width}), got shape {tuple(x.shape)}")


class PositionwiseFeedForward(nn.Module):
    """x + dropout(W2 dropout(gelu(W1 LayerNorm(x)))), with the tanh approximation of gelu.

    Args:
        d_model: width of the input and of the output.
        d_ff: width of the hidden layer.
        dropout: dropout probability of the hidden layer and of the output.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a width is below 1, or `dropout` is not in [0, 1].

    Example:
        >>> PositionwiseFeedForward(d_model=8, d_ff=32)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        check_integer("d_model", d_model, 1)
        check_integer("d_ff", d_ff, 1)
        check_dropout("dropout", dropout)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.dropout_1 = nn.Dropout(dropout)
        self.dropout_2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x (..., d_model) to (..., d_model).

        Returns:
            x + dropout(W2 dropout(gelu(W1 LayerNorm(x)))), in the shape of x.

        Raises:
            TypeError: `x` is not a tensor, or does not have the dtype of the weights.
            ValueError: the last dimension of `x` is not d_model.
        """
        width = self.layer_norm.normalized_shape[0]
        _check_last_dimension("x", x, width)
        check_input_dtype("x", x, self.w_1)
        inner = self.dropout_1(F.gelu(self.w_1(self.layer_norm(x)), approximate="tanh"))
        return x + self.dropout_2(self.w_2(inner))


class PositionalEncoding(nn.Module):
    """Sinusoidal position embeddings (Vaswani et al., 2017).

    Even columns have sines, odd columns cosines. Wavelengths range from 2 pi to less than 20000 pi.

    Args:
        dropout: dropout probability of the sum of embeddings and positions.
        dim: width of the embeddings.
        max_len: number of positions in the table `pe`, a buffer (1, max_len, dim) in the state dict.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `dim` or `max_len` is below 1, or `dropout` is not in [0, 1].

    Example:
        >>> PositionalEncoding(dropout=0.1, dim=8).eval()(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, dropout: float, dim: int, max_len: int = 5000):
        super().__init__()
        check_dropout("dropout", dropout)
        check_integer("dim", dim, 1)
        check_integer("max_len", max_len, 1)
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", torch.empty(1, max_len, dim))
        self.reset_table()

    @torch.no_grad()
    def reset_table(self) -> None:
        """Computes the position embeddings `pe` again, in place."""
        _, max_len, dim = self.pe.shape
        # In float64 on the CPU, since in float32 the angles of late positions have errors in the fourth digit.
        positions = torch.arange(max_len, dtype=torch.float64, device="cpu").unsqueeze(1)
        columns = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
        angles = positions * torch.exp(columns * (-math.log(10000.0) / dim))
        self.pe[0, :, 0::2] = angles.sin().to(self.pe)
        self.pe[0, :, 1::2] = angles.cos()[:, : dim // 2].to(self.pe)

    def positions(self, length: int) -> Tensor:
        """Returns the first `length` position embeddings, (1, length, dim).

        Raises:
            ValueError: the table has fewer position embeddings.
        """
        if length > self.pe.shape[1]:
            raise ValueError(
                f"length: expected at most max_len = {self.pe.shape[1]} positions, one per sentence, got {length}. "
                "Shorten the documents."
            )
        return self.pe[:, :length]

    def forward(self, emb: Tensor, step: int | None = None) -> Tensor:
        """Returns dropout(emb * sqrt(dim) + positions), (B, L, dim).

        Args:
            emb: (B, L, dim).
            step: the position of every vector in `emb`, at least 0; None: the vectors have the positions 0 to L - 1.

        Raises:
            TypeError: `emb` is not a tensor, or `step` is not an integer.
            ValueError: `emb` has another shape, or a position is negative or not below max_len.
        """
        _check_last_dimension("emb", emb, self.dim)
        if emb.dim() != 3:
            raise ValueError(f"emb: expected shape (B, L, {self.dim}), got shape {tuple(emb.shape)}")
        if step is None:
            table = self.positions(emb.shape[1])
        else:
            check_integer("step", step, 0, below=self.pe.shape[1])
            table = self.pe[:, step : step + 1]
        return self.dropout(emb * math.sqrt(self.dim) + table)


class TransformerEncoderLayer(GradientCheckpointingLayer):
    """Pre-norm transformer layer: self-attention and feed-forward block with residuals.

    Args:
        d_model: width of the input, a multiple of `heads`.
        heads: number of attention heads.
        d_ff: width of the hidden layer of the feed-forward block.
        dropout: dropout probability of the attention matrix, of the outputs of both blocks, and of the hidden layer of
            the feed-forward block.
        blind_queries: result of a query that sees no key, "zeros" or "average"; see `MultiHeadedAttention`.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.

    Example:
        >>> layer = TransformerEncoderLayer(d_model=8, heads=2, d_ff=32, dropout=0.1).eval()
        >>> hidden = torch.zeros(2, 5, 8)
        >>> layer(0, None, hidden, torch.zeros(2, 5)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float, *, blind_queries: str = "zeros"):
        super().__init__()
        check_integer("d_model", d_model, 1)
        check_integer("heads", heads, 1)
        if d_model % heads:
            raise ValueError(f"d_model: expected a multiple of heads = {heads}, got {d_model}")
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
        """Runs self-attention, then the feed-forward block.

        Args:
            iter: index of the layer; layer 0 applies no LayerNorm before its attention.
            query: None or the tensor `inputs`; not used. The published layer has this argument, and ignores it too.
            inputs: (B, S, d_model).
            mask: (B, S) of any dtype, nonzero where a key is hidden.
            attn_implementation: "sdpa" or "eager".
            output_attentions: also return the attention matrix.

        Returns:
            The hidden states (B, S, d_model); with output_attentions a pair of the hidden states and the attention
            matrix (B, heads, S, S) after dropout.

        Raises:
            TypeError: `inputs` or `mask` is not a tensor, `inputs` does not have the dtype of the weights, or `iter` is
                not an integer.
            ValueError: `iter` is negative, `query` is another tensor than `inputs`, `inputs` or `mask` has the wrong
                shape, or `attn_implementation` is unknown.
        """
        check_integer("iter", iter, 0)
        if query is not None and query is not inputs:
            raise ValueError(
                "query: expected None or the tensor `inputs`, got another tensor. This layer is self-attention."
            )
        for name, t in (("inputs", inputs), ("mask", mask)):
            if not isinstance(t, Tensor):
                raise TypeError(f"{name}: expected a torch.Tensor, got {type(t).__name__}")
        width = self.self_attn.model_dim
        if inputs.dim() != 3 or inputs.shape[-1] != width:
            raise ValueError(f"inputs: expected shape (B, S, {width}), got {tuple(inputs.shape)}")
        if mask.shape != inputs.shape[:2]:
            raise ValueError(f"mask: expected shape (B, S) = {tuple(inputs.shape[:2])}, got {tuple(mask.shape)}")
        check_input_dtype("inputs", inputs, self.self_attn.linear_query)
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
        scores: sigmoid(logits), (B, S); 0 at padding.
        logits: (B, S); undefined at padding.
        attentions: attention matrix of each layer after dropout, (B, heads, S, S); None unless requested.

    Example:
        >>> TransformerInterEncoderOutput(scores=torch.zeros(2, 5)).keys()
        odict_keys(['scores'])
    """

    scores: Tensor | None = None
    logits: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransformerInterEncoder(nn.Module):
    """Computes the scores of sentences from their vectors by a transformer over the sentences.

    The modules are position embeddings, transformer layers, LayerNorm, a linear layer and a sigmoid.

    Args:
        d_model: width of the sentence vectors, a multiple of `heads`.
        d_ff: width of the hidden layer of the feed-forward blocks.
        heads: number of attention heads.
        dropout: dropout probability in the layers.
        num_inter_layers: number of layers; with 0, only positions, LayerNorm and the linear classifier remain.
        blind_queries: result of a query that sees no key, "zeros" or "average"; see `MultiHeadedAttention`.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.

    Example:
        >>> encoder = TransformerInterEncoder(d_model=8, d_ff=32, heads=2, dropout=0.1, num_inter_layers=1).eval()
        >>> encoder(torch.zeros(2, 5, 8), torch.ones(2, 5)).shape
        torch.Size([2, 5])
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
        for name, size in (("d_model", d_model), ("d_ff", d_ff), ("heads", heads)):
            check_integer(name, size, 1)
        check_dropout("dropout", dropout)
        check_integer("num_inter_layers", num_inter_layers, 0)
        if d_model % heads:
            raise ValueError(f"d_model: expected a multiple of heads = {heads}, got {d_model}")
        check_choice("blind_queries", blind_queries, BLIND_QUERIES)
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
        """Freezes the LayerNorm of layer 0, which checkpoints contain but the layer does not use.

        If it were trainable, distributed training would wait for its gradient.
        """
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
        """Scores every sentence in the context of the other sentences.

        Args:
            top_vecs: (B, S, d_model), one vector per sentence; S at most 5,000.
            mask: (B, S) of any dtype, 1 for a sentence and 0 for padding.
            attn_implementation: "sdpa" or "eager".
            output_attentions: also return attention matrices; requires `return_dict`.
            return_dict: return a `TransformerInterEncoderOutput`.

        Returns:
            The scores (B, S), 0 for padding; with return_dict a `TransformerInterEncoderOutput`.

        Raises:
            TypeError: `top_vecs` or `mask` is not a tensor, or the sum of `top_vecs` and positions has another dtype
                than the weights.
            ValueError: an argument has the wrong shape or value, or S exceeds 5,000. Values of `mask` are
                checked on the CPU and outside torch.compile only.
        """
        if output_attentions and not return_dict:
            raise ValueError(
                "output_attentions: expected False without return_dict=True, got True. Pass return_dict=True too."
            )
        check_choice("attn_implementation", attn_implementation, IMPLEMENTATIONS)
        sentence = self._sentences(top_vecs, mask)
        # masked_fill instead of a product with the mask, since 0 * NaN is NaN.
        x = top_vecs.masked_fill(~sentence.unsqueeze(-1), 0.0) + self.pos_emb.positions(top_vecs.shape[1])
        check_input_dtype("top_vecs", x, self.wo)  # x, since adding positions widens inputs of a narrower dtype
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
        """Checks the arguments of `forward`; returns the mask as booleans, True for a sentence."""
        if not isinstance(top_vecs, Tensor) or not isinstance(mask, Tensor):
            name, x = ("mask", mask) if isinstance(top_vecs, Tensor) else ("top_vecs", top_vecs)
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if top_vecs.dim() != 3 or top_vecs.shape[2] != self.d_model:
            raise ValueError(f"top_vecs: expected shape (B, S, {self.d_model}), got shape {tuple(top_vecs.shape)}")
        if mask.shape != top_vecs.shape[:2]:
            raise ValueError(
                f"mask: expected shape (B, S) = {tuple(top_vecs.shape[:2])}, got shape {tuple(mask.shape)}"
            )
        sentence = mask != 0
        if values_readable(mask) and bool((sentence & (mask != 1)).any()):
            raise ValueError("mask: expected 1 for sentences and 0 for padding, got values other than 0 and 1")
        return sentence
