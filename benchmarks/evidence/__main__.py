"""Does quasi-attention help? `make evidence`, or `python -m benchmarks.evidence --data DIR --out DIR`.

Trains every model of the comparison with several seeds, keeps what each said of the test split, and writes tables and
a picture of what has been measured. The same command goes on where it was ended, in the midst of a training too.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from qacg_models.cli.libraries import load_libraries
from qacg_models.errors import InputError
from qacg_models.utils.child_python import module_command

from benchmarks.cli.options import INTERRUPTED
from benchmarks.evidence import jobs, tables
from benchmarks.evidence.comparison import compare, compare_variants
from benchmarks.evidence.picture import draw
from benchmarks.evidence.plan import CONTESTANTS, DATA, Trial, chosen_settings, every_trial, judged, searches
from benchmarks.evidence.results import Result, kept

TABLES, PICTURE, UNFINISHED = "evidence.md", "evidence.svg", "unfinished"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description="Does quasi-attention help?")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=f"holds {'/ and '.join(DATA)}/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of results, tables and the picture")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once, each on one core")
    parser.add_argument("--minutes", type=float, metavar="X", help="end then; the same command goes on")
    parser.add_argument("--table", action="store_true", help="train nothing, write tables and picture of what is there")
    parser.add_argument("--only", metavar="TRIAL", help="this training, in this process")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs: got {options.jobs}, wanted at least 1")
    try:
        if options.only is not None:
            load_libraries(alone=arguments is None)
            return _one(options)
        whole = options.table or _train(options)
        _write(options.data, options.out)
    except (InputError, OSError, ValueError, jobs.Failed) as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on")
        return INTERRUPTED
    if not whole:
        print("the time is up; the same command goes on")
    return 0


def next_trial(out: Path, under_way: Iterable[str] = ()) -> Trial | None:
    """The next training that can be begun; None if there is none, or if those under way have to end before."""
    results, busy = kept(out), set(under_way)
    for trial in [*searches(), *judged(_chosen(results))]:
        if trial.name not in results and trial.name not in busy:
            return trial
    return None


def seconds_left(results: Mapping[str, Result]) -> float:
    """What the trainings that wait will take of one core, by what the others took for a pass over the training data."""
    done = _passes(one.trial for one in results.values())
    return sum(one.row["seconds"] for one in results.values()) / done * (_passes(every_trial()) - done)


def _passes(trials: Iterable[Trial]) -> int:
    return sum(trial.epochs for trial in trials)


def _one(options: argparse.Namespace) -> int:
    # Transformers, which the process that starts the others does without.
    from benchmarks.evidence.trials import carry_out

    known = {trial.name: trial for trial in [*searches(), *judged(_chosen(kept(options.out)))]}
    if options.only not in known:
        raise InputError(f"--only: got {options.only!r}, wanted one of {', '.join(known)}")
    carry_out(known[options.only], options.data, options.out / UNFINISHED, options.out)
    return 0


def _chosen(results: Mapping[str, Result]) -> dict[str, str]:
    return chosen_settings({name: one.dev for name, one in results.items() if one.trial.is_search})


def _train(options: argparse.Namespace) -> bool:
    out = options.out

    def command(trial: Trial) -> list[str]:
        print(f"begun: {trial.name}", flush=True)
        paths = ["--data", str(options.data), "--out", str(out)]
        return module_command("benchmarks.evidence", *paths, "--only", trial.name)

    def ended(trial: Trial) -> None:
        results = kept(out)
        one = results[trial.name]
        hours = seconds_left(results) / 3600 / options.jobs
        print(
            f"ended: {trial.name}, dev {100 * one.dev:.1f}, {one.row['seconds'] / 60:.0f} min;"
            f" {len(results)} of {len(every_trial())}, about {hours:.1f} h left",
            flush=True,
        )

    return jobs.run(
        lambda busy: next_trial(out, busy),
        command,
        out / UNFINISHED,
        at_once=options.jobs,
        seconds=None if options.minutes is None else 60 * options.minutes,
        ended=ended,
    )


def _write(data: Path, out: Path) -> None:
    """The tables, and the picture where there is a difference to draw."""
    results = kept(out)
    compared = [found for name in DATA if (found := compare(name, list(results.values()), data)) is not None]
    parts = ["### Settings, SentiHood's dev\n", tables.of_settings(results)]
    for one in compared:
        title = DATA[one.data].title
        parts += [
            f"\n### {title}, test\n",
            tables.of_figures(one),
            "",
            tables.of_differences(one),
            "",
            tables.notes(one),
        ]
    parts += ["\n### Other arithmetic\n", tables.of_checks(results)]
    parts += [
        "\n### By how the second map is let in, SentiHood's test\n",
        tables.of_variants(compare_variants(list(results.values()), data)),
    ]
    parts += ["\n### The second map, dev\n", tables.of_gates(results)]
    text = "\n".join(parts) + "\n"
    print(f"\n{text}\n{len(results)} of {len(every_trial())} trainings of {len(CONTESTANTS)} models")
    out.mkdir(parents=True, exist_ok=True)
    (out / TABLES).write_text(text, encoding="utf-8")
    drawn = [one for one in compared if one.compared_models]
    if drawn:
        draw(drawn, out / PICTURE)


if __name__ == "__main__":
    sys.exit(main())
