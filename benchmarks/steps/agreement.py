"""No figure for a wrong model: logits and gradients of whole steps, by the package's error rule."""

import re

import torch

from benchmarks.measure import verify
from benchmarks.steps.names import BERT, EAGER
from benchmarks.steps.providers import Builder, Runner
from benchmarks.steps.sentences import Batch
from qacg_kernels.testing import judge

_MANY = 4096  # numbers that show in one batch how far roundings go


def precision(dtype: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")


def require_agreement(builder: Builder, runners: dict[str, Runner], batches: list[Batch], dtype: str) -> None:
    """Judges the logits and every gradient of every provider by the package's error rule, without dropout.

    A parameter is judged in all layers at once, and one of few numbers in all batches: the error of a single number,
    such as a gate's bias, says little of how far roundings go. Plain BERT is another model and is left to the tests of
    its own.

    Raises:
        benchmarks.measure.verify.ParityError: a provider computes something else.
    """
    model = builder.exact()
    exact = Runner(model, lambda batch: model(**batch.padded, return_dict=False)[:2])
    truths, scales = _outcomes(exact, batches, "float32")
    of_eager, _ = _outcomes(builder.build(EAGER), batches, dtype)
    for name, runner in runners.items():
        if name == BERT:
            continue
        got, _ = _outcomes(runner, batches, dtype)
        for tensor, truth in truths.items():
            v = judge(tensor, got[tensor], of_eager[tensor], truth, scales[tensor])
            if not v.ok:
                raise verify.ParityError(
                    f"{name}, {dtype}: {tensor} is off by {v.error:.3g}, budget {v.budget:.3g}; in root mean "
                    f"square {v.rms_error:.3g}, budget {v.rms_budget:.3g}"
                )


def _outcomes(
    runner: Runner, batches: list[Batch], dtype: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What a runner gives and the scales of it: tensors whose names differ in the number of the layer alone, stacked;
    those of few numbers from all batches, the others from the first, for a model's gradients are as large as itself."""
    values: dict[str, list[torch.Tensor]] = {}
    scales: dict[str, list[torch.Tensor]] = {}
    for batch in batches:
        outcome = _outcome(runner, batch, dtype)
        for name, tensor in outcome.items():
            if batch is batches[0] or tensor.numel() < _MANY:
                group = re.sub(r"\.\d+\.", ".*.", name)
                values.setdefault(group, []).append(tensor)
                scales.setdefault(group, []).append(_scale(name, outcome))
    stacked = {name: torch.stack(values.pop(name)) for name in list(values)}
    return stacked, {name: torch.stack(group) for name, group in scales.items()}


def _scale(name: str, outcome: dict[str, torch.Tensor]) -> torch.Tensor:
    """By what errors of a tensor are judged, one number of as many dimensions: its root mean square, but for a bias at
    least that of its weights, for the terms of a bias's gradient may cancel and leave little but their rounding."""
    size = _size(outcome[name])
    if name.endswith(".bias") and (weight := outcome.get(name.removesuffix("bias") + "weight")) is not None:
        size = torch.maximum(size, _size(weight))
    return size.reshape((1,) * outcome[name].dim())


def _size(truth: torch.Tensor) -> torch.Tensor:
    """The root mean square of what is not zero: of embeddings only the rows of the batch have gradients."""
    there = truth[truth != 0]
    return there.square().mean().sqrt() if len(there) else truth.new_zeros(())


def _outcome(runner: Runner, batch: Batch, dtype: str) -> dict[str, torch.Tensor]:
    """Logits, and the gradient of every parameter by its name inside the model."""
    runner.model.eval()
    runner.prepare()
    runner.model.zero_grad()
    with torch.no_grad(), precision(dtype):
        logits = runner.run(batch)[1]
    with precision(dtype):
        loss = runner.run(batch)[0]
    loss.backward()
    grads = {f"grad {name.removeprefix('model.')}": p.grad for name, p in runner.model.named_parameters()}
    runner.model.zero_grad()
    return {"logits": logits.float() if logits.dtype != torch.float64 else logits, **grads}
