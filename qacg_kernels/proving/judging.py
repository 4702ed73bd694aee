"""Judging a family: its kernels' results by the error rule of `qacg_kernels.testing`, and four more questions.

Does a kernel write outside its outputs, give the same bits twice, take a gradient that is expanded from one number, and
keep the NaN of one sequence out of the others?
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from qacg_kernels.certificates.family import Family
from qacg_kernels.proving.guards import AfterKernel, GuardedMemory
from qacg_kernels.proving.probes import cases
from qacg_kernels.testing import evaluate, evaluate_exactly, judge, rounding_scales, through_backend, through_eager
from qacg_kernels.testing_inputs import Case, Inputs, make_inputs

Results = dict[str, Tensor]


class Fault(Exception):
    """What is wrong with a family, in a line."""


def judge_family(
    family: Family,
    device: torch.device,
    begin: Callable[[Case], None],
    *,
    small: bool = False,
    after_kernel: AfterKernel | None = None,
) -> None:
    """Judges all cases of a family.

    Args:
        begin: told of each case before it runs.
        small, after_kernel: a rehearsal's; see probes.py and guards.py.

    Raises:
        Fault: the family does not hold.
        Exception: whatever a kernel that does not run raises.
    """
    run = _Run(family, after_kernel)
    for case in cases(family, small):
        begin(case)
        inputs = make_inputs(case, getattr(torch, family.dtype), device)
        results = run(inputs)
        within_budget(results, inputs)
        if not _same_bits(results, run(inputs)):
            raise Fault("not deterministic: the same call gave other bits the second time")
        if family.direction == "backward":
            expanded = replace(inputs, grad_out=inputs.grad_out.flatten()[:1].expand(inputs.grad_out.shape))
            if inputs.grad_out.numel():
                within_budget(run(expanded), expanded)
        for poisoned, kept in _one_bad_sequence(inputs):
            _stays_there(run(poisoned), results, kept)


class _Run:
    """Runs a call through the family's backend, in memory with guard zones."""

    def __init__(self, family: Family, after_kernel: AfterKernel | None) -> None:
        self._attend = through_backend(family.backend)
        self._backward = family.direction == "backward"
        self._after_kernel = after_kernel

    def __call__(self, inputs: Inputs) -> Results:
        # One thread: a mode counts in the thread that set it, and the backward of a GPU's tensors has its own.
        with torch.autograd.set_multithreading_enabled(False), GuardedMemory(self._after_kernel) as memory:
            results = evaluate(inputs, self._attend) if self._backward else self._forward(inputs)
        if inputs.grad_out.device.type == "cuda":
            torch.cuda.synchronize()
        if memory.touched():
            raise Fault("out of bounds: memory beside an output was written")
        return results

    def _forward(self, inputs: Inputs) -> Results:
        with torch.no_grad():
            out, lam = self._attend(inputs, inputs.tensors)
        return {"out": out} if lam is None else {"out": out, "lambda": lam}


def within_budget(results: Results, inputs: Inputs) -> None:
    # Backends promise float32 accumulation of 16-bit inputs: they are held to eager PyTorch in float32.
    narrow = inputs.grad_out.dtype.itemsize == 2
    eager = evaluate(inputs.to(torch.float32) if narrow else inputs, through_eager)
    judges = (results, eager, evaluate_exactly(inputs), rounding_scales(inputs))
    sides = [_gate_together(side, results) for side in judges]
    for name, got in sides[0].items():
        exact = sides[2][name]
        verdict = judge(name, got, sides[1][name], exact, sides[3][name])
        if verdict.ok:
            continue
        at = verdict.worst
        what = "not a number" if got[at].isnan() and not exact[at].isnan() else "wrong"
        raise Fault(
            f"{what}: {name}{list(at)} is {got[at].item():.6g} for {exact[at].item():.6g}, "
            f"error {verdict.error:.3g} of {verdict.budget:.3g} allowed"
        )


def _gate_together(tensors: Results, like: Results) -> Results:
    """The tensors that `like` has, with the gradients of the gate's parameters as one.

    A bias is a single number, whose rounding error in eager PyTorch is a draw of luck: alone it would be no measure.
    """
    gate = [name for name in like if name.startswith("grad gate.")]
    others = {name: tensors[name] for name in like if name not in gate}
    return others | ({"grad gate": torch.cat([tensors[name].flatten() for name in gate])} if gate else {})


def _same_bits(first: Results, second: Results) -> bool:
    return all(torch.equal(t.nan_to_num(), second[name].nan_to_num()) for name, t in first.items())


def _one_bad_sequence(inputs: Inputs) -> Iterator[tuple[Inputs, Tensor]]:
    """The call with NaN in the first sequence, and the rows or sequences of the others; nothing where there is one."""
    case, device = inputs.case, inputs.grad_out.device
    if case.sequences is None:
        count, bad = case.batch, 1
    else:
        count, bad = sum(case.sequences), case.sequences[0]
    if count <= bad:
        return
    tensors = {n: t if n.startswith("gate.") else t.clone() for n, t in inputs.tensors.items()}
    for name, t in tensors.items():
        if not name.startswith("gate."):
            t[:bad] = torch.nan
    upstream = inputs.grad_out.clone()
    upstream[:bad] = torch.nan
    yield replace(inputs, tensors=tensors, grad_out=upstream), torch.arange(bad, count, device=device)


def _stays_there(got: Results, clean: Results, kept: Tensor) -> None:
    for name, t in got.items():
        if name.startswith("grad gate."):
            continue  # the sum over all sequences, and so rightly NaN
        if not torch.equal(t[kept], clean[name][kept]):
            raise Fault(f"spreading: NaN in one sequence changed {name} of another")
