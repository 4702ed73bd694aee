"""The description of a call: its tensors and options by name. All layers down to the kernels take a Problem."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call.gate import FORMS

# `options` uses this dictionary, and `of_operator` compares with the count: FORMS.index() and dict.get() are slower.
_NUMBER_OF = {form: number for number, form in enumerate(FORMS)}
_FORM_COUNT = len(FORMS)


# Not frozen: a frozen dataclass would add 2 us to each call, and launch overhead should stay below 30 us.
@dataclass(eq=False)
class Problem:
    """The tensors and options of one call; nothing modifies it.

    The order and the names of the fields are those of the operators' schema. The public functions validate a call
    before they make its Problem; kernels get validated calls only. Dense tensors are (B, H, L or S, D); packed ones,
    with `cu_seqlens`, are (T, H, D). Either `gate_lambda` or the four gate vectors are given. `attn_mask` has four
    dimensions, each of full size or of size 1. `quasi_bias` has lambda's dimensions, (B, H, L) or (T, H), each of full
    size or of size 1, and the dtype `row_dtype(query)`. Lengths and offsets are int32 or int64. `max_seqlen` is 0 in a
    dense call, and `gate_form` is one of FORMS.
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
    gate_key_bias: Tensor | None
    attn_mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None
    dropout_seed: Tensor | None
    quasi_bias: Tensor | None
    max_seqlen: int
    is_causal: bool
    dropout_p: float
    scale: float
    quasi_scale: float
    beta: float
    gamma: float
    gate_form: str

    @classmethod
    def of_operator(cls, arguments: Sequence[Any]) -> "Problem":
        """Returns the Problem of a call of a torch operator, without validation.

        A `gate_form` that is no index of FORMS becomes None.

        Args:
            arguments: `tensors` and `options` in the schema's order, with `gate_form` as an index of FORMS.
        """
        *others, number = arguments
        fields = (*others, FORMS[number] if 0 <= number < _FORM_COUNT else None)
        return cls(*fields)

    # No loop over field names, which torch.compile would take longer to trace.
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors in the order of the operators' schema."""
        return (
            self.query,
            self.key,
            self.value,
            self.context_query,
            self.context_key,
            self.gate_lambda,
            self.gate_query,
            self.gate_context_query,
            self.gate_key,
            self.gate_context_key,
            self.gate_query_bias,
            self.gate_key_bias,
            self.attn_mask,
            self.key_lengths,
            self.cu_seqlens,
            self.dropout_seed,
            self.quasi_bias,
        )

    def options(self) -> tuple[int | bool | float, ...]:
        """The options in the order of the operators' schema, with the gate form as a number."""
        return (
            self.max_seqlen,
            self.is_causal,
            self.dropout_p,
            self.scale,
            self.quasi_scale,
            self.beta,
            self.gamma,
            _NUMBER_OF[self.gate_form],
        )

    @property
    def packed(self) -> bool:
        return self.cu_seqlens is not None

    @property
    def column_gate(self) -> bool:
        """Whether the key gate is taken at the key's position, so that lambda is (B, H, L, S)."""
        return self.gate_form == "column"

    @property
    def head_dim(self) -> int:
        return self.query.shape[-1]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def sequences(self) -> int:
        return self.query.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def longest_row(self) -> int:
        """The number of keys in the longest row of scores; in a packed call `max_seqlen`, which may be larger."""
        return self.key.shape[-2] if self.cu_seqlens is None else self.max_seqlen

    @property
    def wide(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five tensors whose last dimension is D: query, key, value, context query and context key."""
        return self.query, self.key, self.value, self.context_query, self.context_key

    @property
    def gate_parameters(self) -> tuple[Tensor | None, ...]:
        """The four gate vectors and the two biases; None if absent."""
        vectors = (self.gate_query, self.gate_context_query, self.gate_key, self.gate_context_key)
        return (*vectors, self.gate_query_bias, self.gate_key_bias)

    def to(self, dtype: torch.dtype) -> "Problem":
        """A copy of the call with its differentiable tensors in another dtype; attn_mask and quasi_bias keep theirs."""
        names = DIFFERENTIABLE
        changed: dict[str, Any] = {n: None if (t := getattr(self, n)) is None else t.to(dtype) for n in names}
        return replace(self, **changed)

    def at_rows(self, rows: Tensor) -> "Problem":
        """A copy of a dense call with all keys but only the queries at some positions (int64, in any order)."""
        mask, bias = self.attn_mask, self.quasi_bias
        return replace(
            self,
            query=self.query[:, :, rows],
            context_query=self.context_query[:, :, rows],
            gate_lambda=None if self.gate_lambda is None else self.gate_lambda[:, :, rows],
            attn_mask=mask if mask is None or mask.shape[2] == 1 else mask[:, :, rows],
            quasi_bias=bias if bias is None or bias.shape[2] == 1 else bias[:, :, rows],
        )


def row_dtype(query: Tensor) -> torch.dtype:
    """The dtype of per-row values (maximum, sum, gates, quasi_bias): float32, or float64 for float64 inputs."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


FIELDS = tuple(Problem.__dataclass_fields__)
TENSORS = FIELDS[:17]
DIFFERENTIABLE = TENSORS[:12]


class Residuals(NamedTuple):
    """Which branch outputs a forward saves for its backward (MATH.md, eq. 8).

    Attributes:
        save_softmax_out: whether it saves O1 = (Z o P) V, the output of the softmax branch.
        save_quasi_out: whether it saves O2 = (Z o G) V, the output of the quasi-attention branch.
    """

    save_softmax_out: bool = True
    save_quasi_out: bool = False


class ForwardOutputs(NamedTuple):
    """The results of a forward, in the schema's order; an absent result is None or an empty tensor.

    `softmax_out` and `quasi_out` are O1 and O2 (`Residuals`). `row_max` and `row_sum`, (B, H, L) or (T, H), are the
    maximum of each row's scores, and the sum of exp(score - maximum) over the row. The unit of the scores depends on
    the backend, so only the backward of the backend that `dispatch.backward_of` returns may read `row_max` and
    `row_sum`. `query_gate` and `key_gate` are the gates lq and lk, present if the call has gate vectors.
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
    gate_key_bias: Tensor | None
