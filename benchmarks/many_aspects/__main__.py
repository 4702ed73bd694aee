"""Compares models that classify a text for many aspects, by accuracy and cost: `python -m benchmarks.many_aspects`.

Trains every arm (compared model) on one core, stores dev metrics and test scores, and prints tables. The same command
resumes an interrupted run. Several processes can train different runs with `--only`.
"""

import argparse
import sys
from pathlib import Path

from qacg_models.cli.libraries import load_libraries

from benchmarks.command import RESUMES, exit_status
from benchmarks.evidence.results import require_known
from benchmarks.many_aspects.arms import DATA, Trial, evaluated, other_searches, searches
from benchmarks.many_aspects.results import load


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_aspects", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=f"folder of {'/ and '.join(DATA)}/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results and tables")
    parser.add_argument("--table", action="store_true", help="only write tables and figure of the stored results")
    parser.add_argument("--speed", action="store_true", help="only measure the speed of the arms that have a result")
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="run another study: leave out one aspect at a time in training, and evaluate on it",
    )
    parser.add_argument("--only", nargs="+", metavar="TRIAL", help="only these training runs")
    options = parser.parse_args(arguments)
    load_libraries()
    return exit_status(lambda: _run(options), RESUMES)


def _run(options: argparse.Namespace) -> int:
    import torch

    from benchmarks.many_aspects import speed, tables, unseen
    from benchmarks.many_aspects.training import train

    if options.unseen:
        torch.set_num_threads(1)
        print(unseen.run_all(options.data, options.out, options.only, train_runs=not options.table))
        return 0
    if options.speed:
        speed.measure(options.data, options.out)
    if options.speed or options.table:
        print(tables.write(options.data, options.out))
        return 0
    torch.set_num_threads(1)
    while (trial := next_trial(options.out, options.only)) is not None:
        print(f"training: {trial.name}", flush=True)
        result = train(trial, options.data, options.out)
        print(f"{trial.name}: dev metric {100 * result.dev:.1f} %, {result.seconds / 60:.1f} CPU minutes", flush=True)
    print(tables.write(options.data, options.out))
    return 0


def next_trial(out: Path, only: list[str] | None) -> Trial | None:
    """The first training run without a result; None if all have one. With `only`, other runs are ignored.

    Raises:
        ValueError: a name of `only` is unknown, or its setting is not chosen yet.
    """
    results = load(out)
    chosen = evaluated({name: one.dev for name, one in results.items()})
    known = {one.name: one for one in [*searches(), *other_searches(), *chosen]}
    require_known(only, known)
    return next((known[name] for name in only or known if name not in results), None)


if __name__ == "__main__":
    sys.exit(main())
