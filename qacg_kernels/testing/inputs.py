"""Test cases of calls, and their tensors: seeded values in many memory layouts, with all kinds of masks."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import GATE_PARAMETERS, cast_mask, row_dtype

WIDE = ("query", "key", "value", "context_query", "context_key")
VECTORS = tuple(name.replace("_", ".", 1) for name in GATE_PARAMETERS[:4])
BIASES = tuple(name.replace("_", ".", 1) for name in GATE_PARAMETERS[4:])


@dataclass(frozen=True)
class Case:
    """Describes a call: `batch`, `heads`, `queries`, `keys` and `head_dim` are B, H, L, S and D.

    `name` determines the random values. If `keys` is None, S = L. If `sequences` gives the lengths of sequences, the
    call is packed, and `batch`, `queries`, `keys`, `mask` and `key_lengths` have no effect.
    """

    name: str
    batch: int = 2
    heads: int = 3
    queries: int = 17
    keys: int | None = None
    head_dim: int = 16
    sequences: tuple[int, ...] | None = None
    gate: str = "lambda"  # or gate vectors: "shared" for (D), "one_row" for (1, D), "per_head" for (H, D)
    bias: str | None = None  # query_bias and key_bias beside vectors: "shared" for (), "one_row" (1), "per_head" (H)
    context_bias: str | None = None  # context_query_bias and context_key_bias, likewise
    float32_gate: bool = False  # the gate's parameters are float32 in a call in 16 bits
    form: str = "row"
    beta: float = 1.0
    gamma: float = 1.0
    mask: str | None = None  # a key of MASKS
    key_lengths: tuple[int, ...] | None = None
    is_causal: bool = False
    dropout_p: float = 0.0
    scale: float | None = None
    quasi_scale: float = 1.0
    quasi_bias: str | None = None  # a key of QUASI_BIASES
    layout: str = "contiguous"  # a key of LAYOUTS
    score_size: float = 1.0  # factor on query and context_query, hence on the scores
    constant: bool = False  # each tensor of WIDE has equal elements, so all scores of a row are equal
    lambda_gradient: bool = False  # the returned lambda has an upstream gradient too

    @property
    def key_count(self) -> int:
        """S, the number of keys."""
        return self.queries if self.keys is None else self.keys

    @property
    def returns_lambda(self) -> bool:
        """Whether the call returns lambda for comparison: the kernel computes it, and it has one value per query."""
        return self.gate != "lambda" and self.form == "row"


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case in one dtype."""

    case: Case
    tensors: dict[str, Tensor]  # differentiable, by name: WIDE, and "lambda" or VECTORS and perhaps BIASES
    options: dict[str, object]  # keyword arguments of the call, except `backend` and `return_lambda`
    grad_out: Tensor
    grad_lambda: Tensor | None  # None unless the case has `lambda_gradient`

    def gate(self, tensors: dict[str, Tensor] | None = None) -> Tensor | GateParameters:
        """The argument `gate` of the call, made of `tensors`, or of `self.tensors` when None."""
        tensors = self.tensors if tensors is None else tensors
        if "lambda" in tensors:
            return tensors["lambda"]
        fields = {name.removeprefix("gate."): tensors.get(name) for name in (*VECTORS, *BIASES)}
        return GateParameters(**fields, beta=self.case.beta, gamma=self.case.gamma, form=self.case.form)

    def arguments(self, tensors: dict[str, Tensor] | None = None) -> tuple:
        """The positional arguments of the call, made of `tensors`, or of `self.tensors` when None."""
        tensors = self.tensors if tensors is None else tensors
        return *(tensors[name] for name in WIDE), self.gate(tensors)

    def to(self, dtype: torch.dtype) -> "Inputs":
        """Returns a copy with all float tensors in another dtype; keys that an additive mask hides stay hidden.

        `quasi_bias` becomes float32, or float64 if `dtype` is float64.
        """

        def cast(t, name=""):
            if name.startswith("gate.") and self.case.float32_gate:
                return t.to(torch.promote_types(dtype, torch.float32))
            return t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t

        options = {name: cast(t) for name, t in self.options.items()}
        if "quasi_bias" in options:
            options["quasi_bias"] = self.options["quasi_bias"].to(row_dtype(cast(self.tensors["query"])))
        mask = self.options.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            options["attn_mask"] = cast_mask(mask, dtype)
        return replace(
            self,
            tensors={name: cast(t, name) for name, t in self.tensors.items()},
            options=options,
            grad_out=cast(self.grad_out),
            grad_lambda=cast(self.grad_lambda),
        )


# Layouts: each function allocates `count` tensors of shape (B, H, N, D), or (T, H, D) when packed, with its strides.


def _contiguous(count, shape):
    return [torch.empty(shape, dtype=torch.float64) for _ in range(count)]


def _heads_inside(count, shape):
    """Tensors that are (B, N, H, D) in memory, as linear projections produce them."""
    if len(shape) == 3:
        return _contiguous(count, shape)
    batch, heads, rows, head_dim = shape
    return [t.transpose(1, 2) for t in _contiguous(count, (batch, rows, heads, head_dim))]


def _fused_projection(count, shape):
    """Tensors that are slices of one buffer (B, N, count * H * D), or (T, count * H * D) when packed."""
    if len(shape) == 3:
        return list(torch.empty(shape[0], count, *shape[1:], dtype=torch.float64).unbind(1))
    batch, heads, rows, head_dim = shape
    return list(torch.empty(batch, rows, count, heads, head_dim, dtype=torch.float64).permute(2, 0, 3, 1, 4))


def _rows_first(count, shape):
    """Tensors that are (N, B, H, D) in memory, or (H, T, D) when packed."""
    if len(shape) == 3:
        return [t.transpose(0, 1) for t in _contiguous(count, (shape[1], shape[0], shape[2]))]
    batch, heads, rows, head_dim = shape
    return [t.permute(1, 2, 0, 3) for t in _contiguous(count, (rows, batch, heads, head_dim))]


def _strided(count, shape):
    """Tensors with a stride of 2 in D and an odd stride in the dimension before, so that rows are not aligned."""
    wide = (*shape[:-2], shape[-2] + 3, 2 * shape[-1] + 1)
    return [t[..., 2 : 2 + shape[-2], 1::2] for t in _contiguous(count, wide)]


def _shared_heads(count, shape):
    """Tensors in which all heads share the memory of one head: the stride in H is 0."""
    head = -2 if len(shape) == 3 else 1
    one = [n if d != head % len(shape) else 1 for d, n in enumerate(shape)]
    return [t.expand(shape) for t in _contiguous(count, one)]


LAYOUTS: dict[str, Callable[[int, tuple[int, ...]], list[Tensor]]] = {
    "contiguous": _contiguous,
    "heads_inside": _heads_inside,
    "fused_projection": _fused_projection,
    "rows_first": _rows_first,
    "strided": _strided,
    "shared_heads": _shared_heads,
}


def lay_like(values: Tensor, like: Tensor) -> Tensor:
    """Returns a copy of values with the strides and the storage offset of `like` and NaN in the gaps.

    If `like`, of the same shape, has stride 0 in a dimension, only index 0 of that dimension is copied.
    """
    extent = 1 + sum((n - 1) * stride for n, stride in zip(like.shape, like.stride())) if like.numel() else 0
    memory = values.new_full((like.storage_offset() + extent,), torch.nan)
    placed = memory.as_strided(like.shape, like.stride(), like.storage_offset())
    owned = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in like.stride())
    placed[owned].copy_(values[owned])
    return placed


# Masks: each function takes the shape (B, H, L, S) and a generator and returns a mask, boolean or floating.
Shape4 = tuple[int, int, int, int]


def _boolean(shape: Shape4, generator) -> Tensor:
    batch, _, queries, keys = shape
    return torch.rand(batch, 1, queries, keys, generator=generator) < 0.7


def _boolean_empty_rows(shape: Shape4, generator) -> Tensor:
    """A random mask, different for each query, in which queries 0, 5, 10, ... see no key."""
    seen = torch.rand(shape, generator=generator) < 0.5
    seen[:, :, ::5] = False
    return seen


def _boolean_keys(shape: Shape4, generator) -> Tensor:
    lengths = torch.randint(1, shape[3] + 1, (shape[0], 1, 1, 1), generator=generator)
    return torch.arange(shape[3]) < lengths


def _boolean_keys_within(shape: Shape4, generator) -> Tensor:
    """A mask that is the same for all queries: hides the first third of the keys, and a tenth of the rest at random."""
    batch, _, _, keys = shape
    seen = torch.rand(batch, 1, 1, keys, generator=generator) < 0.9
    return seen & (torch.arange(keys) >= keys // 3)


def _additive_keys(shape: Shape4, generator) -> Tensor:
    """An additive mask that is the same for all queries: random at few keys, -inf at the last quarter, else 0."""
    batch, _, _, keys = shape
    size = _additive(batch, 1, 1, keys, generator=generator)
    single = torch.rand(batch, 1, 1, keys, generator=generator) < 0.02
    return (size * single).masked_fill(torch.arange(keys) >= keys - keys // 4, -torch.inf)


def _additive(*dims: int, generator) -> Tensor:
    return torch.randn(dims, generator=generator, dtype=torch.float64)


def _hiding(value: float) -> Callable[[Shape4, torch.Generator], Tensor]:
    def mask(shape: Shape4, generator) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64).masked_fill(~_boolean_empty_rows(shape, generator), value)

    return mask


# A marker, which `make_inputs` replaces by the lowest finite number of the case's dtype.
_LOWEST = torch.finfo(torch.float64).min


MASKS: dict[str, Callable[[Shape4, torch.Generator], Tensor]] = {
    "boolean": _boolean,
    "boolean_empty_rows": _boolean_empty_rows,
    "boolean_keys": _boolean_keys,
    "boolean_expanded": lambda shape, g: _boolean_keys(shape, g).expand(shape),
    "boolean_keys_within": _boolean_keys_within,
    "boolean_two_dims": lambda shape, g: torch.rand(shape[2:], generator=g) < 0.8,
    "none_visible": lambda shape, g: torch.zeros(shape[0], 1, 1, shape[3], dtype=torch.bool),
    "additive": lambda shape, g: _additive(1, *shape[1:], generator=g),
    "additive_row": lambda shape, g: _additive(shape[3], generator=g),
    "additive_keys": _additive_keys,
    "additive_queries": lambda shape, g: _additive(shape[0], 1, shape[2], 1, generator=g),
    "minus_10000": lambda shape, g: ~_boolean_keys(shape, g) * -10000.0,
    "minus_10000_all": lambda shape, g: torch.full((shape[0], 1, 1, shape[3]), -10000.0),
    "plus_300": lambda shape, g: torch.full((shape[0], 1, 1, shape[3]), 300.0),
    "minus_infinity": _hiding(-torch.inf),
    "lowest": _hiding(_LOWEST),
}


# Functions from lambda's shape, (B, H, L) or packed (T, H), to the shape of a quasi_bias, without leading ones.
QUASI_BIASES: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "one": lambda rows: (),
    "per_query": lambda rows: rows,
    "per_head": lambda rows: rows[1:2] + (1,) * (len(rows) - 2),
    "per_sequence": lambda rows: (rows[0], *(1 for _ in rows[1:])),
}


def make_inputs(case: Case, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Inputs:
    """Returns the tensors of a case, whose name is the seed: the same values, up to rounding, in any dtype."""
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    packed = case.sequences is not None
    lead = (sum(case.sequences),) if packed else (case.batch, case.heads)

    def shape(rows: int) -> tuple[int, ...]:
        return (*lead, case.heads, case.head_dim) if packed else (*lead, rows, case.head_dim)

    def filled(t: Tensor, size: float = 1.0) -> Tensor:
        values = torch.full(t.shape, 0.5) if case.constant else torch.randn(t.shape, generator=generator)
        return lay_like((size * values).to(device, dtype), t)

    def vector(*dims: int, size: float = 1.0, dtype: torch.dtype = dtype) -> Tensor:
        values = (size * torch.randn(dims, generator=generator, dtype=torch.float64)).to(device, dtype)
        return values.repeat_interleave(2, -1)[..., ::2] if case.layout == "strided" and dims else values

    lay_out = LAYOUTS[case.layout]
    per_query = [filled(t, case.score_size) for t in lay_out(2, shape(case.queries))]
    per_key = [filled(t) for t in lay_out(3, shape(case.key_count))]
    tensors = dict(zip(WIDE, (per_query[0], *per_key[:2], per_query[1], per_key[2])))

    row_shape = per_query[0].shape[:-1]
    if case.gate == "lambda":
        # With the layout's order of rows and heads in memory, like the other tensors.
        rows = torch.empty_like(per_query[0][..., 0], memory_format=torch.preserve_format)
        rows.copy_(2 * torch.rand(row_shape, generator=generator) - 1)
        tensors["lambda"] = rows
    else:
        heads = {"shared": (), "one_row": (1,), "per_head": (case.heads,)}
        gate_dtype = torch.promote_types(dtype, torch.float32) if case.float32_gate else dtype
        for name in VECTORS:
            tensors[name] = vector(*heads[case.gate], case.head_dim, size=case.head_dim**-0.5, dtype=gate_dtype)
        for name in BIASES:
            if (bias := case.context_bias if "context" in name else case.bias) is not None:
                tensors[name] = vector(*heads[bias], size=0.5, dtype=gate_dtype)

    options: dict[str, object] = dict(
        is_causal=case.is_causal, dropout_p=case.dropout_p, scale=case.scale, quasi_scale=case.quasi_scale
    )
    if case.dropout_p > 0:
        seed = torch.randint(0, 2**62, (), generator=generator, dtype=torch.int64)
        options["dropout_seed"] = seed.to(device)
    if case.quasi_bias is not None:
        sizes = QUASI_BIASES[case.quasi_bias](tuple(row_shape))
        # Rounded to float32, so that it is the same number for all dtypes.
        drawn = 2 * torch.randn(sizes, generator=generator) - 2
        options["quasi_bias"] = drawn.to(device, row_dtype(tensors["query"]))
    if packed:
        offsets = [0, *torch.tensor(case.sequences).cumsum(0).tolist()]
        options["cu_seqlens"] = torch.tensor(offsets, dtype=torch.int32, device=device)
        options["max_seqlen"] = max(case.sequences, default=0)
    else:
        if case.mask is not None:
            sizes = (case.batch, case.heads, case.queries, case.key_count)
            mask = MASKS[case.mask](sizes, generator)
            if mask.dtype != torch.bool:
                mask = mask.to(dtype).masked_fill(mask == _LOWEST, torch.finfo(dtype).min)
            options["attn_mask"] = mask.to(device)
        if case.key_lengths is not None:
            options["key_lengths"] = torch.tensor(case.key_lengths, dtype=torch.int64, device=device)
    return Inputs(
        case,
        tensors,
        options,
        grad_out=filled(lay_out(1, shape(case.queries))[0]),
        grad_lambda=vector(*row_shape) if case.lambda_gradient else None,
    )
