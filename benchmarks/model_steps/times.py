"""Compares the results of whole model steps by the package's error rule, then times them interleaved."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import records
from benchmarks.measure import timing
from benchmarks.measure.agreement import ParityError
from benchmarks.model_steps import BERT, EAGER, RELEASED, TRAINING
from benchmarks.model_steps.implementations import SIZES, Builder, Runner, supports
from benchmarks.model_steps.sentences import Batch, Sentences
from qacg_kernels.testing import judge

_CHECKED_BATCHES, _CHECKED_SENTENCES = 4, 4  # number and size of the batches that are compared in float64
_ENOUGH = 4096  # tensors of at least this many elements need only one batch for the error rule


@dataclass(frozen=True)
class Workload:
    """The work that all implementations do in one repeat: size and mode of the model, and the batches."""

    size: str
    mode: str
    source: str  # of the sentences
    batches: int
    sentences: int
    tokens: int
    padded_tokens: int

    @classmethod
    def of(cls, size: str, mode: str, source: str, batches: list[Batch]) -> "Workload":
        counts = (sum(getattr(one, name) for one in batches) for name in ("sentences", "tokens", "padded_tokens"))
        return cls(size, mode, source, len(batches), *counts)


def precision(dtype: str, device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")


def measure(
    size: str,
    mode: str,
    names: list[str],
    dtypes: list[str],
    batches: list[Batch],
    sentences: Sentences,
    effort: timing.Effort,
    source: records.Origin,
) -> list[records.StepRecord]:
    """Checks that the implementations agree, times them interleaved in all dtypes, and returns a record for each.

    The models run on the device of the batches.
    """
    device = batches[0].device
    with torch.device(device):
        builder = Builder(SIZES[size], len(sentences.contexts))
        runners = {name: builder.build(name) for name in names if supports(name, mode)}
    checked = sentences.draw(_CHECKED_BATCHES, _CHECKED_SENTENCES, seed=1, device=device)
    for dtype in dtypes:
        require_agreement(builder, runners, checked, dtype)
    steps = {}
    for name, runner in runners.items():
        runner.model.train(mode == TRAINING)
        runner.prepare()
        for dtype in dtypes:
            steps[name, dtype] = _make_step(runner, mode, dtype, batches)
    contention = timing.CpuContention()
    rates = None
    if device == "cpu":
        seconds, rates = timing.interleave_in_one_state(steps, effort)
    else:
        seconds = timing.interleave(steps, effort)
    return step_records(seconds, contention.share(), source, Workload.of(size, mode, sentences.source, batches), rates)


def _make_step(runner: Runner, mode: str, dtype: str, batches: list[Batch]) -> Callable[[int], float]:
    """Returns a step for `timing.interleave`: a function that runs all batches once and returns the seconds."""
    device = batches[0].device
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def train(_turn: int) -> float:
        seconds = 0.0
        for batch in batches:
            runner.model.zero_grad()
            wait()
            start = time.perf_counter()
            with precision(dtype, device):
                loss = runner.run(batch)[0]
            loss.backward()
            wait()
            seconds += time.perf_counter() - start
        runner.model.zero_grad()
        return seconds

    def infer(_turn: int) -> float:
        wait()
        start = time.perf_counter()
        with torch.no_grad(), precision(dtype, device):
            for batch in batches:
                runner.run(batch)
        wait()
        return time.perf_counter() - start

    return train if mode == TRAINING else infer


def step_records(
    seconds: dict[tuple[str, str], list[float]],
    cpu_contention: float | None,
    source: records.Origin,
    workload: Workload,
    product_gflops: dict[str, float] | None = None,
) -> list[records.StepRecord]:
    """Makes the records of one workload from the seconds and rates of `timing.interleave_in_one_state`."""
    quartiles = {key: records.Quartiles.of([1e3 * s for s in own]) for key, own in seconds.items()}
    released = quartiles.get((RELEASED, "float32"))
    return [
        records.StepRecord(
            origin=source,
            size=workload.size,
            mode=workload.mode,
            implementation=name,
            dtype=dtype,
            lengths=workload.source,
            batches=workload.batches,
            sentences=workload.sentences,
            tokens=workload.tokens,
            padded_tokens=workload.padded_tokens,
            **own.in_ms(),
            repeats=len(seconds[name, dtype]),
            cpu_contention=cpu_contention,
            sentences_per_second=records.rounded(1e3 * workload.sentences / own.median),
            ratio_to_released=released and records.rounded(released.median / own.median),
            product_gflops=product_gflops,
        )
        for (name, dtype), own in quartiles.items()
    ]


def require_agreement(builder: Builder, runners: dict[str, Runner], batches: list[Batch], dtype: str) -> None:
    """Compares logits and all gradients of all implementations by the package's error rule, without dropout.

    The gradients of a parameter are stacked over all layers, and those of a small parameter also over all batches. This
    is necessary because the error of a single number, such as the bias of a gate, does not show the size of rounding
    errors. Plain BERT is not compared: it is another model and has separate tests.
    """
    model = builder.exact()
    exact = Runner(model, lambda batch: model(**batch.padded, return_dict=False)[:2])
    truths, scales = _outcomes(exact, batches, "float32")
    eager, _ = _outcomes(builder.build(EAGER), batches, dtype)
    for name, runner in runners.items():
        if name == BERT:
            continue
        got, _ = _outcomes(runner, batches, dtype)
        for tensor, truth in truths.items():
            result = judge(tensor, got[tensor], eager[tensor], truth, scales[tensor])
            if not result.ok:
                raise ParityError(
                    f"{name}, {dtype}: {tensor} has error {result.error:.3g}, allowed {result.budget:.3g}; in root "
                    f"mean square {result.rms_error:.3g}, allowed {result.rms_budget:.3g}"
                )


def _outcomes(
    runner: Runner, batches: list[Batch], dtype: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Runs the batches; returns results and their scales by name, stacked over layers and batches.

    Results of large tensors come from the first batch only, because the gradients of each batch take as much memory as
    the model.
    """
    values: dict[str, list[torch.Tensor]] = {}
    scales: dict[str, list[torch.Tensor]] = {}
    for batch in batches:
        outcome = _outcome(runner, batch, dtype)
        for name, tensor in outcome.items():
            if batch is batches[0] or tensor.numel() < _ENOUGH:
                group = re.sub(r"\.\d+\.", ".*.", name)
                values.setdefault(group, []).append(tensor)
                scales.setdefault(group, []).append(_scale(name, outcome))
    stacked = {name: torch.stack(values.pop(name)) for name in list(values)}
    return stacked, {name: torch.stack(group) for name, group in scales.items()}


def _scale(name: str, outcome: dict[str, torch.Tensor]) -> torch.Tensor:
    """The rounding scale of a tensor: its root mean square; for a bias, at least that of its weight.

    The terms of a bias's gradient may almost cancel, so that its own root mean square is too small a scale.
    """
    size = _size(outcome[name])
    if name.endswith(".bias") and (weight := outcome.get(name.removesuffix("bias") + "weight")) is not None:
        size = torch.maximum(size, _size(weight))
    return size.reshape((1,) * outcome[name].dim())


def _size(truth: torch.Tensor) -> torch.Tensor:
    """The root mean square of the non-zero values. Most gradients of embeddings are 0, for tokens not in the batch."""
    nonzero = truth[truth != 0]
    return nonzero.square().mean().sqrt() if len(nonzero) else truth.new_zeros(())


def _outcome(runner: Runner, batch: Batch, dtype: str) -> dict[str, torch.Tensor]:
    """Runs a batch forward and backward; returns logits and the gradients of all parameters, by name."""
    runner.model.eval()
    runner.prepare()
    runner.model.zero_grad()
    with torch.no_grad(), precision(dtype, batch.device):
        logits = runner.run(batch)[1]
    with precision(dtype, batch.device):
        loss = runner.run(batch)[0]
    loss.backward()
    grads = {f"grad {name.removeprefix('model.')}": p.grad for name, p in runner.model.named_parameters()}
    runner.model.zero_grad()
    return {"logits": logits.float() if logits.dtype != torch.float64 else logits, **grads}
