"""`qacg export`: writes a trained model as one file for other programs, or as a page that predicts in a browser."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError

if TYPE_CHECKING:
    from qacg_models.sentiment.example import Example
    from qacg_models.sentiment.export import Check
    from qacg_models.sentiment.report.model_page import Runtime
    from qacg_models.sentiment.trained_model import TrainedModel

USES_MODELS = True
PAGE = "page"
CHECKED_ROWS = 500  # a row is a text with an aspect; more take longer, and fewer miss rare differences
HELP = "write a trained model as one ONNX file, or as an offline page, checked against the model"
DESCRIPTION = (
    "Writes the model with eager attention, for any batch size, and for lengths up to the model's number of positions."
    " Inputs: input_ids, attention_mask, token_type_ids and, for a model with contexts, context_ids; output: logits."
    " The metadata has the labels, the contexts and the maximum length. The file is run on real rows and compared"
    " with the model. If a label differs, or a probability by more than 1e-5, no file is written and the exit status"
    " is 1. With --int8, 3 % of the labels may differ, and each probability by 0.5. A page contains an int8 model and"
    " its runtime: in a browser, the page predicts texts or a CSV without a network."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s MODEL --output FILE [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument(
        "--to", choices=("onnx", PAGE), default="onnx", help="format: .onnx or .html (default: %(default)s)"
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="quantize the encoder's linear layers to 8 bits, for --to onnx: the file is smaller, and the check allows"
        " larger differences; implied by --to page",
    )
    parser.add_argument(
        "--runtime",
        type=Path,
        metavar="FILE",
        help="for a page: the archive of onnxruntime-web that `npm pack` writes (default: in the current folder)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Exports the model, prints the comparison of the file with the model, and returns 0, or 1 if the check fails."""
    from qacg_models.sentiment.export import (
        SUFFIX,
        check_output,
        check_packages,
        rows_at_hand,
        spread,
    )
    from qacg_models.sentiment.report.model_page import SUFFIX as PAGE_SUFFIX
    from qacg_models.sentiment.trained_model import load_trained

    to_page = arguments.to == PAGE
    check_output(arguments.output, PAGE_SUFFIX if to_page else SUFFIX, arguments.overwrite)
    check_packages()
    runtime = _runtime(arguments)
    trained = load_trained(arguments.model)
    rows, source = rows_at_hand(trained, arguments.model)
    chosen = spread(rows, CHECKED_ROWS)
    if runtime is not None:
        found = _write_page(arguments, trained, chosen, runtime)
    else:
        found = _export(arguments, trained, chosen, arguments.output)
    print(f"checked on {source}\n{found}")
    if not found.passed:
        line = f"{arguments.output}: not written, because its predictions differ from those of the model"
        print(f"qacg export: {line}", file=sys.stderr)
        return 1
    print(f"written to {arguments.output} ({arguments.to}, {arguments.output.stat().st_size / 1e6:.1f} MB)")
    return 0


def _export(arguments: argparse.Namespace, trained: TrainedModel, rows: Sequence[Example], output: Path) -> Check:
    from qacg_models.sentiment.export import export

    return export(
        trained,
        output,
        rows,
        overwrite=arguments.overwrite,
        int8=arguments.int8 or arguments.to == PAGE,
        say=lambda line: print(f"{line} ...", file=sys.stderr),
    )


def _runtime(arguments: argparse.Namespace) -> Runtime | None:
    """Returns the runtime for a page; None for the other formats, for which --runtime raises InputError."""
    from qacg_models.sentiment.report.model_page import RUNTIME_ARCHIVE, read_runtime

    if arguments.to == PAGE:
        return read_runtime(arguments.runtime or Path(RUNTIME_ARCHIVE))
    if arguments.runtime is not None:
        raise InputError(f"runtime: expected --to {PAGE} with --runtime, got {arguments.to}. Omit --runtime.")
    return None


def _write_page(
    arguments: argparse.Namespace, trained: TrainedModel, rows: Sequence[Example], runtime: Runtime
) -> Check:
    """Exports the model to a temporary file, writes the page if the check passes, and returns the check's result."""
    from qacg_models.sentiment.report.model_page import page_facts, write_model_page

    facts = page_facts(trained)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        found = _export(arguments, trained, rows, file)
        if found.passed:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            write_model_page(arguments.output, trained, facts, file.read_bytes(), runtime)
    return found
