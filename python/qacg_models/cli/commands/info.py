"""`qacg info`: versions, hardware and backends."""

import argparse
import json

HELP = "print versions, hardware and available backends"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    from qacg_kernels import info

    found = info.collect()
    print(json.dumps(found, indent=1) if arguments.json else info.render(found))
    return 0
