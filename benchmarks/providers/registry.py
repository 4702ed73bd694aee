"""Who is measured. A provider turns a case into a function of the six operands."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import qacg_kernels as qk
from benchmarks.cases import flops
from benchmarks.cases.case import DTYPES, FULL, PACKED, PADDED, Case
from benchmarks.cases.inputs import key_lengths, offsets
from benchmarks.providers import composition, eager
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP, compiled, graphed
from qacg_kernels import dispatch

Call = Callable[..., Tensor]


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
        """FLOP per (batch, head, query, key, feature) of a case, by the convention of `flops.py`."""
        return (flops.QUASI_ATTENTION if self.computes_quasi else flops.SOFTMAX_MAP)[case.mode]


def _build_compiled(case: Case) -> Call:
    torch._dynamo.reset()  # cases must not count towards one another's limit of recompilations
    attention = torch.compile(eager.eager_attention, fullgraph=True, dynamic=False)
    return partial(attention, **eager.options(case))


def _build_one_map(case: Case) -> Call:
    softmax = composition.best_sdpa(case)

    def one_map(query, key, value, _context_query, _context_key, _gate_lambda):
        return softmax(query, key, value)

    return one_map


def _build_backend(name: str, case: Case) -> Call:
    options = dict(dropout_p=case.dropout, backend=name)
    if case.lengths == PACKED:
        return partial(qk.quasi_attention_varlen, cu_seqlens=offsets(case), max_seqlen=case.shape.length, **options)
    return partial(qk.quasi_attention, key_lengths=key_lengths(case) if case.lengths == PADDED else None, **options)


def _build_graphed(name: str, case: Case) -> Call:
    """A graph for each set of operands, which a replay reads where they were when it was captured."""
    call = _build_backend(name, case)
    graphs: dict[tuple[int, ...], Call] = {}

    def replay(*operands: Tensor) -> Tensor:
        place = (torch.is_grad_enabled(), *(t.data_ptr() for t in operands))
        if place not in graphs:
            graphs[place] = torch.cuda.make_graphed_callables(call, operands)
        return graphs[place](*operands)

    return replay


def _build_reduced(name: str, case: Case) -> Call:
    torch._dynamo.reset()
    return torch.compile(_build_backend(name, case), fullgraph=True, dynamic=False, mode="reduce-overhead")


def _needs_graphs(name: str, case: Case) -> list[str]:
    return ["CUDA graphs are a GPU's"] if case.device == "cpu" else _backend_reasons(name, case)


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
        Provider(EAGER, eager.build, _not_packed),
        Provider(COMPILED, _build_compiled, _not_packed),
        Provider(COMPOSITION, composition.build, composition.reasons_against),
        Provider(ONE_MAP, _build_one_map, _full_rows_alone, computes_quasi=False),
        *(
            Provider(name, partial(_build_backend, name), partial(_backend_reasons, name))
            for name in (*BACKENDS, "reference")
        ),
        *(
            Provider(named(name), partial(build, name), partial(_needs_graphs, name))
            for named, build in ((graphed, _build_graphed), (compiled, _build_reduced))
            for name in BACKENDS
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
