"""Run records of `qacg train --rows` (one line of JSON per seed), and Markdown tables of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.metrics import titles_of
from qacg_models.models.auto import BACKBONES
from qacg_models.reporting.tables import MAJORITY, TFIDF
from qacg_models.runs.record import TrainingRecord
from qacg_models.utils.cells import counted, markdown_table, mean_and_deviation
from qacg_models.utils.plain_text import parse_json, read_text

# Options that are not listed as differences, because they have their own columns.
_OWN_COLUMNS = ("model", "seed", "protocol", "attention")
# Options that not every model has. They are listed only if they differ between records of one model.
_MODEL_OPTIONS = ("context_projection", "context_standalone", "context_from_layer", "context_start")
# Keys that the tables read; old records have no `tfidf` and no `evaluations`.
_KEYS = {
    *("task", "backbone", "pretrained", "protocol", "seed", "metrics", "majority", "selected", "seconds", "data"),
    *("options", "versions", "machine", "commit", "written"),
}


def row_of(record: TrainingRecord) -> dict:
    """Returns the run record of a training, in JSON types and without local paths.

    Only the last two parts of the path of the initial checkpoint are kept, as `pretrained`.
    """
    plain = record.to_json()
    options = plain["options"]
    begun, paths = options["from_checkpoint"], ("from_checkpoint", "tokenizer", "tensorboard")
    kept = ("metrics", "tfidf", "majority", "selected", "overlap", "steps", "evaluations")
    return {
        "task": record.task.name,
        "backbone": BACKBONES[record.options.model].title,
        "pretrained": None if begun is None else "/".join(Path(begun).parts[-2:]),
        "protocol": options["protocol"],
        "seed": options["seed"],
        **{name: plain[name] for name in (*kept, "seconds")},
        "data": {split: part.sha256 for split, part in record.data.items()},
        "options": {name: value for name, value in options.items() if name not in paths},
        **{name: plain[name] for name in ("versions", "machine", "commit", "written")},
    }


def append_rows(folder: Path, records: Sequence[TrainingRecord]) -> Path:
    """Appends the records of a run's seeds to a file named after their task, model and protocol.

    Records that the file already has, for example after a resumed run, are not appended again.

    Args:
        folder: folder of the file, which is created if it does not exist.
        records: at least one record; all have the same task, model and protocol.

    Returns:
        The path of the file.
    """
    rows = [row_of(record) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    first = rows[0]
    path = folder / f"{first['task']}-{records[0].options.model}-{first['protocol']}.jsonl"
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
    there = set(path.read_text(encoding="utf-8").splitlines(keepends=True)) if path.exists() else set()
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(line for line in lines if line not in there)
    return path


def read_rows(paths: Sequence[Path]) -> list[dict]:
    """Reads run records; each path is a file, or a folder whose *.jsonl files are read.

    Raises:
        InputError: there are no records, a file cannot be read, or a line is not a run record.
    """
    rows = []
    for path in _files(paths):
        try:
            lines = read_text(path).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise InputError(f"{path}:{number}: is not JSON ({error})") from None
            if not isinstance(row, dict) or not row.keys() >= _KEYS:
                raise InputError(f"{path}:{number}: expected a record of qacg train --rows, got other JSON")
            rows.append(row)
    if not rows:
        raise InputError(f"rows: expected records of qacg train --rows, got none in {', '.join(map(str, paths))}")
    return rows


def markdown(rows: Sequence[dict], split: str | None = None) -> str:
    """Returns a Markdown table for each data set, with means and standard deviations over seeds in per cent.

    A line about the machine, the versions and the commits follows.

    Args:
        rows: run records of one machine, since times of different machines are not comparable.
        split: split of the metrics; None: test, or dev if no record has a test split.

    Raises:
        InputError: the records are from several machines; a record has no metrics on `split`; or two records agree in
            model, initial checkpoint, options and seed.
    """
    machines = {json.dumps(row["machine"], sort_keys=True) for row in rows}
    if len(machines) > 1:
        raise InputError(
            f"rows: expected records of one machine, since times of machines differ, got {len(machines)} machines; pass"
            " the files of one machine"
        )
    split = split or ("test" if any("test" in row["metrics"] for row in rows) else "dev")
    sets: dict[tuple, list[dict]] = {}
    for row in rows:
        if split not in row["metrics"]:
            raise InputError(f"rows: expected metrics on {split}, got none for seed {row['seed']} of {row['backbone']}")
        sets.setdefault((row["task"], json.dumps(row["data"], sort_keys=True)), []).append(row)
    return "\n\n".join([*(_table(chosen, split) for chosen in sets.values()), _source(rows)])


def _table(rows: Sequence[dict], split: str) -> str:
    kinds: dict[str, list[dict]] = {}
    for row in rows:
        kinds.setdefault(_kind(row), []).append(row)
    first = rows[0]
    titles = titles_of(first["metrics"][split])
    header = ["model", "from", "protocol", "attention", "seeds", *titles.values(), "minutes a seed"]
    lines = []
    for chosen in kinds.values():
        row, seeds = chosen[0], sorted(row["seed"] for row in chosen)
        if len(set(seeds)) < len(seeds):
            raise InputError(
                f"rows: expected each seed of {row['backbone']} once, got {seeds}; remove repeated records"
            )
        name = ", ".join([row["backbone"], *_differing(row, rows)])
        known = [name, row["pretrained"] or "scratch", row["protocol"], row["options"]["attention"]]
        figures = [_mean_and_deviation([one["metrics"][split][key] for one in chosen], 100) for key in titles]
        lines.append(
            [
                *known,
                " ".join(map(str, seeds)),
                *figures,
                _mean_and_deviation([one["seconds"] for one in chosen], 1 / 60),
            ]
        )
    # Old records have no TF-IDF baseline.
    for title, baseline in ((TFIDF, first.get("tfidf", {})), (MAJORITY, first["majority"])):
        if split in baseline:
            lines.append([title, *[""] * 4, *(_mean_and_deviation([baseline[split][key]], 100) for key in titles), ""])
    return f"{first['task']}, {split}, in %:\n\n{markdown_table(header, lines, texts=5)}"


def _kind(row: dict) -> str:
    """Returns a key that is the same for records that differ only in their seed."""
    options = {name: value for name, value in row["options"].items() if name != "seed"}
    return json.dumps([row["pretrained"], options], sort_keys=True)


def _differing(row: dict, rows: Sequence[dict]) -> list[str]:
    """Returns "name value" of the options in which a record differs from at least one record with the same protocol.

    Two records are compared only if both start from pretrained weights, or both from scratch. Options in _MODEL_OPTIONS
    are compared only between records of one model.
    """
    alike = [
        other
        for other in rows
        if other["protocol"] == row["protocol"] and (other["pretrained"] is None) == (row["pretrained"] is None)
    ]
    same_model = [other for other in alike if other["backbone"] == row["backbone"]]
    return [
        f"{name} {value}"
        for name, value in row["options"].items()
        if name not in _OWN_COLUMNS
        and any(other["options"].get(name) != value for other in (same_model if name in _MODEL_OPTIONS else alike))
    ]


def _mean_and_deviation(values: Sequence[float | None], scale: float) -> str:
    return "n/a" if None in values else mean_and_deviation(values, scale)


def _source(rows: Sequence[dict]) -> str:
    """Returns one line with the selection of the checkpoints, machine, versions and commits."""
    machine = rows[0]["machine"]  # of all records; `markdown` checks this
    devices = machine["cuda"]["devices"] or [machine["cpu"]["model"]]
    versions = ", ".join(dict.fromkeys(row["versions"]["torch"] for row in rows))
    commits = ", ".join(dict.fromkeys(_short(row["commit"]) for row in rows))
    dates = sorted(row["written"][:10] for row in rows)
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{_selection(rows)} {', '.join(map(str, devices))}, {counted(machine['threads'], 'thread')},"
        f" torch {versions}, commit {commits}, {days}. Minutes include the evaluations."
    )


def _selection(rows: Sequence[dict]) -> str:
    """Returns sentences about the splits that selected checkpoints, and about runs without selection."""
    selected = [row for row in rows if row.get("evaluations") != 1]  # old records lack the number
    if not selected:
        return "Weights of the last step, without checkpoint selection."
    splits = list(dict.fromkeys(row["selected"]["split"] for row in selected))
    parts = [f"Checkpoints selected on {', '.join(splits)}."]
    if others := len(rows) - len(selected):
        parts.append(f"Weights of the last step, without checkpoint selection, in {others} of {len(rows)} runs.")
    if "test" in splits:
        parts.append("Metrics on test are optimistic if the checkpoint was selected on test.")
    return " ".join(parts)


def _short(commit: str | None) -> str:
    digest, dash, modified = (commit or "none").partition("-")
    return digest[:12] + dash + modified


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
