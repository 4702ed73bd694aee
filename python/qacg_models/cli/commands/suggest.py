"""`qacg suggest`: aspects for texts without labels, and a sheet to label for training and evaluation."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.cli.flags import check_range
from qacg_models.cli.text_flags import add_text_flags, resolve_text_flags
from qacg_models.errors import InputError
from qacg_models.suggestion import ASPECTS
from qacg_models.utils.cells import clipped, counted

if TYPE_CHECKING:
    from qacg_models.data.columns import Columns
    from qacg_models.inference.predictor import Predictor
    from qacg_models.suggestion.proposals import Proposal
    from qacg_models.suggestion.sheet import SheetRow

MAX_ASPECTS = 10  # with more aspects, the default sheet has too few rows for each
HELP = "propose aspects for texts without labels, and write a sheet to label for qacg train"
DESCRIPTION = (
    "Proposes aspects, which are clusters of frequent English or German nouns. Writes a CSV with a row for each chosen "
    "sentence and aspect, without a label. Rows marked dev in the column 'split' are a random sample of sentences "
    "and aspects: the metrics of qacg train on these rows estimate the metrics on new texts. With a "
    "model (--with), the new rows have the model's aspects, and labelled rows (--labelled) are kept. The new training "
    "rows are then those with the model's least certain predictions, and the random ones of --random-rows."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s --input FILE --output SHEET.csv [option ...]"
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="file of texts")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="sheet to write, .csv")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--with",
        dest="model",
        type=Path,
        metavar="MODEL",
        help="folder that qacg train wrote; the new training rows are those with the least certain predictions of this "
        "model, and the random ones of --random-rows; requires --labelled",
    )
    parser.add_argument(
        "--labelled",
        type=Path,
        metavar="FILE",
        help="CSV with labelled rows; they are copied to the new sheet, and no new row repeats them",
    )
    file = parser.add_argument_group("input file")
    add_text_flags(file, "that of --with MODEL, otherwise that of qacg train")
    sheet = parser.add_argument_group("sheet")
    sheet.add_argument(
        "--by",
        choices=("sentence", "text"),
        default="sentence",
        help="text of a row: one sentence, or a whole text of the input (default: %(default)s)",
    )
    sheet.add_argument(
        "--aspects",
        type=int,
        metavar="N",
        help=f"number of aspects to propose (default: the number of clusters of similar nouns, at most {ASPECTS})",
    )
    sheet.add_argument(
        "--keep",
        nargs="+",
        metavar="NAME[=WORD,...]",
        help="aspects of the sheet: NAME keeps a proposed aspect, or adds one for sentences with the word NAME; "
        "NAME=WORD,... adds one for sentences with one of these words; NAME= adds one with random rows only (default: "
        "all proposed aspects)",
    )
    sheet.add_argument(
        "--rows", type=int, default=500, metavar="N", help="maximum number of rows to label (default: %(default)s)"
    )
    sheet.add_argument(
        "--dev-rows",
        type=int,
        metavar="N",
        help="number of random rows for evaluation, included in --rows (default: a quarter of --rows; 0 if --labelled "
        "has dev rows)",
    )
    sheet.add_argument(
        "--random-rows",
        type=int,
        metavar="N",
        help="number of random rows for training, included in --rows (default: a quarter of --rows; 0 with --with)",
    )
    sheet.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random rows (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Proposes aspects, or loads the model of --with, and writes the sheet; returns 0."""
    from qacg_models.data.columns import Columns
    from qacg_models.data.requests import format_of, read_requests
    from qacg_models.data.row_problems import RowProblems
    from qacg_models.suggestion.sheet import check_columns, distinct, read_sheet, write_sheet

    _check(arguments)
    resolve_text_flags(arguments, arguments.model)
    stored = {"delimiter": arguments.delimiter, "encoding": arguments.encoding, "quoting": arguments.quoting}
    reading = Columns(arguments.text_column, None, None, **stored)
    model = None if arguments.model is None else _load(arguments)
    columns = Columns(text=arguments.text_column) if model is None else _columns_of(model)
    check_columns(columns)
    labelled = [] if arguments.labelled is None else read_sheet(arguments.labelled, columns)
    data_format, skipped = format_of(arguments.input, arguments.input_format), RowProblems(arguments.input)
    requests = read_requests(arguments.input, data_format, reading, skipped=skipped if arguments.skip_empty else None)
    texts = distinct((one.text for one in requests if not one.skipped), arguments.by == "sentence")
    if skipped.total:
        _say(f"skipped {counted(skipped.total, 'row')} ({skipped.summary()})")
    _say(counted(len(texts), f"distinct {arguments.by}"))
    if model is None:
        asked: Predictor | list[Proposal] = _proposals(arguments, texts)
    else:
        asked = model
    rows = _new_rows(arguments, texts, labelled, asked)
    if not rows:
        raise InputError(
            "input: expected texts for at least one new row, got none. Pass texts that --labelled does not"
            " contain, or increase --rows."
        )
    first = [row for row in labelled if not row.label]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_sheet(arguments.output, [*first, *rows, *(row for row in labelled if row.label)], columns)
    _print_next_steps(arguments, [*first, *rows], labelled, columns)
    return 0


def _new_rows(
    arguments: argparse.Namespace, texts: list[str], labelled: list[SheetRow], asked: Predictor | list[Proposal]
) -> list[SheetRow]:
    """Returns the new rows to label, evaluation rows first; training rows have no text of an evaluation row."""
    from qacg_models.data.sentences import normalized
    from qacg_models.suggestion.sheet import dev_rows, mixed, noun_rows, random_rows
    from qacg_models.suggestion.uncertainty import most_uncertain

    names = [one.name for one in asked] if isinstance(asked, list) else list(asked.trained.task.aspects)
    count_dev, count_random = _random_counts(arguments, any(row.split == "dev" for row in labelled))
    before = {normalized(row.text) for row in labelled}
    dev = dev_rows([text for text in texts if normalized(text) not in before], names, count_dev, arguments.seed)
    reserved = {normalized(row.text) for row in [*labelled, *dev] if row.split != "train"}
    exclude = {row.pair for row in labelled} | {(text, name) for text in reserved for name in names}
    count = arguments.rows - count_dev - count_random
    if isinstance(asked, list):
        chosen = noun_rows(texts, asked, count, exclude)
    else:
        total = len(texts)
        chosen = most_uncertain(
            asked, texts, count, exclude, seen=lambda number: _say(f"predicted {number:,} of {counted(total, 'text')}")
        )
    drawn = random_rows(texts, names, count_random, arguments.seed, exclude | {row.pair for row in chosen})
    return [*dev, *mixed(chosen, drawn)]


def _random_counts(arguments: argparse.Namespace, has_dev: bool) -> tuple[int, int]:
    """Returns the numbers of random evaluation and training rows; raises InputError if their sum exceeds --rows."""
    dev, drawn, quarter = arguments.dev_rows, arguments.random_rows, arguments.rows // 4
    if dev is None:
        dev = 0 if has_dev else quarter
    if drawn is None:
        drawn = 0 if arguments.model is not None else quarter
    if dev + drawn > arguments.rows:
        raise InputError(
            f"rows: expected at least {dev + drawn}, the sum of --dev-rows {dev} and --random-rows {drawn}, got"
            f" {arguments.rows}. Increase --rows, or lower one of the others."
        )
    return dev, drawn


def _print_next_steps(
    arguments: argparse.Namespace, to_label: list[SheetRow], labelled: list[SheetRow], columns: Columns
) -> None:
    texts, done = len({row.text for row in to_label}), sum(bool(row.label) for row in labelled)
    dev = sum(row.split == "dev" for row in to_label)
    print(
        f"{counted(len(to_label), 'row')} to label, from {counted(texts, arguments.by)}, in {arguments.output}",
        end="",
    )
    print(f", followed by {counted(done, 'labelled row')} from {arguments.labelled}" if labelled else "")
    if dev:
        marked = "row marked dev first: it is" if dev == 1 else f"{dev:,} rows marked dev first: they are"
        print(f"Label the {marked} a random sample, on which metrics are measured.")
    elif not any(row.split == "dev" for row in labelled):
        print(
            "No row is marked dev, so qacg train uses a part of the sheet as dev. These rows are no random sample:"
            " metrics on dev do not estimate the metrics on new texts."
        )
    print(f"Fill in the column {columns.label}, with the word none if a text does not mention the aspect, then run")
    flags = "".join(
        f" --{flag}-column {shlex.quote(name)}"
        for flag, name in (("text", columns.text), ("aspect", columns.aspect), ("label", columns.label))
        if name != flag and name is not None
    )
    print(f"  qacg train --data {shlex.quote(str(arguments.output))}{flags} --output MODEL")
    print("To train before all rows are labelled, add --skip-empty.")


def _proposals(arguments: argparse.Namespace, sentences: list[str]) -> list[Proposal]:
    from qacg_models.suggestion.proposals import choose, propose

    if arguments.keep is not None and all("=" in name for name in arguments.keep):
        return choose(sentences, [], arguments.keep)
    proposals = propose(sentences, arguments.aspects)
    for number, one in enumerate(proposals, 1):
        share = len(one.picked) / len(sentences)
        print(f"{number}. {one.name} ({share:.1%}): {', '.join(one.words[:8])}")
        if one.phrases:
            print(f"   phrases: {', '.join(one.phrases)}")
        for place in one.picked[:2]:
            print(f"   - {clipped(sentences[place], 200)}")
    if len(proposals) < (arguments.aspects or 0):
        nouns = counted(len(proposals), "noun is", "nouns are")
        print(f"requested {counted(arguments.aspects, 'aspect')}; only {nouns} frequent enough.")
    if arguments.keep is not None:
        return choose(sentences, proposals, arguments.keep)
    if len(proposals) > MAX_ASPECTS:
        print(
            f"The sheet has {len(proposals)} aspects. With the same number of rows, a model is more accurate for fewer"
            " aspects: select some with --keep NAME ..., and add your own with NAME=WORD,WORD."
        )
    return proposals


def _load(arguments: argparse.Namespace) -> Predictor:
    from qacg_models.cli.libraries import load_libraries

    load_libraries()
    from qacg_models.inference.predictor import Predictor
    from qacg_models.utils.devices import local_device

    return Predictor.from_pretrained(arguments.model, device=local_device())


def _columns_of(model: Predictor) -> Columns:
    """Returns the columns of the sheet, named as in the training data of the model.

    Raises:
        InputError: the model was trained on a wide table.
    """
    from dataclasses import replace

    columns = model.trained.data_options.columns()
    if columns.wide:
        raise InputError(
            "with: expected a model trained on a table with a row for each text and aspect, got a model trained on a "
            "wide table, which has a column for each aspect. Omit --with."
        )
    return replace(columns, id=None, target=None)


def _check(arguments: argparse.Namespace) -> None:
    from qacg_models.utils.outputs import check_not_input, check_writable

    check_range("rows", arguments.rows, 1, 1_000_000)
    if arguments.aspects is not None:
        check_range("aspects", arguments.aspects, 1, 1_000)
    for name in ("dev_rows", "random_rows"):
        if (value := getattr(arguments, name)) is not None:
            check_range(name.replace("_", "-"), value, 0, arguments.rows)
    if arguments.model is not None and arguments.keep is not None:
        raise InputError(
            "keep: expected none with --with, whose model has its own aspects, got names. Omit --keep or --with."
        )
    if arguments.model is not None and arguments.labelled is None:
        raise InputError(
            "labelled: expected the CSV on which the model of --with was trained, got none. Add --labelled FILE; its "
            "rows are copied to the new sheet."
        )
    if arguments.labelled is not None and arguments.labelled.suffix.lower() != ".csv":
        raise InputError(f"labelled: expected a name that ends in .csv, got {arguments.labelled}.")
    output = arguments.output
    if output.suffix.lower() != ".csv":
        raise InputError(f"output: expected a name that ends in .csv, got {output}.")
    check_writable("output", output)
    check_not_input("output", output, arguments.input)
    if arguments.labelled is not None:
        check_not_input("output", output, arguments.labelled)
    if output.exists() and not arguments.overwrite:
        raise InputError(
            f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it, labels included."
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr)
