"""The parameters of the gate lambda (MATH.md, eq. 4 to 6)."""

from dataclasses import dataclass

from torch import Tensor

# The operators and csrc/common/checks.h identify a form by its index in this tuple.
FORMS = ("row", "column")


@dataclass(frozen=True, eq=False)  # == of tensors has no truth value
class GateParameters:
    """Gate vectors and biases from which lambda is computed inside the kernel.

    The gates are lq = sigmoid(Q . query + Qc . context_query + query_bias) for a call's query Q and context query Qc,
    and lk = sigmoid(K . key + Kc . context_key + key_bias) for its key K and context key Kc. All tensors have the dtype
    and device of the call's query.

    Attributes:
        query, context_query, key, context_key: gate vectors, (D) shared by all heads or (H, D).
        query_bias, key_bias: None, a scalar tensor (), or (H).
        beta, gamma: weights of the query gate lq and the key gate lk.
        form: "row" takes both gates at the query's position, lambda_i = 1 - (beta lq_i + gamma lk_i), and requires as
            many queries as keys; "column" takes the key gate at the key's position,
            lambda_ij = 1 - (beta lq_i + gamma lk_j).

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
