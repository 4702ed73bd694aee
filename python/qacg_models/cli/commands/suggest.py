"""`qacg suggest`: aspects for texts without labels, and a sheet to label for training and evaluation."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.cli.flags import add_text_flags, check_range, resolve_text_flags
from qacg_models.errors import InputError
from qacg_models.utils.text import clipped, counted

if TYPE_CHECKING:
    from qacg_models.sentiment.columns import Columns
    from qacg_models.sentiment.suggest import Proposal, SheetRow

SEED = 0  # of the random rows
MAX_ASPECTS = 10  # with more aspects, the default sheet has too few rows for each
HELP = "propose aspects for texts without labels, and write a sheet to label for qacg train"
DESCRIPTION = (
    "Proposes aspects, which are clusters of frequent English or German nouns. Writes a CSV with a row for each chosen "
    "sentence and aspect, without a label. Rows marked dev in the column 'split' are a random sample: the metrics of "
    "qacg train on these rows estimate the metrics on new texts."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s --input FILE --output SHEET.csv [option ...]"
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="file of texts")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="sheet to write, .csv")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    by = "text of a row: one sentence, or a whole text of the input (default: %(default)s)"
    parser.add_argument("--by", choices=("sentence", "text"), default="sentence", help=by)
    aspects = (
        "aspects of the sheet: NAME, a proposed aspect or a word of the texts; NAME=WORD,..., an aspect for sentences"
        " with one of these words; NAME=, an aspect with random rows only (default: the proposed aspects)"
    )
    parser.add_argument("--aspects", nargs="+", metavar="NAME[=WORD,...]", help=aspects)
    rows = "maximum number of rows to label; a quarter of them is for evaluation (default: %(default)s)"
    parser.add_argument("--rows", type=int, default=500, metavar="N", help=rows)
    model = "folder that qacg train wrote; its least certain predictions are the new rows; requires --labelled"
    parser.add_argument("--with", dest="model", type=Path, metavar="MODEL", help=model)
    labelled = "CSV with labelled rows; they are copied to the new sheet, and no new row repeats them"
    parser.add_argument("--labelled", type=Path, metavar="FILE", help=labelled)
    add_text_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from qacg_models.sentiment.columns import SPLIT_COLUMN, Columns
    from qacg_models.sentiment.example import RowProblems
    from qacg_models.sentiment.predictor import Predictor
    from qacg_models.sentiment.suggest import HINT, distinct, new_rows, read_sheet, write_sheet
    from qacg_models.sentiment.tables import read_texts
    from qacg_models.sentiment.trained_model import load_trained
    from qacg_models.utils.machine import load_libraries, local_device

    _check(arguments)
    resolve_text_flags(arguments, arguments.model)
    stored = {"delimiter": arguments.delimiter, "encoding": arguments.encoding, "quoting": arguments.quoting}
    reading = Columns(arguments.text_column, None, None, **stored)
    columns = Columns(text=arguments.text_column)
    if arguments.model is not None:
        load_libraries()
        model = Predictor(load_trained(arguments.model, device=local_device()))
        columns = replace(model.trained.record.data_options.columns(), id=None, target=None)
        if columns.wide:
            raise InputError(
                "with: expected a model trained on a table with a row for each text and aspect, got a model trained on"
                " a wide table, which has a column for each aspect. Omit --with."
            )
    for name in columns.fields().values():
        if name in (HINT, SPLIT_COLUMN):
            raise InputError(f"columns: expected a name other than {HINT} and {SPLIT_COLUMN}, got {name!r}")
    labelled = [] if arguments.labelled is None else read_sheet(arguments.labelled, columns)
    skipped = RowProblems(arguments.input)
    table = read_texts(arguments.input, reading, arguments.input_format, skipped if arguments.skip_empty else None)
    texts = distinct((text for text in table[reading.text] if text), arguments.by == "sentence")
    if skipped.total:
        print(f"skipped {counted(skipped.total, 'row')} ({skipped.summary()})", file=sys.stderr)
    print(counted(len(texts), f"distinct {arguments.by}"), file=sys.stderr)
    source = _proposals(arguments, texts) if arguments.model is None else model
    rows = new_rows(texts, source, labelled, arguments.rows, SEED)
    if not rows:
        advice = "Pass texts that --labelled does not contain, or increase --rows."
        raise InputError(f"input: expected texts for at least one new row, got none. {advice}")
    to_label = [*(row for row in labelled if not row.label), *rows]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_sheet(arguments.output, [*to_label, *(row for row in labelled if row.label)], columns)
    _print_next_steps(arguments, to_label, labelled, columns)
    return 0


def _proposals(arguments: argparse.Namespace, sentences: list[str]) -> list[Proposal]:
    from qacg_models.sentiment.suggest import choose, propose

    if arguments.aspects is not None and all("=" in name for name in arguments.aspects):
        return choose(sentences, [], arguments.aspects)
    proposals = propose(sentences)
    for number, one in enumerate(proposals, 1):
        print(f"{number}. {one.name} ({len(one.found) / len(sentences):.1%}): {', '.join(one.words[:8])}")
        for place in [*one.found][:2]:
            print(f"   - {clipped(sentences[place], 200)}")
    if arguments.aspects is not None:
        return choose(sentences, proposals, arguments.aspects)
    if len(proposals) > MAX_ASPECTS:
        print(
            f"The sheet has {len(proposals)} aspects. With the same number of rows, a model is more accurate for fewer"
            " aspects: select some with --aspects NAME ..., and add your own with NAME=WORD,WORD."
        )
    return proposals


def _print_next_steps(
    arguments: argparse.Namespace, to_label: list[SheetRow], labelled: list[SheetRow], columns: Columns
) -> None:
    dev, texts = sum(row.split == "dev" for row in to_label), len({row.text for row in to_label})
    done = counted(sum(bool(row.label) for row in labelled), "labelled row")
    more = f", followed by {done} from {arguments.labelled}" if labelled else ""
    print(f"{counted(len(to_label), 'row')} to label, from {counted(texts, arguments.by)}, in {arguments.output}{more}")
    if dev:
        print(f"Label the {counted(dev, 'row')} marked dev first: a random sample, on which metrics are measured.")
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


def _check(arguments: argparse.Namespace) -> None:
    from qacg_models.utils.files import check_not_input, check_writable

    check_range("rows", arguments.rows, 1, 1_000_000)
    if arguments.model is not None and arguments.aspects is not None:
        raise InputError(
            "aspects: expected none with --with, whose model has its own aspects, got names. Omit --aspects or --with."
        )
    if arguments.model is not None and arguments.labelled is None:
        raise InputError(
            "labelled: expected the CSV on which the model of --with was trained, got none. Add --labelled FILE; its "
            "rows are copied to the new sheet."
        )
    output = arguments.output
    for name, path in (("labelled", arguments.labelled), ("output", output)):
        if path is not None and path.suffix.lower() != ".csv":
            raise InputError(f"{name}: expected a name that ends in .csv, got {path}.")
    check_writable("output", output)
    for source in filter(None, (arguments.input, arguments.labelled)):
        check_not_input("output", output, source)
    if output.exists() and not arguments.overwrite:
        raise InputError(
            f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it, labels included."
        )
