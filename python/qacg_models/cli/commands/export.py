"""`qacg export`: writes a trained model as one file for other programs."""

import argparse
import sys
from pathlib import Path

from qacg_models.cli.flags import check_range
from qacg_models.export.formats import FORMATS

USES_MODELS = True
HELP = "write a trained model as one ONNX or torch.export file, checked against the model"
DESCRIPTION = (
    "Writes the model with eager attention, for batches of any size and lengths up to its number of positions. Inputs: "
    "input_ids, attention_mask, token_type_ids and, for a model with contexts, context_ids; output: logits. The "
    "metadata has the labels, the contexts and the maximum length. The file is run on real rows and compared with the "
    "model. If a label differs, or a probability by more than 1e-5, no file is written and the exit status is 1. With "
    "--int8, 3 % of the labels may differ, and probabilities by 0.5."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.usage = "%(prog)s MODEL --output FILE [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument(
        "--to", choices=tuple(FORMATS), default="onnx", help="format: .onnx or .pt2 (default: %(default)s)"
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="quantize linear layers to 8 bits: a smaller file, faster on CPUs, with larger tolerances of the check",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    check = parser.add_argument_group("check")
    check.add_argument(
        "--check-on",
        type=Path,
        metavar="FILE",
        help="texts to check on, .csv, .jsonl or .txt (default: dev and test of the training data if they still exist, "
        "otherwise the bundled sample)",
    )
    check.add_argument("--text-column", metavar="NAME", help="text column of --check-on (default: that of training)")
    check.add_argument(
        "--check-rows",
        type=int,
        default=500,
        metavar="N",
        help="maximum number of rows to check on, evenly spaced, each a text and an aspect (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exports the model, and prints the comparison."""
    from qacg_models.export.check_rows import rows_at_hand, rows_of_file, spread
    from qacg_models.export.write import check_output, export
    from qacg_models.inference.trained_model import load_trained
    from qacg_models.utils.outputs import check_not_input, check_writable

    check_range("check-rows", arguments.check_rows, 1, 1_000_000)
    check_output(arguments.output, arguments.to, arguments.overwrite)
    check_writable("output", arguments.output)
    FORMATS[arguments.to].load_module(arguments.int8)
    if arguments.check_on is not None:
        check_not_input("output", arguments.output, arguments.check_on)
    trained = load_trained(arguments.model)
    if arguments.check_on is None:
        rows, source = rows_at_hand(trained, arguments.model)
    else:
        rows, source = rows_of_file(trained, arguments.check_on, arguments.text_column), str(arguments.check_on)
    found = export(
        trained,
        arguments.output,
        spread(rows, arguments.check_rows),
        to=arguments.to,
        overwrite=arguments.overwrite,
        int8=arguments.int8,
        say=lambda line: print(f"{line} ...", file=sys.stderr),
    )
    print(f"checked on {source}\n{found}")
    if not found.passed:
        line = f"{arguments.output}: not written, because its predictions differ from those of the model"
        print(f"qacg export: {line}", file=sys.stderr)
        return 1
    print(f"{arguments.to} in {arguments.output}, {arguments.output.stat().st_size / 1e6:.1f} MB")
    return 0
