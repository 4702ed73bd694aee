"""`qacg analyze`: a page with the attention maps of a model."""

import argparse
from pathlib import Path

USES_MODELS = True
HELP = "write a page with attention maps and token scores of sentences; of a QACG-BERT, also lambda, its gate"
DESCRIPTION = "Writes one HTML file that needs no network. Aspects of the same sentence are shown side by side."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL --text TEXT ... [option ...]"
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder that qacg train wrote")
    parser.add_argument("--text", nargs="+", required=True, metavar="TEXT", help="sentences")
    parser.add_argument("--aspects", nargs="+", metavar="NAME", help="aspects (default: all)")
    targets = "targets (default: the targets that occur in the text)"
    parser.add_argument("--targets", nargs="+", metavar="NAME", help=targets)
    output = "folder of the page; an earlier page is replaced (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("analysis"), metavar="DIR", help=output)


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.sentiment.predictor import examples_of
    from qacg_models.sentiment.report.analysis import write_analysis
    from qacg_models.sentiment.trained_model import load_trained
    from qacg_models.utils.files import check_writable

    check_writable("output", arguments.output)
    trained = load_trained(arguments.model)
    rows = examples_of(trained, [*dict.fromkeys(arguments.text)], arguments.aspects, arguments.targets)
    path = write_analysis(trained, rows, arguments.output)
    print(f"page in {path} (open it in a browser)")
    return 0
