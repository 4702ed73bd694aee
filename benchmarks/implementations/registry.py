"""The implementations that the benchmarks compare. For a case, each builds a function that takes the operands.

`implementations.baselines` has the baselines. Records and tables use the names of the implementations. An
implementation that is a backend has the backend's name, as in `backend=`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import qacg_kernels as qk
from benchmarks.cases import (
    DTYPES,
    FULL,
    PACKED,
    PADDED,
    QUASI_ATTENTION_FLOPS,
    SOFTMAX_ATTENTION_FLOPS,
    VECTORS,
    Case,
    key_lengths,
    offsets,
)
from benchmarks.implementations import baselines
from qacg_kernels.backends import dispatch

EAGER = "eager"
COMPILED = "torch.compile"
ONE_MAP = "sdpa-one-map"  # with the fastest backend of SDPA
SDPA = "sdpa"  # with the backend that torch selects
COMPOSITION = "composition"
BACKENDS = tuple(name for name in dispatch.NAMES if name not in ("auto", "reference"))

Call = Callable[..., Tensor]


def graphed(backend: str) -> str:
    """The name of a backend whose calls are captured in a CUDA graph and replayed."""
    return f"{backend}, CUDA graph"


def compiled(backend: str) -> str:
    """The name of a backend inside torch.compile(mode="reduce-overhead"), which captures and replays CUDA graphs."""
    return f"{backend}, reduce-overhead"


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention."""

    name: str  # in records and tables
    build: Callable[[Case], Call]  # called once per case
    unsupported: Callable[[Case], list[str]]  # the reasons why a case is not supported
    computes_quasi: bool = True  # False for softmax attention alone, which has fewer FLOP

    def flops_per_entry(self, case: Case) -> int:
        """FLOP per batch, head, query, key and feature, by FLOP_CONVENTION."""
        return (QUASI_ATTENTION_FLOPS if self.computes_quasi else SOFTMAX_ATTENTION_FLOPS)[case.mode]


def _build_backend(name: str, case: Case) -> Call:
    options = dict(dropout_p=case.dropout, backend=name)
    if case.lengths == PACKED:
        call = partial(qk.quasi_attention_varlen, cu_seqlens=offsets(case), max_seqlen=case.shape.length, **options)
    else:
        call = partial(qk.quasi_attention, key_lengths=key_lengths(case) if case.lengths == PADDED else None, **options)
    if case.gate != VECTORS:
        return call
    return lambda *operands: call(*operands[:5], qk.GateParameters(*operands[5:]))


def _build_graphed(name: str, case: Case) -> Call:
    """Builds a call with a separate graph per set of operands and gradient mode: a shared one would copy operands."""
    call = _build_backend(name, case)
    graphs: dict[tuple[int, ...], Call] = {}

    def replay(*operands: Tensor) -> Tensor:
        addresses = (torch.is_grad_enabled(), *(t.data_ptr() for t in operands))
        if addresses not in graphs:
            graphs[addresses] = torch.cuda.make_graphed_callables(call, operands)
        return graphs[addresses](*operands)

    return replay


def _build_reduce_overhead(name: str, case: Case) -> Call:
    torch._dynamo.reset()
    return torch.compile(_build_backend(name, case), fullgraph=True, dynamic=False, mode="reduce-overhead")


def _unsupported_by_backend(name: str, case: Case) -> list[str]:
    query = torch.zeros((1, 1, 1, case.shape.head_dim), dtype=DTYPES[case.dtype], device=case.device)
    return qk.explain(query, query, query, query, query, query[..., 0], dropout_p=case.dropout).reasons[name]


def _unsupported_by_graphs(name: str, case: Case) -> list[str]:
    return ["CUDA graphs require a GPU"] if case.device == "cpu" else _unsupported_by_backend(name, case)


def _not_packed(case: Case) -> list[str]:
    return ["it does not support packed sequences"] if case.lengths == PACKED else []


def _full_lengths_only(case: Case) -> list[str]:
    return [] if case.lengths == FULL else ["it is measured on sequences of equal length only"]


IMPLEMENTATIONS = {
    one.name: one
    for one in (
        Implementation(EAGER, baselines.build_eager, _not_packed),
        Implementation(COMPILED, baselines.build_compiled, _not_packed),
        Implementation(COMPOSITION, baselines.build_composition, baselines.unsupported_by_composition),
        Implementation(ONE_MAP, baselines.build_one_map, _full_lengths_only, computes_quasi=False),
        Implementation(SDPA, baselines.build_sdpa, _full_lengths_only, computes_quasi=False),
        *(
            Implementation(name, partial(_build_backend, name), partial(_unsupported_by_backend, name))
            for name in (*BACKENDS, "reference")
        ),
        *(
            Implementation(named(name), partial(build, name), partial(_unsupported_by_graphs, name))
            for named, build in ((graphed, _build_graphed), (compiled, _build_reduce_overhead))
            for name in BACKENDS
        ),
    )
}


def default_names(case: Case) -> list[str]:
    """The names of the baselines and fused backends that support the case on this machine."""
    here = [EAGER, COMPILED, COMPOSITION, ONE_MAP, *(name for name in BACKENDS if name in qk.available_backends())]
    return [name for name in here if not IMPLEMENTATIONS[name].unsupported(case)]
