"""What the commands that measure have in common."""

import argparse

import torch

INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options that every command which measures has."""
    parser.add_argument("--out", metavar="DIR", help="folder for the rows; without it they are only printed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that everything runs")
