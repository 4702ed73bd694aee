"""Who is measured. A provider turns a case into a function of the six operands."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import qacg_kernels as qk
from benchmarks import composition
from benchmarks.shapes import (
    BACKWARD,
    DTYPES,
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    PACKED,
    PADDED,
    TRAINING_FORWARD,
    Case,
    key_lengths,
    offsets,
    padding,
)
from qacg_kernels import dispatch

Call = Callable[..., Tensor]

EAGER = "eager"
COMPILED = "torch.compile"
ONE_MAP = "sdpa-one-map"
COMPOSITION = "composition"

# Matrix products of L x S x D that the mathematics needs, at 2 FLOP a cell and feature, not what a provider
# happens to run: a stored map is not computed again in its backward, and a tiled forward keeps both
# branches' outputs and runs 8.
_QUASI_FLOPS = {FORWARD: 6, TRAINING_FORWARD: 6, BACKWARD: 16, FORWARD_BACKWARD: 22}
_ONE_MAP_FLOPS = {FORWARD: 4, TRAINING_FORWARD: 4, BACKWARD: 10, FORWARD_BACKWARD: 14}


@dataclass(frozen=True)
class Provider:
    """One way to compute attention.

    Attributes:
        name: as rows and tables show it.
        build: gives the call for a case; called once per case.
        reasons_against: why it does not take a case; empty if it does.
        computes_quasi: False for the floor, which computes softmax attention alone.
    """

    name: str
    build: Callable[[Case], Call]
    reasons_against: Callable[[Case], list[str]]
    computes_quasi: bool = True

    def flops_per_cell(self, case: Case) -> int:
        """FLOP per (batch, head, query, key, feature) of a case, by the convention above."""
        return (_QUASI_FLOPS if self.computes_quasi else _ONE_MAP_FLOPS)[case.mode]


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate_lambda: Tensor,
    *,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Quasi-attention as a model is usually written: both maps in memory, padding hidden by -10000."""
    scale = query.shape[-1] ** -0.5
    scores = query @ key.transpose(-1, -2) * scale
    context_scores = context_query @ context_key.transpose(-1, -2) * scale
    if bias is not None:
        scores, context_scores = scores + bias, context_scores + bias
    softmax, sigmoid = torch.softmax(scores, -1), torch.sigmoid(context_scores)
    attention = softmax + gate_lambda.unsqueeze(-1) * sigmoid
    return F.dropout(attention, dropout_p) @ value


def _eager_options(case: Case) -> dict[str, object]:
    bias = None
    if case.lengths == PADDED:
        bias = (padding(case)[:, None, None] * -10000.0).to(DTYPES[case.dtype])
    return dict(dropout_p=case.dropout, bias=bias)


def _build_eager(case: Case) -> Call:
    return partial(eager_attention, **_eager_options(case))


def _build_compiled(case: Case) -> Call:
    torch._dynamo.reset()  # cases must not count towards one another's limit of recompilations
    compiled = torch.compile(eager_attention, fullgraph=True, dynamic=False)
    return partial(compiled, **_eager_options(case))


def _build_one_map(case: Case) -> Call:
    softmax = composition.best_sdpa(case)

    def one_map(query, key, value, _context_query, _context_key, _gate_lambda):
        return softmax(query, key, value)

    return one_map


def _build_backend(name: str, case: Case) -> Call:
    options = dict(dropout_p=case.dropout, backend=name)
    if case.lengths == PACKED:
        return partial(
            qk.quasi_attention_varlen, cu_seqlens=offsets(case), max_seqlen=case.shape.length, **options
        )
    return partial(qk.quasi_attention, key_lengths=key_lengths(case) if case.lengths == PADDED else None, **options)


def _backend_reasons(name: str, case: Case) -> list[str]:
    row = torch.zeros((1, 1, 1, case.shape.head_dim), dtype=DTYPES[case.dtype], device=case.device)
    return qk.explain(row, row, row, row, row, row[..., 0], dropout_p=case.dropout)[name]


def _not_packed(case: Case) -> list[str]:
    return ["it has no packed form"] if case.lengths == PACKED else []


def _full_rows_alone(case: Case) -> list[str]:
    return [] if case.lengths == FULL else ["the floor is taken on sequences of one length"]


BACKENDS = tuple(name for name in dispatch.NAMES if name not in ("auto", "reference"))
PROVIDERS = {
    p.name: p
    for p in (
        Provider(EAGER, _build_eager, _not_packed),
        Provider(COMPILED, _build_compiled, _not_packed),
        Provider(COMPOSITION, composition.build, composition.reasons_against),
        Provider(ONE_MAP, _build_one_map, _full_rows_alone, computes_quasi=False),
        *(
            Provider(name, partial(_build_backend, name), partial(_backend_reasons, name))
            for name in (*BACKENDS, "reference")
        ),
    )
}


def default_names(case: Case) -> list[str]:
    """Every provider that takes the case here; the reference is left out, it is there to judge, not to race."""
    here = [EAGER, COMPILED, COMPOSITION, ONE_MAP, *(name for name in BACKENDS if name in qk.available_backends())]
    return [name for name in here if not PROVIDERS[name].reasons_against(case)]


def chosen(names: list[str], case: Case) -> dict[str, Provider]:
    """The named providers, in order.

    Raises:
        ValueError: a name is unknown.
        RuntimeError: a provider does not take the case; the message lists its reasons.
    """
    for name in names:
        if name not in PROVIDERS:
            raise ValueError(f"provider: got {name!r}, wanted one of {', '.join(PROVIDERS)}")
        why = PROVIDERS[name].reasons_against(case)
        if why:
            raise RuntimeError(f"provider {name!r} does not take {case}: " + "; ".join(why))
    return {name: PROVIDERS[name] for name in names}
