"""`qacg export`: writes a trained model, or its tokenizer, as one file for other programs or a page for browsers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path

from qacg_models.errors import InputError

USES_MODELS = True
ONNX, PAGE, TOKENIZER = "onnx", "page", "tokenizer"
SUFFIXES = {ONNX: ".onnx", PAGE: ".html", TOKENIZER: ".mjs"}
PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # required in addition to torch
CHECKED_ROWS = 500  # a row is a text with an aspect; more take longer, and fewer miss rare differences
HELP = "write a trained model as one ONNX file, or as an offline page, checked against the model"
DESCRIPTION = (
    "Writes the model with eager attention, for any batch size, and for lengths up to the model's number of positions."
    " Inputs: input_ids, attention_mask, token_type_ids (not for RoBERTa, XLM-R and ModernBERT) and, for a model with"
    " contexts, context_ids; output: logits."
    " The metadata has the labels, the contexts and the maximum length. The file is run on real rows and compared"
    " with the model. If a label differs, or a probability by more than 1e-5, no file is written and the exit status"
    " is 1. With --int8, 3 % of the labels may differ, and each probability by 0.5. A page contains an int8 model and"
    " its runtime: in a browser, the page predicts texts or a CSV without a network. The module that --to tokenizer"
    " writes is the page's tokenizer, for a program in Node that runs the ONNX file."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL --output FILE [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument(
        "--to",
        choices=tuple(SUFFIXES),
        default=ONNX,
        help="format: .onnx, .html, or the tokenizer as .mjs for Node (default: %(default)s)",
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
    _check(arguments)
    from qacg_models.sentiment.report import write_text
    from qacg_models.sentiment.report.model_page import (
        RUNTIME_ARCHIVE,
        page_facts,
        read_runtime,
        tokenizer_module,
        write_model_page,
    )
    from qacg_models.sentiment.trained_model import load_trained

    to_page, output = arguments.to == PAGE, arguments.output
    trained = load_trained(arguments.model)
    facts = None if arguments.to == ONNX else page_facts(trained)
    if arguments.to == TOKENIZER:
        write_text(output, tokenizer_module(facts))
        return 0
    runtime = read_runtime(arguments.runtime or Path(RUNTIME_ARCHIVE)) if to_page else None
    from qacg_models.sentiment.export import export, rows_at_hand

    rows, source = rows_at_hand(trained, arguments.model, CHECKED_ROWS)
    say = lambda line: print(f"{line} ...", file=sys.stderr)  # noqa: E731
    convert = partial(export, trained, rows=rows, int8=arguments.int8 or to_page, say=say)
    output.parent.mkdir(parents=True, exist_ok=True)
    if runtime is None:
        found = convert(output)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.onnx")
            found = convert(file)
            if found.passed:
                write_model_page(output, trained, facts, file.read_bytes(), runtime)
    print(f"checked on {source}\n{found}")
    if not found.passed:
        print(
            f"qacg export: {output}: not written, because its predictions differ from those of the model",
            file=sys.stderr,
        )
        return 1
    print(f"written to {output} ({arguments.to}, {output.stat().st_size / 1e6:.1f} MB)")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises InputError if the output may not be written, --runtime does not apply, or a package is not installed."""
    from qacg_models.utils.files import check_writable

    output, suffix = arguments.output, SUFFIXES[arguments.to]
    if output.suffix != suffix:
        raise InputError(f"output: expected a name that ends in {suffix}, got {output}")
    if output.is_dir():
        raise InputError(f"output: expected a file, got the folder {output}")
    if output.exists() and not arguments.overwrite:
        raise InputError(f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it.")
    check_writable("output", output)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing and arguments.to != TOKENIZER:
        raise InputError(
            f"to: expected the packages {', '.join(missing)}, which are not installed. Run pip install"
            f" {' '.join(missing)}."
        )
    if arguments.runtime is not None and arguments.to != PAGE:
        raise InputError(f"runtime: expected --to {PAGE} with --runtime, got {arguments.to}. Omit --runtime.")
    if arguments.int8 and arguments.to == TOKENIZER:
        raise InputError(f"int8: expected --to {ONNX} or {PAGE} with --int8, got {TOKENIZER}. Omit --int8.")
