"""The parameters of the gate lambda (MATH.md, eq. 4 to 6)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, KeyEntry, register_pytree_node

from qacg_kernels.call.problem import GATE_PARAMETERS


@dataclass(eq=False)  # == of tensors has no truth value; frozen, it would take 4 us longer to make
class GateParameters:
    """Gate vectors and biases from which lambda is computed inside the kernel.

    The gates are lq = sigmoid(Q . query + Qc . context_query + query_bias + context_query_bias) for a call's query Q
    and context query Qc, and lk = sigmoid(K . key + Kc . context_key + key_bias + context_key_bias) for its key K and
    context key Kc. All tensors have query's device and one dtype: query's, or float32 beside queries in 16 bits.
    Gradients have the dtype of the parameters. The class is registered as a pytree, so that torch.func, torch.vmap,
    torch.export and make_fx find the tensors in an argument of this class.

    Attributes:
        query, context_query, key, context_key: gate vectors, (D) or (1, D) shared by all heads, or (H, D).
        query_bias, key_bias: None, () or (1) shared by all heads, or (H).
        beta, gamma: weights of the query gate lq and the key gate lk.
        form: "row" takes both gates at the query's position, lambda_i = 1 - (beta lq_i + gamma lk_i), and requires as
            many queries as keys; "column" takes the key gate at the key's position,
            lambda_ij = 1 - (beta lq_i + gamma lk_j).
        context_query_bias, context_key_bias: further biases, so that a gate can have those of two linear layers.

    Example:
        >>> import torch
        >>> from qacg_kernels import quasi_attention
        >>> query, key, value, context_query, context_key = torch.randn(5, 2, 4, 10, 16).unbind()
        >>> gate = GateParameters(*(torch.randn(16) for _ in range(4)))
        >>> tuple(quasi_attention(query, key, value, context_query, context_key, gate).shape)
        (2, 4, 10, 16)
    """

    query: Tensor
    context_query: Tensor
    key: Tensor
    context_key: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    beta: float = 1.0
    gamma: float = 1.0
    form: str = "row"
    context_query_bias: Tensor | None = None
    context_key_bias: Tensor | None = None


# Biases first: torch.export replaces the names of tensors in source text one by one, and "key_bias" begins with "key".
_TENSORS = tuple(name.removeprefix("gate_") for name in (*GATE_PARAMETERS[4:], *GATE_PARAMETERS[:4]))


def _children(gate: GateParameters) -> tuple[list[tuple[KeyEntry, Tensor]], list]:
    """Returns the tensors that are present, by name, and the arguments for `_of_children`, as JSON can store them."""
    # Absent biases and options are no leaves, because torch.func.grad accepts only tensors.
    present = [name for name in _TENSORS if getattr(gate, name) is not None]
    return [(GetAttrKey(name), getattr(gate, name)) for name in present], [present, gate.beta, gate.gamma, gate.form]


def _of_children(tensors: Iterable[Any], context: list) -> GateParameters:
    present, beta, gamma, form = context
    return GateParameters(**dict(zip(present, tensors, strict=True)), beta=beta, gamma=gamma, form=form)


def _flatten(gate: GateParameters) -> tuple[list[Tensor], list]:
    children, context = _children(gate)
    return [tensor for _, tensor in children], context


register_pytree_node(
    GateParameters,
    _flatten,
    _of_children,
    serialized_type_name=f"{GateParameters.__module__}.GateParameters",  # required to save an exported program
    flatten_with_keys_fn=_children,
)
# torch.load then reads gates, and exported programs that have a gate among their example inputs.
torch.serialization.add_safe_globals([GateParameters])
