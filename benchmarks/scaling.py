"""How cost grows, against the model of MATH.md: `python -m benchmarks.scaling FILES -o scaling.svg`. Needs matplotlib.

From rows of `benchmarks.suite`, of one machine and commit; its files of several thread numbers together. Prints the
model's constants, where the time of the main shapes goes by them, and what it says of packed sentences, which it has
not seen. Draws the time over length, head size, batch, heads and threads: dots are medians with their quartiles, lines
the model; over threads they are the time of one thread shared out evenly.
"""

import argparse
import sys

from benchmarks import rows
from benchmarks.analysis.scaling_plot import draw
from benchmarks.cases.case import DTYPES
from benchmarks.providers.registry import PROVIDERS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="Cost against its model.")
    parser.add_argument("files", nargs="+", help="files of rows, of one machine and commit")
    parser.add_argument("--provider", choices=PROVIDERS, default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("-o", "--output", default="scaling.svg", help="an .svg, .png or .pdf file")
    options = parser.parse_args(arguments)
    try:
        lines = draw(rows.load(options.files), options.provider, options.dtype, options.output)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
