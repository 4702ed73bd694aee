"""Calls as data and the tensors for them: seeded values in awkward layouts, masks of every kind."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.masks import cast_mask

WIDE = ("query", "key", "value", "context_query", "context_key")
VECTORS = ("gate.query", "gate.context_query", "gate.key", "gate.context_key")
BIASES = ("gate.query_bias", "gate.key_bias")


@dataclass(frozen=True)
class Case:
    """A call to be made, as data. Sizes are B, H, L, S (None: L) and D; `sequences` makes a packed call."""

    name: str
    batch: int = 2
    heads: int = 3
    queries: int = 17
    keys: int | None = None
    head_dim: int = 16
    sequences: tuple[int, ...] | None = None
    gate: str = "lambda"  # or "shared" for vectors (D), "per_head" for (H, D)
    bias: str | None = None  # or "shared" for (), "per_head" for (H)
    form: str = "row"
    beta: float = 1.0
    gamma: float = 1.0
    mask: str | None = None  # a key of MASKS
    key_lengths: tuple[int, ...] | None = None
    is_causal: bool = False
    dropout_p: float = 0.0
    scale: float | None = None
    quasi_scale: float = 1.0
    layout: str = "contiguous"  # a key of LAYOUTS
    score_size: float = 1.0  # factor on query and context_query, so on the scores
    constant: bool = False  # all tensors constant: every score of a row is equal
    lambda_gradient: bool = False  # let a gradient arrive through return_lambda too

    @property
    def key_count(self) -> int:
        """S, the number of keys."""
        return self.queries if self.keys is None else self.keys

    @property
    def returns_lambda(self) -> bool:
        """Whether lambda is an output worth comparing: computed by the kernel, one per row."""
        return self.gate != "lambda" and self.form == "row"


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case in one dtype, by name, and the upstream gradients."""

    case: Case
    tensors: dict[str, Tensor]
    options: dict[str, object]
    grad_out: Tensor
    grad_lambda: Tensor | None

    def gate(self, tensors: dict[str, Tensor] | None = None) -> Tensor | GateParameters:
        """The gate argument, from `tensors` in place of the case's own where given."""
        tensors = self.tensors if tensors is None else tensors
        if "lambda" in tensors:
            return tensors["lambda"]
        fields = {name.removeprefix("gate."): tensors.get(name) for name in (*VECTORS, *BIASES)}
        return GateParameters(**fields, beta=self.case.beta, gamma=self.case.gamma, form=self.case.form)

    def arguments(self, tensors: dict[str, Tensor] | None = None) -> tuple:
        """Positional arguments of the call."""
        tensors = self.tensors if tensors is None else tensors
        return *(tensors[name] for name in WIDE), self.gate(tensors)

    def to(self, dtype: torch.dtype) -> "Inputs":
        """The same values in another dtype; what a mask hides stays hidden."""

        def cast(t):
            return t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t

        options = {name: cast(t) for name, t in self.options.items()}
        mask = self.options.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            options["attn_mask"] = cast_mask(mask, dtype)
        return replace(
            self,
            tensors={name: cast(t) for name, t in self.tensors.items()},
            options=options,
            grad_out=cast(self.grad_out),
            grad_lambda=cast(self.grad_lambda),
        )


# Layouts: how `count` tensors of logical shape (B, H, N, D), or (T, H, D) when packed, lie in memory.


def _contiguous(count, shape):
    return [torch.empty(shape, dtype=torch.float64) for _ in range(count)]


def _heads_inside(count, shape):
    """Each (B, N, H, D) in memory, as a projection gives them."""
    if len(shape) == 3:
        return _contiguous(count, shape)
    batch, heads, rows, head_dim = shape
    return [t.transpose(1, 2) for t in _contiguous(count, (batch, rows, heads, head_dim))]


def _fused_projection(count, shape):
    """All of them slices of one (B, N, count * H * D) buffer."""
    if len(shape) == 3:
        return list(torch.empty(shape[0], count, *shape[1:], dtype=torch.float64).unbind(1))
    batch, heads, rows, head_dim = shape
    return list(torch.empty(batch, rows, count, heads, head_dim, dtype=torch.float64).permute(2, 0, 3, 1, 4))


def _rows_first(count, shape):
    """Each (N, B, H, D) in memory."""
    if len(shape) == 3:
        return [t.transpose(0, 1) for t in _contiguous(count, (shape[1], shape[0], shape[2]))]
    batch, heads, rows, head_dim = shape
    return [t.permute(1, 2, 0, 3) for t in _contiguous(count, (rows, batch, heads, head_dim))]


def _strided(count, shape):
    """Every second element of rows that start at an odd offset: no stride is one, nothing is aligned."""
    wide = (*shape[:-2], shape[-2] + 3, 2 * shape[-1] + 1)
    return [t[..., 2 : 2 + shape[-2], 1::2] for t in _contiguous(count, wide)]


def _shared_heads(count, shape):
    """One head's memory seen by all heads, with stride 0."""
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
    """The values in memory laid out as `like` is, NaN in the gaps; zero strides keep their first value."""
    extent = 1 + sum((n - 1) * stride for n, stride in zip(like.shape, like.stride())) if like.numel() else 0
    memory = values.new_full((like.storage_offset() + extent,), torch.nan)
    placed = memory.as_strided(like.shape, like.stride(), like.storage_offset())
    owned = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in like.stride())
    placed[owned].copy_(values[owned])
    return placed


# Masks, by name: each a function of (B, H, L, S) and a generator, giving float64 or boolean.
Shape4 = tuple[int, int, int, int]


def _boolean(shape: Shape4, generator) -> Tensor:
    batch, _, queries, keys = shape
    return torch.rand(batch, 1, queries, keys, generator=generator) < 0.7


def _boolean_empty_rows(shape: Shape4, generator) -> Tensor:
    """Every fifth query sees nothing."""
    seen = torch.rand(shape, generator=generator) < 0.5
    seen[:, :, ::5] = False
    return seen


def _boolean_keys(shape: Shape4, generator) -> Tensor:
    batch, _, _, keys = shape
    lengths = torch.randint(1, keys + 1, (batch, 1, 1, 1), generator=generator)
    return torch.arange(keys) < lengths


def _additive(*dims: int, generator) -> Tensor:
    return torch.randn(dims, generator=generator, dtype=torch.float64)


def _minus_infinity(shape: Shape4, generator) -> Tensor:
    hidden = ~_boolean_empty_rows(shape, generator)
    return torch.zeros(shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)


# Stands for the lowest finite number of the type that a mask is cast to.
_LOWEST = torch.finfo(torch.float64).min


def _lowest(shape: Shape4, generator) -> Tensor:
    hidden = ~_boolean_empty_rows(shape, generator)
    return torch.zeros(shape, dtype=torch.float64).masked_fill(hidden, _LOWEST)


MASKS: dict[str, Callable[[Shape4, torch.Generator], Tensor]] = {
    "boolean": _boolean,
    "boolean_empty_rows": _boolean_empty_rows,
    "boolean_keys": _boolean_keys,
    "boolean_expanded": lambda shape, g: _boolean_keys(shape, g).expand(shape),
    "boolean_two_dims": lambda shape, g: torch.rand(shape[2:], generator=g) < 0.8,
    "none_visible": lambda shape, g: torch.zeros(shape[0], 1, 1, shape[3], dtype=torch.bool),
    "additive": lambda shape, g: _additive(1, *shape[1:], generator=g),
    "additive_row": lambda shape, g: _additive(shape[3], generator=g),
    "additive_queries": lambda shape, g: _additive(shape[0], 1, shape[2], 1, generator=g),
    "minus_10000": lambda shape, g: ~_boolean_keys(shape, g) * -10000.0,
    "minus_10000_all": lambda shape, g: torch.full((shape[0], 1, 1, shape[3]), -10000.0),
    "minus_infinity": _minus_infinity,
    "lowest": _lowest,
}


def make_inputs(case: Case, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Inputs:
    """Draws the tensors of a case; the same values for every dtype and device, up to rounding."""
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    packed = case.sequences is not None
    lead = (sum(case.sequences),) if packed else (case.batch, case.heads)

    def shape(rows: int) -> tuple[int, ...]:
        return (*lead, case.heads, case.head_dim) if packed else (*lead, rows, case.head_dim)

    def filled(t: Tensor, size: float = 1.0) -> Tensor:
        values = torch.full(t.shape, 0.5) if case.constant else torch.randn(t.shape, generator=generator)
        return lay_like((size * values).to(device, dtype), t)

    def vector(*dims: int, size: float = 1.0) -> Tensor:
        values = (size * torch.randn(dims, generator=generator, dtype=torch.float64)).to(device, dtype)
        return values.repeat_interleave(2, -1)[..., ::2] if case.layout == "strided" and dims else values

    lay_out = LAYOUTS[case.layout]
    per_query = [filled(t, case.score_size) for t in lay_out(2, shape(case.queries))]
    per_key = [filled(t) for t in lay_out(3, shape(case.key_count))]
    tensors = dict(zip(WIDE, (per_query[0], *per_key[:2], per_query[1], per_key[2])))

    row_shape = per_query[0].shape[:-1]
    if case.gate == "lambda":
        # Drawn in the layout's own order of rows and heads, so that it is strided as the tensors are.
        rows = torch.empty_like(per_query[0][..., 0], memory_format=torch.preserve_format)
        rows.copy_(2 * torch.rand(row_shape, generator=generator) - 1)
        tensors["lambda"] = rows
    else:
        head = (case.heads,) if case.gate == "per_head" else ()
        for name in VECTORS:
            tensors[name] = vector(*head, case.head_dim, size=case.head_dim**-0.5)
        if case.bias is not None:
            for name in BIASES:
                tensors[name] = vector(*((case.heads,) if case.bias == "per_head" else ()), size=0.5)

    options: dict[str, object] = dict(
        is_causal=case.is_causal, dropout_p=case.dropout_p, scale=case.scale, quasi_scale=case.quasi_scale
    )
    if case.dropout_p > 0:
        seed = torch.randint(0, 2**62, (), generator=generator, dtype=torch.int64)
        options["dropout_seed"] = seed.to(device)
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
