"""Studies whether quasi-attention helps: `make evidence`, or `python -m benchmarks.evidence --data DIR --out DIR`.

Trains every model of the study with several seeds, each run with one thread. Stores metrics and test scores, and writes
tables and a figure. The same command resumes an interrupted run. Several processes can share the training: give each
process other training runs with `--only`.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from qacg_models.cli.libraries import load_libraries

from benchmarks.command import RESUMES, exit_status
from benchmarks.evidence import tables
from benchmarks.evidence.comparison import compare, compare_variants
from benchmarks.evidence.results import Result, load, require_known
from benchmarks.evidence.study import CONTESTANTS, DATA, Trial, chosen_settings, evaluated, every_trial, searches

TABLES, FIGURE, UNFINISHED = "evidence.md", "evidence.svg", "unfinished"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description="Studies whether quasi-attention helps: trains models and compares their metrics.",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=f"folder of {'/ and '.join(DATA)}/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results, tables and figure")
    parser.add_argument("--table", action="store_true", help="only write tables and figure of the stored results")
    parser.add_argument("--only", nargs="+", metavar="TRIAL", help="only these training runs, by name")
    options = parser.parse_args(arguments)
    if not options.table:
        load_libraries()
    return exit_status(lambda: _run(options), RESUMES)


def _run(options: argparse.Namespace) -> int:
    if not options.table:
        from benchmarks.evidence.training import train  # imports transformers

        for trial in missing_trials(options.out, options.only):
            print(f"training: {trial.name}", flush=True)
            train(trial, options.data, options.out / UNFINISHED, options.out)
            results = load(options.out)
            one = results[trial.name]
            minutes = one.record["seconds"] / 60
            print(
                f"dev metric {100 * one.dev:.1f} %, {minutes:.0f} minutes; "
                f"{len(results)} of {len(every_trial())} training runs finished",
                flush=True,
            )
    write_tables(options.data, options.out)
    return 0


def missing_trials(out: Path, only: list[str] | None = None) -> Iterator[Trial]:
    """Yields the training runs that have no result yet.

    Reads the results again before each run, because the results of the searches choose the settings of later runs.

    Args:
        out: folder of results.
        only: names of the runs to yield, in this order; None for all runs in the study's order.

    Raises:
        ValueError: a name of `only` is unknown, or its setting is not chosen yet.
    """
    done: set[str] = set()
    while True:
        results = load(out)
        known = {trial.name: trial for trial in [*searches(), *evaluated(_chosen(results))]}
        require_known(only, known)
        names = [name for name in only or known if name not in results and name not in done]
        if not names:
            return
        done.add(names[0])
        yield known[names[0]]


def _chosen(results: Mapping[str, Result]) -> dict[str, str]:
    return chosen_settings({name: one.dev for name, one in results.items() if one.trial.is_search})


def write_tables(data: Path, out: Path) -> None:
    """Writes and prints the tables; draws the figure if two models can be compared."""
    results = load(out)
    compared = [found for name in DATA if (found := compare(name, list(results.values()), data)) is not None]
    variants = compare_variants(list(results.values()), data)
    parts = ["### Settings, SentiHood's dev\n", tables.settings_table(results)]
    for one in compared:
        parts += [f"\n### {DATA[one.data].title}, test\n", tables.metrics_table(one), ""]
        parts += [tables.differences_table(one), "", tables.notes(one)]
    parts += ["\n### Other arithmetic\n", tables.checks_table(results)]
    parts += ["\n### Weight of the quasi-attention map, SentiHood's test\n", tables.variants_table(variants)]
    parts += ["\n### The quasi-attention map, dev\n", tables.gates_table(results)]
    text = "\n".join(parts) + "\n"
    print(f"\n{text}\n{len(results)} of {len(every_trial())} training runs of {len(CONTESTANTS)} models finished")
    out.mkdir(parents=True, exist_ok=True)
    (out / TABLES).write_text(text, encoding="utf-8")
    drawn = [one for one in compared if one.compared_models]
    if drawn:
        tables.draw(drawn, out / FIGURE)


if __name__ == "__main__":
    sys.exit(main())
