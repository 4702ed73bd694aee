"""`qacg convert`: converts checkpoints of other formats to models of this package, or to BERT of transformers."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from qacg_models.cli.flags import add_set_flag

# The formats of conversion.py. Importing that module for a help text would be slow; a test compares both.
FORMATS = ("own", "huggingface")
# Values of --allow: the fields of Permissions.
ALLOWED = ("initialize-missing", "ignore-mismatched-sizes", "drop-unplaced")

USES_MODELS = True
HELP = "convert checkpoints of BERT and of the released code to models of this package"
DESCRIPTION = (
    "Reads models of this package, state dicts of the released code (such as QACG-BERT and CG-BERT), and BERT of "
    "transformers (with any head) or converted from TensorFlow. The weights are safetensors or torch files, whole or "
    "sharded. Reports what happened to every tensor. What a checkpoint lacks or has in another size is an "
    "error, unless --allow names it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    add_set_flag(parser, 'a configuration field, as in --set \'contexts=["price", "safety"]\' --set num_labels=3')
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        choices=ALLOWED,
        metavar="WHAT",
        help="what may differ from SRC: initialize-missing, random weights for tensors that SRC lacks;"
        " ignore-mismatched-sizes, a random head if its size differs; drop-unplaced, no tensors that --to huggingface"
        " lacks",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the model in DST")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, tensor by tensor")


def run(arguments: argparse.Namespace) -> int:
    from qacg_models.checkpoints.fitting import Permissions
    from qacg_models.conversion import convert

    allowed = [name.replace("-", "_") for name in arguments.allow]
    report = convert(
        arguments.src,
        arguments.dst,
        to=arguments.to,
        model=arguments.model,
        config=arguments.config,
        overrides=dict(arguments.set),
        permissions=Permissions(**dict.fromkeys(allowed, True)),
        overwrite=arguments.overwrite,
    )
    print(json.dumps(asdict(report), indent=1) if arguments.json else f"{report}\nwritten to {arguments.dst}")
    return 0
