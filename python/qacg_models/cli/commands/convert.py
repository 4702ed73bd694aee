"""`qacg convert`: converts checkpoints of other formats to models of this package, or to BERT of transformers."""

import argparse
import json
from pathlib import Path

from qacg_models.cli.flags import check_range
from qacg_models.utils.plain_text import parse_json

# The formats of conversion.py. Importing that module for a help text would be slow; a test compares both.
FORMATS = ("own", "huggingface")

USES_MODELS = True
HELP = "convert checkpoints of BERT and of the released code to models of this package"
DESCRIPTION = (
    "Reads models of this package, state dicts of the released code (such as QACG-BERT and CG-BERT), and BERT of "
    "transformers (with any head) or converted from TensorFlow. The weights are safetensors or torch files, whole or "
    "sharded. Reports what happened to every tensor. Fails if a tensor of the backbone is missing, unless "
    "--initialize-missing is set."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to its parser."""
    parser.add_argument("src", type=Path, metavar="SRC", help="folder, file of weights, or index of shards")
    parser.add_argument("dst", type=Path, metavar="DST", help="folder to create")
    parser.add_argument("--to", choices=FORMATS, default="own", help="format of DST (default: %(default)s)")
    parser.add_argument(
        "--model",
        metavar="CLASS",
        help="class of this package that loads SRC (default: the class that its configuration names, if the "
        "configuration is of this package; otherwise the class that fits its tensors, but with --to own and without "
        "contexts QACGBertForSequenceClassification)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (default: the one beside the weights)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_assignment,
        metavar="FIELD=JSON",
        help='configuration field, as in --set \'contexts=["price", "safety"]\' --set num_labels=3',
    )
    parser.add_argument(
        "--truncate-contexts",
        action="store_true",
        help="keep the first contexts of SRC, as many as --set contexts=[...] has names",
    )
    parser.add_argument(
        "--new-head", action="store_true", help="initialize a new head at random if the head of SRC has another size"
    )
    parser.add_argument(
        "--initialize-missing", action="store_true", help="initialize at random the tensors that SRC lacks"
    )
    parser.add_argument(
        "--drop-unplaced",
        action="store_true",
        help="omit tensors that --to huggingface does not support, such as contexts",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of randomly initialized tensors (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the model in DST")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, tensor by tensor")


def _assignment(text: str) -> tuple[str, object]:
    field, found, value = text.partition("=")
    if not found or not field:
        raise argparse.ArgumentTypeError(f"expected FIELD=JSON, got {text!r}")
    try:
        return field, parse_json(value)
    except ValueError:
        return field, value  # a bare word, as in pooler=attention


def run(arguments: argparse.Namespace) -> int:
    """Converts the checkpoint, and prints the report; returns 0."""
    from qacg_models.checkpoints.fitting import Permissions
    from qacg_models.conversion import convert

    check_range("seed", arguments.seed, 0, 2**64 - 1)
    report = convert(
        arguments.src,
        arguments.dst,
        to=arguments.to,
        model=arguments.model,
        config=arguments.config,
        overrides=dict(arguments.set),
        permissions=Permissions(
            initialize_missing=arguments.initialize_missing,
            truncate_contexts=arguments.truncate_contexts,
            ignore_mismatched_sizes=arguments.new_head,
        ),
        drop_unplaced=arguments.drop_unplaced,
        overwrite=arguments.overwrite,
        seed=arguments.seed,
    )
    print(json.dumps(report.to_json(), indent=1) if arguments.json else f"{report}\nwritten to {arguments.dst}")
    return 0
