"""Whole steps of QACG-BERT, providers side by side: `python -m benchmarks.end_to_end --out DIR`.

A training step is forward, loss and backward with dropout; inference is a forward. One repeat of a provider is the
same batches for all of them, so a ratio is one of throughput on sentences of those lengths. A size and mode whose rows
are there already, from the same sources, is not measured again: a run that was cut off goes on with the next.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Callable

import torch
from qacg_models.errors import InputError

from benchmarks import rows, step_marks, timing, verify
from benchmarks.run import INTERRUPTED, add_common_options, heading
from benchmarks.sentences import Batch, Sentences, default_data, load_sentences
from benchmarks.session import Budget
from benchmarks.shapes import DTYPES
from benchmarks.step_names import BERT, COMPILED, EAGER, MODES, RELEASED, TRAINING
from benchmarks.steps import PROVIDERS, SIZES, Builder, Runner, takes
from qacg_kernels.testing import judge

# Providers are compared in float64 on so many batches of so many sentences.
_JUDGED_BATCHES, _JUDGED_SENTENCES = 4, 4
_MANY = 4096  # numbers that show in one batch how far roundings go


def require_agreement(builder: Builder, runners: dict[str, Runner], batches: list[Batch], dtype: str) -> None:
    """Judges the logits and every gradient of every provider by the package's error rule, without dropout.

    A parameter is judged in all layers at once, and one of few numbers in all batches: the error of a single number,
    such as a gate's bias, says little of how far roundings go. Plain BERT is another model and is left to the tests of
    its own.

    Raises:
        benchmarks.verify.ParityError: a provider computes something else.
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
    with torch.no_grad(), _precision(dtype):
        logits = runner.run(batch)[1]
    with _precision(dtype):
        loss = runner.run(batch)[0]
    loss.backward()
    grads = {f"grad {name.removeprefix('model.')}": p.grad for name, p in runner.model.named_parameters()}
    runner.model.zero_grad()
    return {"logits": logits.float() if logits.dtype != torch.float64 else logits, **grads}


def _precision(dtype: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")


def make_step(runner: Runner, mode: str, dtype: str, batches: list[Batch]) -> Callable[[int], float]:
    """A function that runs all batches once and returns the seconds; its argument, the turn, is not used."""

    def train(_turn: int) -> float:
        taken = 0.0
        for batch in batches:
            runner.model.zero_grad()
            start = time.perf_counter()
            with _precision(dtype):
                loss = runner.run(batch)[0]
            loss.backward()
            taken += time.perf_counter() - start
        runner.model.zero_grad()
        return taken

    def infer(_turn: int) -> float:
        start = time.perf_counter()
        with torch.no_grad(), _precision(dtype):
            for batch in batches:
                runner.run(batch)
        return time.perf_counter() - start

    return train if mode == TRAINING else infer


def measure(
    size: str,
    mode: str,
    names: list[str],
    dtypes: list[str],
    batches: list[Batch],
    sentences: Sentences,
    effort: timing.Effort,
    source: rows.Origin,
) -> list[rows.StepRow]:
    """Checks that the providers agree, times them in turn in all dtypes, and returns a row for each.

    Raises:
        benchmarks.verify.ParityError: a provider computes something else.
    """
    builder = Builder(SIZES[size], len(sentences.contexts))
    runners = {name: builder.build(name) for name in names if takes(name, mode)}
    judged = sentences.draw(_JUDGED_BATCHES, _JUDGED_SENTENCES, seed=1)
    for dtype in dtypes:
        require_agreement(builder, runners, judged, dtype)
    steps = {}
    for name, runner in runners.items():
        runner.model.train(mode == TRAINING)
        runner.prepare()
        for dtype in dtypes:
            steps[name, dtype] = make_step(runner, mode, dtype, batches)
    disturbance = timing.Disturbance()
    taken = timing.interleave(steps, effort)
    return rows.step_rows(
        taken,
        disturbance.share(),
        source,
        rival=(RELEASED, "float32"),
        size=size,
        mode=mode,
        lengths=sentences.source,
        batches=len(batches),
        sentences=sum(batch.sentences for batch in batches),
        tokens=sum(batch.tokens for batch in batches),
        cells=sum(batch.cells for batch in batches),
    )


def _done(
    measured: list[rows.StepRow], size: str, mode: str, lengths: str, batches: list[Batch], repeats: int
) -> set[tuple[str, str]]:
    """(provider, dtype) of the rows that such a measurement would give."""
    asked = (size, mode, lengths, len(batches), sum(batch.sentences for batch in batches), repeats)
    return {
        (row.provider, row.dtype)
        for row in measured
        if (row.size, row.mode, row.lengths, row.batches, row.sentences, row.repeats) == asked
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_to_end", description="Steps of QACG-BERT, providers side by side."
    )
    add_common_options(parser)
    parser.add_argument("--sizes", choices=SIZES, nargs="+")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES))
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="bfloat16 is autocast")
    parser.add_argument(
        "--providers", choices=PROVIDERS, nargs="+", help="all; with --quick all but torch.compile, which takes minutes"
    )
    parser.add_argument("--data", default=default_data(), help="folder with the split train (QACG_DATA/sentihood)")
    parser.add_argument("--tokenizer", help="folder or vocabulary; without it one is learned from the split")
    parser.add_argument("--batch", type=int, help="sentences of a batch (64)")
    parser.add_argument("--batches", type=int, help="batches of a repeat (8)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to start no other size and mode")
    parser.add_argument("--repeats", type=int, help="repeats of each provider, beside one to warm up (3)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    names = options.providers or [name for name in PROVIDERS if not (options.quick and name == COMPILED)]
    sizes = options.sizes or (["tiny"] if options.quick else ["minilm", "base-2", "base-12"])
    repeats = options.repeats or (2 if options.quick else 3)
    budget = Budget(60 * options.minutes)
    effort = timing.Effort(seconds=0, fewest_rounds=repeats, most_rounds=repeats, warmup_rounds=1)
    source = rows.origin()
    print(heading(source), flush=True)
    measured: list[rows.StepRow] = []
    try:
        sentences = load_sentences(options.data, options.tokenizer)
        size_of_batch = options.batch or (8 if options.quick else 64)
        batches = sentences.draw(options.batches or (2 if options.quick else 8), size_of_batch)
        print(f"sentences: {sentences.source}", flush=True)
        writer = rows.Writer(options.out, "end-to-end-quick" if options.quick else "end-to-end", source, resume=True)
        measured += writer.kept
        for size in sizes:
            for mode in options.modes:
                wanted = {(name, dtype) for name in names if takes(name, mode) for dtype in options.dtypes}
                if wanted <= _done(measured, size, mode, sentences.source, batches, repeats):
                    print(f"{size} {mode}: kept")
                    continue
                if budget.is_spent():
                    print(f"{size} {mode}: not measured, the time is spent")
                    continue
                new = measure(size, mode, names, options.dtypes, batches, sentences, effort, source)
                writer.add(new)
                measured += new
                for row in new:
                    print(row, flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    except (InputError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    judged = step_marks.judge([*step_marks.MARKS, *step_marks.AIMS], measured)
    print("\n".join(map(str, judged)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
