"""BertSum's multi-head attention: softmax attention with a key-value cache.

The attention matrix of the last head can be multiplied by a given matrix, the predefined graph.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qacg_kernels.attention_layers import check_input_dtype
from qacg_kernels.call.validation import broadcasts, check_choice, check_flag, dense_tensor
from qacg_models.modules.softmax_attention import softmax_attention, softmax_map
from qacg_models.utils.field_checks import check_dropout, check_integer

IMPLEMENTATIONS = ("sdpa", "eager")
BLIND_QUERIES = ("zeros", "average")
# Added to the divisor of each attention row in the head with a graph, since a row sum may be 0. The published value.
GRAPH_EPSILON = 1e-9
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
            (The published code sets the scores of hidden keys to -1e18, so all scores of such a query are equal.)

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `model_dim` is not a multiple of `head_count`, one of the two is not positive, `dropout` is not in
            [0, 1], or `blind_queries` is unknown.

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
        check_dropout("dropout", dropout)
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
        *,
        attn_implementation: str = "sdpa",
        output_attentions: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attends from `query` to `key` and `value`.

        Args:
            key: (B, S, model_dim), which is projected to the keys. With a cache, its use depends on `type`. Type "self"
                does not read `key`: the keys are projections of `query`. Type "context" projects `key` in the first
                call. Later calls reuse the cached keys; `key` may then be None, otherwise its shape is checked. With
                type None, `key` must be the projected and split keys, (B, H, T, D) with D = model_dim / H.
            value: of the same shape as `key`, and read in the same cases, except that later calls of type "context"
                ignore it.
            query: (B, L, model_dim).
            mask: (B, L, T), or 1 in any of these dimensions; of any dtype, nonzero where a key is hidden. T is the
                number of keys, including those from the cache. For queries that see no key, see `blind_queries`. None:
                all keys are visible.
            layer_cache: None, or a dictionary from `empty_layer_cache`, which this call fills with (B, H, T, D)
                tensors. Type "self" appends keys and values along T; "context" projects them once and then reuses them.
            type: the entries of the cache to use, "self" or "context". With a cache, None means that key, value and
                query are already projected; the cache stays unchanged. Without a cache, `type` has no effect.
            predefined_graph_1: (B, L, T), or 1 in any of these dimensions; None: no graph. The attention matrix of the
                last head is multiplied by the graph; then each row is divided by its sum + 1e-9.
            attn_implementation: "sdpa" for PyTorch's fused attention, "eager" for plain operations.
            output_attentions: also return the attention matrix (B, H, L, T) after dropout.

        Returns:
            The output (B, L, model_dim), or (B, H, L, D) without the final linear layer; with output_attentions a pair
            of the output and the attention matrix.

        Raises:
            TypeError: an argument or a cache entry has the wrong type or dtype; the message names it.
            ValueError: an argument or a cache entry has the wrong shape or value; the message names it.
        """
        if attn_implementation not in IMPLEMENTATIONS:
            known = ", ".join(map(repr, IMPLEMENTATIONS))
            raise ValueError(f"attn_implementation: expected one of {known}, got {attn_implementation!r}")
        if type not in (None, *CACHE_OF):
            raise ValueError(f"type: expected 'self', 'context' or None, got {type!r}")
        if layer_cache is not None and not isinstance(layer_cache, dict):
            raise TypeError(
                f"layer_cache: expected a dictionary or None, got {layer_cache.__class__.__name__}. "
                "Use empty_layer_cache()."
            )
        self._check_width("query", query, None)
        projected = layer_cache is not None and type is None
        if not projected:
            check_input_dtype("query", query, self.linear_query)
        queries = self._split(query if projected else self.linear_query(query))
        keys, values = self._keys_and_values(key, value, query, queries, layer_cache, type)
        shape = (query.shape[0], query.shape[1], keys.shape[2])
        visible = None if mask is None else _broadcastable("mask", mask, shape).eq(0).unsqueeze(1)
        graph = None
        if predefined_graph_1 is not None:
            graph = _broadcastable("predefined_graph_1", predefined_graph_1, shape).unsqueeze(1)
        if visible is not None and self.blind_queries == "average":
            # A query of zeros has the same score for every key, so the result is the average of the values.
            blind = ~visible.any(-1, keepdim=True)
            queries, visible = queries.masked_fill(blind, 0.0), visible | blind
        dropout_p = self.dropout.p if self.training else 0.0
        if output_attentions or attn_implementation == "eager":
            out, weights = _plain(queries, keys, values, visible, graph, dropout_p)
        elif graph is None:
            out, weights = _fused(queries, keys, values, visible, dropout_p), None
        else:
            heads = [
                _fused(queries[:, :-1], keys[:, :-1], values[:, :-1], visible, dropout_p),
                _plain(queries[:, -1:], keys[:, -1:], values[:, -1:], visible, graph, dropout_p)[0],
            ]
            out, weights = torch.cat(heads, 1), None
        if self.use_final_linear:
            out = self.final_linear(out.transpose(1, 2).flatten(2))
        return (out, weights) if output_attentions else out

    def _keys_and_values(self, key, value, query, queries, layer_cache, type) -> tuple[Tensor, Tensor]:
        """Returns keys and values of all heads, (B, H, T, D) each; reads and fills the cache."""
        if layer_cache is None:
            return self._project(key, value, query.shape[0])
        if type is None:
            hint = ". With a layer_cache and type None, keys and values must be projected and split already."
            _check_heads({"key": key, "value": value}, queries, hint)
            return key, value
        names = CACHE_OF[type]
        cached = _cached(layer_cache, names, queries)
        if type == "self":
            keys, values = self._project(query, query, query.shape[0])
            if cached is not None:
                keys, values = torch.cat((cached[0], keys), 2), torch.cat((cached[1], values), 2)
        elif cached is None:
            keys, values = self._project(key, value, query.shape[0])
        else:
            keys, values = cached
            if key is not None:
                self._check_width("key", key, query.shape[0])
            if key is not None and key.shape[1] != keys.shape[2]:
                raise ValueError(
                    f"layer_cache[{names[0]!r}]: expected {key.shape[1]} keys as in `key`, got {keys.shape[2]}. "
                    "Create a new cache when `key` changes."
                )
        layer_cache[names[0]], layer_cache[names[1]] = keys, values
        return keys, values

    def _project(self, key: Tensor, value: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        self._check_width("key", key, batch)
        self._check_width("value", value, batch)
        if value.shape[1] != key.shape[1]:
            raise ValueError(f"value: expected {key.shape[1]} positions as in `key`, got {value.shape[1]}")
        check_input_dtype("key", key, self.linear_keys)
        check_input_dtype("value", value, self.linear_values)
        return self._split(self.linear_keys(key)), self._split(self.linear_values(value))

    def _split(self, x: Tensor) -> Tensor:
        """Returns x (B, L, model_dim) as (B, H, L, D)."""
        return x.unflatten(-1, (self.head_count, self.dim_per_head)).transpose(1, 2)

    def _check_width(self, name: str, x: object, batch: int | None) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {x.__class__.__name__}")
        if x.dim() != 3 or x.shape[2] != self.model_dim or (batch is not None and x.shape[0] != batch):
            expected = f"({'B' if batch is None else batch}, length, {self.model_dim})"
            raise ValueError(f"{name}: expected shape {expected}, got shape {tuple(x.shape)}")


def _cached(layer_cache: dict, names: tuple[str, str], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Returns two entries of a cache, (B, H, T, D) each; None if both are empty.

    Args:
        layer_cache: the cache.
        names: names of the entries of keys and values.
        like: (B, H, L, D), whose B, H, D and dtype are expected. The result is on its device.

    Raises:
        TypeError: an entry is not a tensor, or has another dtype.
        ValueError: the cache lacks one of the entries, or an entry has another shape.
    """
    missing = [name for name in names if name not in layer_cache]
    if missing:
        raise ValueError(
            f"layer_cache: expected the keys {', '.join(map(repr, missing))}, got a dictionary without them. "
            "Use empty_layer_cache()."
        )
    entries = tuple(layer_cache[name] for name in names)
    if entries == (None, None):
        return None
    _check_heads({f"layer_cache[{name!r}]": entry for name, entry in zip(names, entries)}, like)
    return tuple(entry.to(like.device) for entry in entries)


def _check_heads(given: dict[str, object], like: Tensor, hint: str = "") -> None:
    """Checks that keys and values have the shape (B, H, T, D) with the same T.

    Args:
        given: keys and values by their names in messages.
        like: (B, H, L, D), whose B, H, D and dtype are expected.
        hint: advice at the end of a message about a shape.

    Raises:
        TypeError: an element of `given` is not a tensor, or has another dtype.
        ValueError: an element of `given` has another shape.
    """
    batch, heads, _, size = like.shape
    length = None
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        good = x.dim() == 4 and (x.shape[0], x.shape[1], x.shape[3]) == (batch, heads, size)
        if not good or (length is not None and x.shape[2] != length):
            expected = ", ".join(map(str, (batch, heads, "T" if length is None else length, size)))
            raise ValueError(f"{name}: expected shape ({expected}), got shape {tuple(x.shape)}{hint}")
        if x.dtype != like.dtype:
            raise TypeError(f"{name}: expected dtype {like.dtype}, got dtype {x.dtype}")
        length = x.shape[2]


def _broadcastable(name: str, x: object, shape: tuple[int, int, int]) -> Tensor:
    x = dense_tensor(name, x, "a torch.Tensor or None")
    if x.dim() != 3 or not broadcasts(x.shape, shape):
        raise ValueError(
            f"{name}: expected shape (B, L, T) = {shape}, or 1 in any dimension, got shape {tuple(x.shape)}"
        )
    return x


def _fused(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, dropout_p: float) -> Tensor:
    """Returns softmax attention by PyTorch's fused operator.

    `query` is (B, H, L, D), `key` and `value` are (B, H, T, D). `visible` is None, or boolean and broadcastable to
    (B, H, L, T), True where attention is allowed.
    """
    options = {"dropout_p": dropout_p, "implementation": "sdpa", "want_map": False}
    return softmax_attention(query, key, value, visible, **options)[0]


def _plain(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, graph: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Returns softmax attention by plain operations, and the attention matrix after dropout.

    `graph`, None or broadcastable to (B, 1, L, T), multiplies the matrix of the last head.
    """
    weights = softmax_map(query, key, visible)
    if graph is not None:
        # At least float32: in float16 the epsilon rounds to 0, and an empty row would be 0 / 0.
        wide = torch.promote_types(weights.dtype, torch.float32)
        last = weights[:, -1:].to(wide) * graph.to(wide)
        last = last / (last.sum(-1, keepdim=True) + GRAPH_EPSILON)
        weights = torch.cat((weights[:, :-1], last.to(weights.dtype)), 1)
    weights = F.dropout(weights, dropout_p, training=dropout_p > 0)
    return weights @ value, weights
