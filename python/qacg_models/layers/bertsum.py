"""The layers of BertSum (Liu, 2019): multi-head attention with a key-value cache, and the inter-sentence transformer.

Parameters have the names of its checkpoints. The attention matrix of the last head can be multiplied by a given matrix,
the predefined graph.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_kernels.call.validation import broadcasts, check_choice, check_flag, dense_tensor
from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.layers.attention import merge_heads, sdpa, softmax_map, split_heads
from qacg_models.layers.batch import check_shape
from qacg_models.utils.fields import check_integer

BLIND_QUERIES = ("zeros", "average")
# Added to the divisor of each attention row in the head with a graph, since a row sum may be 0. The published value.
GRAPH_EPSILON = 1e-9
LAYER_NORM_EPS = 1e-6
CACHE_OF = {"self": ("self_keys", "self_values"), "context": ("memory_keys", "memory_values")}


def empty_layer_cache() -> dict[str, Tensor | None]:
    """Returns an empty key-value cache for one `MultiHeadedAttention` layer.

    Example:
        >>> sorted(empty_layer_cache())
        ['memory_keys', 'memory_values', 'self_keys', 'self_values']
    """
    return {name: None for names in CACHE_OF.values() for name in names}


class MultiHeadedAttention(nn.Module):
    """Multi-head attention with the interface and the parameter names of BertSum (Liu, 2019).

    Args:
        head_count: number of heads, H.
        model_dim: width of keys, values and queries, a multiple of `head_count`.
        dropout: probability that an attention entry is dropped in training.
        use_final_linear: True: merge the heads and project them; False: return the heads.
        blind_queries: result of a query that sees no key: "zeros", or as published the "average" of all values.

    Example:
        >>> attention = MultiHeadedAttention(head_count=2, model_dim=8).eval()
        >>> x = torch.zeros(1, 5, 8)
        >>> attention(x, x, x).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        head_count: int,
        model_dim: int,
        dropout: float = 0.1,
        use_final_linear: bool = True,
        *,
        blind_queries: str = "zeros",
    ):
        super().__init__()
        check_integer("head_count", head_count, 1)
        check_integer("model_dim", model_dim, 0)  # 0 raises the next ValueError
        check_flag("use_final_linear", use_final_linear)
        if model_dim < 1 or model_dim % head_count:
            raise ValueError(f"model_dim: expected a positive multiple of head_count = {head_count}, got {model_dim}")
        check_choice("blind_queries", blind_queries, BLIND_QUERIES)
        self.blind_queries = blind_queries
        self.head_count = head_count
        self.model_dim = model_dim
        self.dim_per_head = model_dim // head_count
        self.use_final_linear = use_final_linear
        self.linear_keys = nn.Linear(model_dim, model_dim)
        self.linear_values = nn.Linear(model_dim, model_dim)
        self.linear_query = nn.Linear(model_dim, model_dim)
        self.dropout = nn.Dropout(dropout)
        if use_final_linear:
            self.final_linear = nn.Linear(model_dim, model_dim)

    def forward(
        self,
        key: Tensor | None,
        value: Tensor | None,
        query: Tensor,
        mask: Tensor | None = None,
        layer_cache: dict[str, Tensor | None] | None = None,
        type: str | None = None,
        predefined_graph_1: Tensor | None = None,
    ) -> Tensor:
        """Attends from `query` to `key` and `value`.

        Args:
            key: (B, S, model_dim), which is projected to the keys. With a cache, type "self" does not read `key`: the
                keys are projections of `query`. Type "context" projects `key` in the first call; later calls reuse the
                cached keys, and `key` may be None.
            value: of the same shape as `key`, and read in the same cases.
            query: (B, L, model_dim).
            mask: (B, L, T), or 1 in any of these dimensions; of any dtype, nonzero where a key is hidden. T is the
                number of keys, including those from the cache. None: all keys are visible.
            layer_cache: None, or a dictionary from `empty_layer_cache`, which this call fills with (B, H, T, D)
                tensors, D = model_dim / H. Type "self" appends keys and values along T; "context" projects them once
                and then reuses them.
            type: the entries of the cache to use, "self" or "context". Without a cache, `type` has no effect.
            predefined_graph_1: (B, L, T), or 1 in any of these dimensions; None: no graph. The attention matrix of the
                last head is multiplied by the graph; then each row is divided by its sum + 1e-9.

        Returns:
            The output (B, L, model_dim), or (B, H, L, D) without the final linear layer.

        Raises:
            TypeError: an argument or a cache entry has the wrong type or dtype; the message names it.
            ValueError: an argument or a cache entry has the wrong shape or value; the message names it.
        """
        if type not in (None, *CACHE_OF):
            raise ValueError(f"type: expected 'self', 'context' or None, got {type!r}")
        if layer_cache is not None and not isinstance(layer_cache, dict):
            raise TypeError(
                f"layer_cache: expected a dictionary or None, got {layer_cache.__class__.__name__}. "
                "Use empty_layer_cache()."
            )
        if layer_cache is not None and type is None:
            raise ValueError("type: expected 'self' or 'context' with a layer_cache, got None")
        check_shape("query", query, ("B", "length", self.model_dim))
        queries = split_heads(self.linear_query(query), self.head_count)
        keys, values = self._keys_and_values(key, value, query, queries, layer_cache, type)
        shape = (query.shape[0], query.shape[1], keys.shape[2])
        visible = None if mask is None else _of_all_heads("mask", mask, shape).eq(0)
        graph = None if predefined_graph_1 is None else _of_all_heads("predefined_graph_1", predefined_graph_1, shape)
        if visible is not None and self.blind_queries == "average":
            # A query of zeros has the same score for every key, so the result is the average of the values.
            blind = ~visible.any(-1, keepdim=True)
            queries, visible = queries.masked_fill(blind, 0.0), visible | blind
        heads, dropout_p = (queries, keys, values), self.dropout.p if self.training else 0.0
        if graph is None:
            out = sdpa(*heads, visible, dropout_p)
        else:
            others = sdpa(*(x[:, :-1] for x in heads), visible, dropout_p)
            out = torch.cat((others, _through_graph(*(x[:, -1:] for x in heads), visible, graph, dropout_p)), 1)
        return self.final_linear(merge_heads(out)) if self.use_final_linear else out

    def _keys_and_values(self, key, value, query, queries, layer_cache, type) -> tuple[Tensor, Tensor]:
        """Returns keys and values of all heads, (B, H, T, D) each; reads and fills the cache."""
        if layer_cache is None:
            return self._project(key, value, query.shape[0])
        names = CACHE_OF[type]
        cached = [layer_cache.get(name) for name in names]
        if cached == [None, None]:
            cached = None
        else:
            _check_heads({f"layer_cache[{name!r}]": entry for name, entry in zip(names, cached)}, queries)
            cached = [entry.to(queries.device) for entry in cached]
        if type == "self":
            keys, values = self._project(query, query, query.shape[0])
            if cached is not None:
                keys, values = torch.cat((cached[0], keys), 2), torch.cat((cached[1], values), 2)
        elif cached is None:
            keys, values = self._project(key, value, query.shape[0])
        else:
            keys, values = cached
            if key is not None:
                check_shape("key", key, (query.shape[0], "length", self.model_dim))
                if key.shape[1] != keys.shape[2]:
                    raise ValueError(
                        f"layer_cache[{names[0]!r}]: expected {key.shape[1]} keys as in `key`, got {keys.shape[2]}. "
                        "Create a new cache when `key` changes."
                    )
        layer_cache[names[0]], layer_cache[names[1]] = keys, values
        return keys, values

    def _project(self, key: Tensor, value: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        for name, x in (("key", key), ("value", value)):
            check_shape(name, x, (batch, "length", self.model_dim))
        if value.shape[1] != key.shape[1]:
            raise ValueError(f"value: expected {key.shape[1]} positions as in `key`, got {value.shape[1]}")
        projected = self.linear_keys(key), self.linear_values(value)
        return split_heads(projected[0], self.head_count), split_heads(projected[1], self.head_count)


def _check_heads(given: dict[str, object], like: Tensor) -> None:
    """Raises TypeError or ValueError unless the given tensors are (B, H, T, D), for `like` of shape (B, H, L, D)."""
    batch, heads, _, size = like.shape
    length = "T"
    for name, x in given.items():
        check_shape(name, x, (batch, heads, length, size))
        if x.dtype != like.dtype:
            raise TypeError(f"{name}: expected dtype {like.dtype}, got dtype {x.dtype}")
        length = x.shape[2]


def _of_all_heads(name: str, x: object, shape: tuple[int, int, int]) -> Tensor:
    """Returns x, which broadcasts to `shape`, with a dimension of size 1 for the heads."""
    x = dense_tensor(name, x, "a torch.Tensor or None")
    if x.dim() != 3 or not broadcasts(x.shape, shape):
        raise ValueError(
            f"{name}: expected shape (B, L, T) = {shape}, or 1 in any dimension, got shape {tuple(x.shape)}"
        )
    return x.unsqueeze(1)


def _through_graph(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, graph: Tensor, dropout_p: float
) -> Tensor:
    """Returns softmax attention of one head, (B, 1, L, D), whose matrix is multiplied by the graph (B, 1, L, T)."""
    weights = softmax_map(query, key, visible)
    # At least float32: in float16 the epsilon rounds to 0, and an empty row would be 0 / 0.
    wide = torch.promote_types(weights.dtype, torch.float32)
    kept = weights.to(wide) * graph.to(wide)
    kept = kept / (kept.sum(-1, keepdim=True) + GRAPH_EPSILON)
    return F.dropout(kept.to(weights.dtype), dropout_p, training=dropout_p > 0) @ value


class PositionwiseFeedForward(nn.Module):
    """x + dropout(W2 dropout(gelu(W1 LayerNorm(x)))), with the tanh approximation of gelu.

    Args:
        d_model: width of the input and of the output.
        d_ff: width of the hidden layer.
        dropout: dropout probability of the hidden layer and of the output.

    Example:
        >>> PositionwiseFeedForward(d_model=8, d_ff=32)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        check_integer("d_model", d_model, 1)
        check_integer("d_ff", d_ff, 1)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.dropout_1 = nn.Dropout(dropout)
        self.dropout_2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x (..., d_model), in the dtype of the weights, to the shape of x."""
        inner = self.dropout_1(F.gelu(self.w_1(self.layer_norm(x)), approximate="tanh"))
        return x + self.dropout_2(self.w_2(inner))


class PositionalEncoding(nn.Module):
    """Sinusoidal position embeddings (Vaswani et al., 2017).

    Even columns have sines, odd columns cosines. Wavelengths range from 2 pi to less than 20000 pi.

    Args:
        dropout: dropout probability of the sum of embeddings and positions.
        dim: width of the embeddings.
        max_len: number of positions in the table `pe`, a buffer (1, max_len, dim) in the state dict.

    Example:
        >>> PositionalEncoding(dropout=0.1, dim=8).eval()(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, dropout: float, dim: int, max_len: int = 5000):
        super().__init__()
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
        """Returns the first `length` position embeddings, (1, length, dim); ValueError if the table has fewer."""
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
        """
        check_shape("emb", emb, ("B", "L", self.dim))
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
        dropout: dropout probability of the attention matrix, both blocks, and the hidden layer.
        blind_queries: result of a query that sees no key, "zeros" or "average"; see `MultiHeadedAttention`.

    Example:
        >>> layer = TransformerEncoderLayer(d_model=8, heads=2, d_ff=32, dropout=0.1).eval()
        >>> hidden = torch.zeros(2, 5, 8)
        >>> layer(0, None, hidden, torch.zeros(2, 5)).shape
        torch.Size([2, 5, 8])
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
    ) -> Tensor:
        """Runs self-attention, then the feed-forward block.

        Args:
            iter: index of the layer; layer 0 applies no LayerNorm before its attention.
            query: None or the tensor `inputs`; not used, as in the published layer.
            inputs: (B, S, d_model).
            mask: (B, S) of any dtype, nonzero where a key is hidden.

        Returns:
            The hidden states (B, S, d_model).

        Raises:
            ValueError: `query` is another tensor than `inputs`.
        """
        check_integer("iter", iter, 0)
        if query is not None and query is not inputs:
            raise ValueError(
                "query: expected None or the tensor `inputs`, got another tensor. This layer is self-attention."
            )
        check_shape("inputs", inputs, ("B", "S", self.self_attn.model_dim))
        check_shape("mask", mask, tuple(inputs.shape[:2]))
        x = inputs if iter == 0 else self.layer_norm(inputs)
        attended = self.self_attn(x, x, x, mask=mask.unsqueeze(1))
        return self.feed_forward(inputs + self.dropout(attended))


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
        check_integer("num_inter_layers", num_inter_layers, 0)
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
        """Freezes the LayerNorm of layer 0, which checkpoints contain, but for whose gradient training would wait."""
        if self.num_inter_layers:
            self.transformer_inter[0].layer_norm.requires_grad_(False)

    def forward(self, top_vecs: Tensor, mask: Tensor) -> Tensor:
        """Scores every sentence in the context of the other sentences.

        Args:
            top_vecs: (B, S, d_model), one vector per sentence; S at most 5,000.
            mask: (B, S) of any dtype, 1 for a sentence and 0 for padding.

        Returns:
            The scores (B, S), 0 for padding.
        """
        return self.logits(top_vecs, mask).sigmoid() * (mask != 0)

    def logits(self, top_vecs: Tensor, mask: Tensor) -> Tensor:
        """Returns the scores before the sigmoid, (B, S), undefined at padding.

        Raises:
            ValueError: `mask` has other values than 0 and 1, which are read on the CPU and outside torch.compile only.
        """
        check_shape("top_vecs", top_vecs, ("B", "S", self.d_model))
        check_shape("mask", mask, tuple(top_vecs.shape[:2]))
        sentence = mask != 0
        if values_readable(mask) and bool((sentence & (mask != 1)).any()):
            raise ValueError("mask: expected 1 for sentences and 0 for padding, got values other than 0 and 1")
        # masked_fill instead of a product with the mask, since 0 * NaN is NaN.
        x = top_vecs.masked_fill(~sentence.unsqueeze(-1), 0.0) + self.pos_emb.positions(top_vecs.shape[1])
        for i, layer in enumerate(self.transformer_inter):
            x = layer(i, None, x, ~sentence)
        return self.wo(self.layer_norm(x)).squeeze(-1)
