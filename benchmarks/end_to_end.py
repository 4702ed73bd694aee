"""Times whole model steps of QACG-BERT: `python -m benchmarks.end_to_end --out DIR`.

A training step is forward, loss and backward with dropout; an inference step is a forward. All implementations run the
same batches of sentences, interleaved in one process. The same command resumes an interrupted run, if the checkout has
no local changes and neither commit nor versions have changed.
"""

import argparse
import math
import sys
import time

import torch
from qacg_models.utils.machine import load_libraries

from benchmarks import records
from benchmarks.cases import MAIN_DTYPES
from benchmarks.command import RESUMES, add_common_options, exit_status
from benchmarks.measure import timing
from benchmarks.model_steps import COMPILED, MODES
from benchmarks.model_steps.implementations import IMPLEMENTATIONS, SIZES, supports
from benchmarks.model_steps.sentences import default_data, load_sentences
from benchmarks.model_steps.times import Workload, measure
from benchmarks.targets.performance import TARGETS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_to_end",
        description="Times whole model steps of QACG-BERT, with the implementations interleaved.",
    )
    add_common_options(parser)
    parser.add_argument(
        "--sizes", choices=SIZES, nargs="+", help="sizes of the model (default: all but tiny; with --quick: only tiny)"
    )
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES), help="kinds of steps (default: both)")
    parser.add_argument(
        "--dtypes",
        choices=MAIN_DTYPES,
        nargs="+",
        default=list(MAIN_DTYPES),
        help="default: all; bfloat16 uses autocast",
    )
    parser.add_argument(
        "--implementations",
        choices=IMPLEMENTATIONS,
        nargs="+",
        help="default: all; with --quick all but torch.compile, which takes minutes",
    )
    parser.add_argument(
        "--data",
        default=default_data(),
        help="folder with the train split (default: QACG_DATA/sentihood, or the sample if QACG_DATA is not set)",
    )
    parser.add_argument("--tokenizer", help="folder or vocabulary (default: trained on the train split)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--batch", type=int, help="sentences per batch (default: 64, with --quick 8)")
    parser.add_argument("--batches", type=int, help="batches per repeat (default: 8, with --quick 2)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="no size or mode is started after this many minutes (default: no limit)",
    )
    parser.add_argument("--repeats", type=int, help="repeats after one warm-up (default: 3, with --quick 2)")
    options = parser.parse_args(arguments)
    load_libraries()
    return exit_status(lambda: _measure(options), RESUMES if options.out else "")


def _measure(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    quick = options.quick
    names = options.implementations or [name for name in IMPLEMENTATIONS if not (quick and name == COMPILED)]
    repeats = options.repeats or (2 if quick else 3)
    end = time.monotonic() + 60 * options.minutes
    effort = timing.Effort(seconds=0, fewest_rounds=repeats, most_rounds=repeats, warmup_rounds=1)
    source = records.origin()
    print(source, flush=True)
    sentences = load_sentences(options.data, options.tokenizer)
    count, size = options.batches or (2 if quick else 8), options.batch or (8 if quick else 64)
    batches = sentences.draw(count, size, device=options.device)
    print(f"sentences: {sentences.source}", flush=True)
    of_device = "" if options.device == "cpu" else f"-{options.device}"
    name = f"end-to-end{of_device}{'-quick' if quick else ''}"
    writer = records.Writer(options.out, name, source, resume=True)
    measured: list[records.StepRecord] = list(writer.kept)
    for size in options.sizes or (["tiny"] if quick else ["minilm", "base-2", "base-12"]):
        for mode in options.modes:
            required = {(name, dtype) for name in names if supports(name, mode) for dtype in options.dtypes}
            if required <= _done(measured, Workload.of(size, mode, sentences.source, batches), repeats):
                print(f"{size} {mode}: already measured")
                continue
            if time.monotonic() >= end:
                print(f"{size} {mode}: not measured, the time limit is reached")
                continue
            new = measure(size, mode, names, options.dtypes, batches, sentences, effort, source)
            writer.add(new)
            measured += new
            for one in new:
                print(one, flush=True)
    if options.device == "cpu":
        print("\n".join(str(target.judge("cpu", measured)) for target in TARGETS["steps"]))
    return 0


def _done(measured: list[records.StepRecord], workload: Workload, repeats: int) -> set[tuple[str, str]]:
    """The pairs (implementation, dtype) that have a record of this workload and number of repeats."""
    same = (workload.size, workload.mode, workload.source, workload.batches, workload.sentences, repeats)
    return {
        (one.implementation, one.dtype)
        for one in measured
        if (one.size, one.mode, one.lengths, one.batches, one.sentences, one.repeats) == same
    }


if __name__ == "__main__":
    sys.exit(main())
