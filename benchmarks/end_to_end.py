"""Whole steps of QACG-BERT, providers side by side: `python -m benchmarks.end_to_end --out DIR`.

A training step is forward, loss and backward with dropout; inference is a forward. One repeat of a provider is the
same batches for all of them, so a ratio is one of throughput on sentences of those lengths. A size and mode whose rows
are there already, from the same sources, is not measured again: a run that was cut off goes on with the next.
"""

import argparse
import math
import sys

import torch
from qacg_models.cli.libraries import load_libraries
from qacg_models.errors import InputError

from benchmarks import rows
from benchmarks.cases.case import MAIN_DTYPES
from benchmarks.cli.options import INTERRUPTED, add_common_options
from benchmarks.measure import timing, verify
from benchmarks.plans.session import Budget
from benchmarks.steps.names import COMPILED, MODES
from benchmarks.steps.providers import PROVIDERS, SIZES, takes
from benchmarks.steps.sentences import Batch, default_data, load_sentences
from benchmarks.steps.step_times import measure
from benchmarks.targets import step_marks


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
    parser.add_argument(
        "--dtypes", choices=MAIN_DTYPES, nargs="+", default=list(MAIN_DTYPES), help="bfloat16 is autocast"
    )
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

    load_libraries(alone=arguments is None)
    torch.set_num_threads(options.threads)
    names = options.providers or [name for name in PROVIDERS if not (options.quick and name == COMPILED)]
    sizes = options.sizes or (["tiny"] if options.quick else ["minilm", "base-2", "base-12"])
    repeats = options.repeats or (2 if options.quick else 3)
    budget = Budget(60 * options.minutes)
    effort = timing.Effort(seconds=0, fewest_rounds=repeats, most_rounds=repeats, warmup_rounds=1)
    source = rows.origin()
    print(rows.heading(source), flush=True)
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
