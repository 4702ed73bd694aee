"""The description of a call: its tensors and options by name, and the meaning of a mask.

All layers down to the kernels take a Problem.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Forms of the gate. The operators and csrc/common/checks.h identify a form by its index in this tuple.
FORMS = ("row", "column")
_COLUMN = FORMS.index("column")


class Tensors(NamedTuple):
    """The tensors of a call, named and ordered as in the operators' schema.

    Dense tensors are (B, H, L or S, D); packed ones, with `cu_seqlens`, are (T, H, D). Either `gate_lambda` or the four
    gate vectors are given. Gate vectors and biases have one dtype: query's, or `row_dtype(query)`. `attn_mask` has four
    dimensions, each of full size or of size 1. `quasi_bias` has lambda's dimensions, (B, H, L) or (T, H), each of full
    size or of size 1, and the dtype `row_dtype(query)`. Lengths and offsets are int32 or int64.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate_lambda: Tensor | None
    gate_query: Tensor | None
    gate_context_query: Tensor | None
    gate_key: Tensor | None
    gate_context_key: Tensor | None
    gate_query_bias: Tensor | None
    gate_context_query_bias: Tensor | None
    gate_key_bias: Tensor | None
    gate_context_key_bias: Tensor | None
    attn_mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None
    dropout_seed: Tensor | None
    quasi_bias: Tensor | None


class Options(NamedTuple):
    """The options of a call, named and ordered as in the operators' schema.

    `max_seqlen` is 0 in a dense call. `gate_form` is an index of FORMS.
    """

    max_seqlen: int
    is_causal: bool
    dropout_p: float
    scale: float
    quasi_scale: float
    beta: float
    gamma: float
    gate_form: int


# Not frozen, which would add launch overhead to each call.
@dataclass(eq=False)
class Problem:
    """The tensors and options of one call; nothing modifies it.

    The public functions validate a call before they make its Problem; kernels get validated calls only. Each tensor and
    option is also an attribute of the Problem, where `gate_form` is the name in FORMS.
    """

    tensors: Tensors
    options: Options

    # Read `tensors` and `options` themselves in code that runs in every call: these properties take longer.
    query = property(lambda self: self.tensors.query)
    key = property(lambda self: self.tensors.key)
    value = property(lambda self: self.tensors.value)
    context_query = property(lambda self: self.tensors.context_query)
    context_key = property(lambda self: self.tensors.context_key)
    gate_lambda = property(lambda self: self.tensors.gate_lambda)
    gate_query = property(lambda self: self.tensors.gate_query)
    gate_context_query = property(lambda self: self.tensors.gate_context_query)
    gate_key = property(lambda self: self.tensors.gate_key)
    gate_context_key = property(lambda self: self.tensors.gate_context_key)
    gate_query_bias = property(lambda self: self.tensors.gate_query_bias)
    gate_context_query_bias = property(lambda self: self.tensors.gate_context_query_bias)
    gate_key_bias = property(lambda self: self.tensors.gate_key_bias)
    gate_context_key_bias = property(lambda self: self.tensors.gate_context_key_bias)
    attn_mask = property(lambda self: self.tensors.attn_mask)
    key_lengths = property(lambda self: self.tensors.key_lengths)
    cu_seqlens = property(lambda self: self.tensors.cu_seqlens)
    dropout_seed = property(lambda self: self.tensors.dropout_seed)
    quasi_bias = property(lambda self: self.tensors.quasi_bias)
    max_seqlen = property(lambda self: self.options.max_seqlen)
    is_causal = property(lambda self: self.options.is_causal)
    dropout_p = property(lambda self: self.options.dropout_p)
    scale = property(lambda self: self.options.scale)
    quasi_scale = property(lambda self: self.options.quasi_scale)
    beta = property(lambda self: self.options.beta)
    gamma = property(lambda self: self.options.gamma)

    @property
    def gate_form(self) -> str | None:
        """The name of the gate's form; None if `options.gate_form` is no index of FORMS, in an invalid direct call."""
        number = self.options.gate_form
        return FORMS[number] if 0 <= number < len(FORMS) else None

    @property
    def packed(self) -> bool:
        return self.tensors.cu_seqlens is not None

    @property
    def column_gate(self) -> bool:
        """Whether the key gate is taken at the key's position, so that lambda is (B, H, L, S)."""
        return self.options.gate_form == _COLUMN

    @property
    def head_dim(self) -> int:
        return self.tensors.query.shape[-1]

    @property
    def heads(self) -> int:
        return self.tensors.query.shape[1]

    @property
    def sequences(self) -> int:
        query, offsets = self.tensors.query, self.tensors.cu_seqlens
        return query.shape[0] if offsets is None else offsets.shape[0] - 1

    @property
    def longest_row(self) -> int:
        """The number of keys in the longest row of scores; in a packed call `max_seqlen`, which may be larger."""
        return self.tensors.key.shape[-2] if self.tensors.cu_seqlens is None else self.options.max_seqlen

    @property
    def wide(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five tensors whose last dimension is D: query, key, value, context query and context key."""
        t = self.tensors
        return t.query, t.key, t.value, t.context_query, t.context_key

    @property
    def gate_parameters(self) -> tuple[Tensor | None, ...]:
        """The tensors that GATE_PARAMETERS names; None if absent."""
        return self.tensors[len(DIFFERENTIABLE) - len(GATE_PARAMETERS) : len(DIFFERENTIABLE)]

    def to(self, dtype: torch.dtype) -> "Problem":
        """A copy of the call with its differentiable tensors in another dtype; attn_mask and quasi_bias keep theirs."""
        inputs = {name: getattr(self.tensors, name) for name in DIFFERENTIABLE}
        return self.replaced(**{name: None if t is None else t.to(dtype) for name, t in inputs.items()})

    def replaced(self, **tensors: Any) -> "Problem":
        """A copy of the call with other tensors, given by name."""
        return Problem(self.tensors._replace(**tensors), self.options)

    def at_rows(self, rows: Tensor) -> "Problem":
        """A copy of a dense call with all keys but only the queries at some positions (int64, in any order)."""
        mask, bias = self.attn_mask, self.quasi_bias
        return self.replaced(
            query=self.query[:, :, rows],
            context_query=self.context_query[:, :, rows],
            gate_lambda=None if self.gate_lambda is None else self.gate_lambda[:, :, rows],
            attn_mask=mask if mask is None or mask.shape[2] == 1 else mask[:, :, rows],
            quasi_bias=bias if bias is None or bias.shape[2] == 1 else bias[:, :, rows],
        )


def row_dtype(query: Tensor) -> torch.dtype:
    """The dtype of per-row values (maximum, sum, gates, quasi_bias): float32, or float64 for float64 inputs."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


class Residuals(NamedTuple):
    """Which branch outputs a forward saves for its backward (MATH.md, eq. 8)."""

    save_softmax_out: bool = True  # O1 = (Z o P) V
    save_quasi_out: bool = False  # O2 = (Z o G) V


class ForwardOutputs(NamedTuple):
    """The results of a forward, in the schema's order; an absent result is None or an empty tensor.

    `softmax_out` and `quasi_out` are O1 and O2 (`Residuals`). `row_max` and `row_sum`, (B, H, L) or (T, H), are the
    maximum of each row's scores, and the sum of exp(score - maximum) over the row, in units of the backend, whose own
    backward reads them. `query_gate` and `key_gate` are the gates lq and lk, present if the call has gate vectors.
    """

    out: Tensor
    softmax_out: Tensor | None
    quasi_out: Tensor | None
    row_max: Tensor
    row_sum: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


class Saved(NamedTuple):
    """What a backward reads in addition to the call: upstream gradients, and results of the forward."""

    grad_out: Tensor
    grad_query_gate: Tensor | None
    grad_key_gate: Tensor | None
    softmax_out: Tensor | None
    quasi_out: Tensor | None
    row_max: Tensor
    row_sum: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


class Gradients(NamedTuple):
    """The gradients that a backward returns, in the schema's order, each named after its input.

    The gradient of an absent input is None or an empty tensor.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate_lambda: Tensor | None
    gate_query: Tensor | None
    gate_context_query: Tensor | None
    gate_key: Tensor | None
    gate_context_key: Tensor | None
    gate_query_bias: Tensor | None
    gate_context_query_bias: Tensor | None
    gate_key_bias: Tensor | None
    gate_context_key_bias: Tensor | None


DIFFERENTIABLE = Gradients._fields  # the first fields of Tensors
GATE_PARAMETERS = DIFFERENTIABLE[6:]  # the four vectors, then the four biases


# Half the lowest finite number of the type, not the lowest itself: a mask that was filled with the lowest number may
# later be rounded to another type, or added to a bias or another mask. float64 has float32's bound, because float64
# masks are usually made in float32 and converted. C++ and CUDA have these numbers in csrc/common/mask.h.
HIDING = {dtype: torch.finfo(dtype).min / 2 for dtype in (torch.float16, torch.bfloat16, torch.float32)}
HIDING[torch.float64] = HIDING[torch.float32]


def hides(mask: Tensor) -> Tensor:
    """Returns a boolean tensor, True where an additive mask hides its key as completely as False in a boolean mask."""
    return mask <= HIDING[mask.dtype]


def is_key_mask(mask: Tensor) -> bool:
    """Whether a mask of four dimensions stores one row for all queries, as a padding mask (B, 1, 1, S) does."""
    return mask.shape[-2] == 1 or mask.stride(-2) == 0


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts an additive mask to a float type, with -inf where it hides a key.

    A mask that already has this type is returned unchanged.
    """
    return mask if mask.dtype == dtype else mask.to(dtype).masked_fill(hides(mask), -torch.inf)
