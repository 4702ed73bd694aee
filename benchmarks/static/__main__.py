"""Predicts the rates of the Triton and CUDA kernels from their machine code, without a GPU.

`python -m benchmarks.static` compiles a kernel for every entry of a tile table, or with `--backend cuda` every kernel
of csrc/cuda that uses tensor cores or sums the gradients of gate vectors. It disassembles them, counts the
instructions, and simulates a multiprocessor's scheduler. From these estimates it predicts whole calls. The rates are
predictions; ratios are more reliable than absolute values. Another version of Triton, such as that of `make
check-triton TRITON=3.6.0`, is used if its folder comes first in PYTHONPATH.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from qacg_models.utils.atomic_files import atomic_write

from benchmarks.static.hardware import CHIPS, MASKS
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.backends.triton.tile_tables import KEYS, Key, Table, shipped


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static", description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", choices=("triton", "cuda"), default="triton", help="cuda requires nvcc")
    parser.add_argument("--arch", choices=CHIPS, default="sm_90", help="the chip; its tile table is used")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument(
        "--bits", type=int, choices=(16, 32), nargs="+", default=[16, 32], help="element widths in bits"
    )
    parser.add_argument("--head-dims", type=int, choices=(32, 64, 128, 256), nargs="+", default=[32, 64, 128, 256])
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="also write a file: the printed lines as JSON, or with --search the chosen table",
    )
    parser.add_argument(
        "--mask",
        choices=MASKS,
        default="none",
        help="mask of the calls whose kernels are predicted; with a mask, whole calls are not predicted",
    )
    parser.add_argument("--search", action="store_true", help="choose entries among the candidates of `tune`")
    options = parser.parse_args(arguments)
    if options.mask != "none" and (options.search or options.backend != "triton"):
        parser.error("--mask: expected --backend triton without --search, got --backend cuda or --search")
    if options.search and options.backend != "triton":
        parser.error("--search: expected --backend triton, got --backend cuda, whose kernels have no tile table")
    return _print(options)


def _print(options: argparse.Namespace) -> int:
    import triton

    from benchmarks.static import cuda_kernels, report
    from benchmarks.static.calibrate import calibration
    from benchmarks.static.operator import CONVENTION

    if options.backend == "cuda" and (reason := cuda_kernels.unsupported_reason(options.arch)):
        print(reason, file=sys.stderr)
        return 2
    table = shipped(options.arch)
    calibrated = calibration()
    heading = {
        "kind": "static",
        "arch": options.arch,
        "chip": CHIPS[options.arch].name,
        "triton": triton.__version__,
        **({"nvcc": cuda_kernels.nvcc_release()} if options.backend == "cuda" else {}),
        "factor": round(calibrated.factor, 3),
        "factor_by_head_dim": {str(d): round(f, 3) for d, f in calibrated.by_head_dim.items()},
        "mask": options.mask,
        "flop_convention": CONVENTION,
    }
    keys = [key for key in KEYS if key[1] in options.bits and key[2] in options.head_dims]
    spread = ", ".join(f"{f:.2f} at head size {d}" for d, f in calibrated.by_head_dim.items())
    print(
        f"{CHIPS[options.arch].name} ({options.arch}), Triton {triton.__version__}. Predicted, not measured: "
        f"the model's rates times {calibrated.factor:.2f}, calibrated by plain flash attention ({spread}).\n"
        f"{CONVENTION}",
        file=sys.stderr if options.json else sys.stdout,
        flush=True,
    )
    if options.search:
        _search(table, keys, options.out)
        return 0
    lines = [json.dumps(heading)]
    if options.backend == "cuda":
        records = report.cuda_records(options.arch, options.head_dims)
    else:
        calls = report.calls(table, options.bits, options.head_dims) if options.mask == "none" else ()
        records = itertools.chain(report.entry_records(table, keys, options.mask), calls)
    for record in records:
        lines.append(json.dumps(record))
        print(lines[-1] if options.json else report.sentence(record), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(options.out) as handle:
            handle.write("\n".join(lines) + "\n")
    return 0


def _search(table: Table, keys: list[Key], out: Path | None) -> None:
    from benchmarks.static import report, search

    rows = {}
    for choice in search.chosen(table, keys):
        rows[choice.best.entry.key] = choice.best.entry
        before = "does not run" if choice.before is None else f"{choice.before.tflops:.3g} TFLOP/s executed"
        changed = "stays" if choice.best.entry == table.by_key[choice.best.entry.key] else f"before: {before}"
        print(f"{report.sentence(report.entry_record(choice.best))}; {changed}; {choice.tried} tried", flush=True)
        if out:
            tile_tables.save(search.with_entries(table, rows), out)


if __name__ == "__main__":
    sys.exit(main())
