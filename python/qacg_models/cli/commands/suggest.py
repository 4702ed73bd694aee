"""`qacg suggest`: aspects for texts without labels, and a sheet to fill in for training."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from qacg_models.cli.flags import check_range
from qacg_models.cli.text_flags import add_text_flags, settle_text_flags
from qacg_models.errors import InputError
from qacg_models.suggestion import ASPECTS

HELP = "aspects for texts without labels, and a sheet to fill in that qacg train reads"
DESCRIPTION = (
    "Proposes aspects, clusters of frequent nouns with example sentences, English or German, and writes a CSV with a "
    "row for a sentence and an aspect, whose label is empty. Fill the labels in (none where there is no opinion), "
    "delete rows and rename aspects as you like, and train on it. With a model, its aspects are asked about, and the "
    "rows of which it is least sure come first."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s --input FILE --output SHEET.csv [option ...]"
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="file of texts")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="sheet to write, .csv")
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is in the way")
    parser.add_argument(
        "--with", dest="model", type=Path, metavar="MODEL", help="folder that qacg train wrote, to ask how sure it is"
    )
    file = parser.add_argument_group("input file")
    add_text_flags(file, "that of --with MODEL, or text, auto and utf-8")
    sheet = parser.add_argument_group("sheet")
    sheet.add_argument(
        "--by",
        choices=("sentence", "text"),
        default="sentence",
        help="whether texts are taken apart into sentences (default: %(default)s)",
    )
    sheet.add_argument(
        "--aspects", type=int, default=ASPECTS, metavar="N", help="aspects to propose at most (default: %(default)s)"
    )
    sheet.add_argument("--keep", nargs="+", metavar="NAME", help="those of the proposed aspects to ask about")
    sheet.add_argument(
        "--rows", type=int, default=500, metavar="N", help="rows of the sheet at most (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Proposes, or asks the model, and writes the sheet."""
    from qacg_models.data.columns import Columns
    from qacg_models.data.requests import format_of, read_requests
    from qacg_models.data.row_problems import RowProblems
    from qacg_models.suggestion.sheet import check_text_column, distinct, rows_of, write_sheet

    _check(arguments)
    settle_text_flags(arguments, arguments.model)
    check_text_column(arguments.text_column)
    columns = Columns(arguments.text_column, None, None, delimiter=arguments.delimiter, encoding=arguments.encoding)
    data_format, skipped = format_of(arguments.input, arguments.input_format), RowProblems(arguments.input)
    requests = read_requests(arguments.input, data_format, columns, skipped=skipped if arguments.skip_empty else None)
    sentences = distinct((one.text for one in requests if not one.skipped), arguments.by == "sentence")
    if skipped.total:
        _say(f"skipped {skipped.total:,} rows ({skipped.summary()})")
    _say(f"{len(sentences):,} distinct {arguments.by}s")
    if arguments.model is None:
        proposals = _proposals(arguments, sentences)
        rows = rows_of(sentences, proposals, arguments.rows)
    else:
        rows = _least_sure(arguments, sentences)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_sheet(arguments.output, rows, arguments.text_column)
    texts = len({row.text for row in rows})
    print(f"{len(rows):,} rows of {texts:,} {arguments.by}s in {arguments.output}; fill in the column label, then")
    column = "" if arguments.text_column == "text" else f" --text-column {shlex.quote(arguments.text_column)}"
    print(f"  qacg train --data {shlex.quote(str(arguments.output))}{column} --output MODEL")
    return 0


def _proposals(arguments: argparse.Namespace, sentences: list[str]) -> list:
    from qacg_models.suggestion.proposals import propose

    proposals = propose(sentences, arguments.aspects)
    for number, one in enumerate(proposals, 1):
        share = len(one.picked) / len(sentences)
        print(f"{number}. {one.name} ({share:.1%}): {', '.join(one.words[:8])}")
        if one.phrases:
            print(f"   phrases: {', '.join(one.phrases)}")
        for place in one.picked[:2]:
            print(f"   - {sentences[place]}")
    if arguments.keep is None:
        return proposals
    unknown = [name for name in arguments.keep if name not in {one.name for one in proposals}]
    if unknown:
        raise InputError(f"keep: got {unknown[0]!r}, wanted one of {', '.join(one.name for one in proposals)}")
    return [one for one in proposals if one.name in arguments.keep]


def _least_sure(arguments: argparse.Namespace, sentences: list[str]) -> list:
    from qacg_models.cli.libraries import load_libraries

    load_libraries("inference", alone=False)
    from qacg_models.inference.aspect_sentiment import AspectSentiment
    from qacg_models.suggestion.least_sure import least_sure
    from qacg_models.utils.distributed import own_device

    ask = AspectSentiment.from_pretrained(arguments.model, device=own_device())
    total = len(sentences)
    return least_sure(ask, sentences, arguments.rows, seen=lambda number: _say(f"asked about {number:,} of {total:,}"))


def _check(arguments: argparse.Namespace) -> None:
    from qacg_models.utils.outputs import check_not_input, check_writable

    check_range("rows", arguments.rows, 1, 1_000_000)
    check_range("aspects", arguments.aspects, 1, 1_000)
    if arguments.model is not None and arguments.keep is not None:
        raise InputError("keep: got it beside --with, whose model has its own aspects; wanted one of them")
    output = arguments.output
    if output.suffix.lower() != ".csv":
        raise InputError(f"output: got {output}, wanted a name that ends in .csv")
    check_writable("output", output)
    check_not_input("output", output, arguments.input)
    if output.exists() and not arguments.overwrite:
        raise InputError(f"{output}: is already there; --overwrite replaces it, labels and all")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
