"""The matrix-product ceiling: the fastest matrix product of a dtype on this machine, with these threads.

On the CPU three kinds of products are tried: torch's product of two large matrices, its batched product of tiles, and
oneDNN's brgemm (through `brgemm.cpp`) on tiles that stay in the cache. On a GPU it is one large product. The fastest
product then runs interleaved with the implementations, so that a share of the ceiling compares two times from the same
rounds.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import records
from benchmarks.cases import DTYPES
from benchmarks.measure import timing

_SOURCE = Path(__file__).with_name("brgemm.cpp")
_BUILD = Path(__file__).resolve().parents[2] / "build" / "benchmarks"
_EFFORT = timing.Effort(seconds=0.5, fewest_rounds=5, most_rounds=30, warmup_rounds=2)
_SQUARE = 1024
_SQUARE_ON_DEVICE = 8192
# M, N, K of one tile: scores, values, and a square.
_TILES = ((128, 512, 64), (128, 64, 512), (256, 256, 256))
_TILE_FLOPS = 1e9  # FLOP of one step, which takes a few milliseconds


class NoBrgemmError(RuntimeError):
    """brgemm is not available here; the message has the reason."""


@dataclass(frozen=True)
class Product:
    """A matrix product that is timed. In `flops` a multiply-add counts as two."""

    name: str
    dtype: str
    flops: float
    step: timing.Step

    def gflops(self, seconds: float) -> float:
        """The rate in GFLOP/s of a step that takes this many seconds."""
        return self.flops / seconds / 1e9


def _product(name: str, dtype: str, device: str, flops: float, run: Callable[[], object]) -> Product:
    clock = timing.clock(device)

    def step(_turn: int) -> float:
        clock.start()
        run()
        return clock.stop()

    return Product(name, dtype, flops, step)


def _random(*sizes: int, dtype: str, device: str = "cpu") -> torch.Tensor:
    return torch.randn(sizes, device=device).to(DTYPES[dtype])


def _square(size: int, dtype: str, device: str) -> Product:
    a, b, c = (_random(size, size, dtype=dtype, device=device) for _ in range(3))
    return _product(f"torch.mm {size}^3", dtype, device, 2.0 * size**3, lambda: torch.mm(a, b, out=c))


def _batched(tile: tuple[int, int, int], dtype: str) -> Product:
    m, n, k = tile
    count = max(1, round(_TILE_FLOPS / (2 * m * n * k)))
    a, b, c = (_random(count, *size, dtype=dtype) for size in ((m, k), (k, n), (m, n)))
    flops = 2.0 * count * m * n * k
    return _product(f"torch.bmm {count}x({m},{n},{k})", dtype, "cpu", flops, lambda: torch.bmm(a, b, out=c))


def _brgemm(tile: tuple[int, int, int], dtype: str) -> Product:
    m, n, k = tile
    threads = torch.get_num_threads()
    repeats = max(1, round(_TILE_FLOPS / (2 * m * n * k * threads)))
    a, b = (_random(threads, *size, dtype=dtype) for size in ((m, k), (k, n)))
    c = _random(threads, m, n, dtype="float32")
    flops = 2.0 * threads * repeats * m * n * k
    call = torch.ops.qacg_benchmarks.brgemm
    return _product(f"brgemm ({m},{n},{k})", dtype, "cpu", flops, lambda: call(a, b, c, repeats))


def _library() -> Path:
    """Path of the library made from brgemm.cpp for this torch; the first call builds it."""
    from torch.utils import cpp_extension

    named = os.environ.get("CXX")
    compiler = shlex.split(named) if named else [next(filter(shutil.which, ("c++", "g++", "clang++")), "c++")]
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(source + f"{torch.__version__} {compiler}".encode()).hexdigest()[:16]
    library = _BUILD / f"brgemm-{key}.so"
    if library.exists():
        return library
    folders = [f"-I{path}" for path in cpp_extension.include_paths()]
    for path in cpp_extension.library_paths():
        folders += [f"-L{path}", f"-Wl,-rpath,{path}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    try:
        _BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUILD) as folder:
            made = Path(folder) / library.name
            command = [*compiler, "-O2", "-std=c++20", "-fPIC", "-shared", "-fopenmp", abi, str(_SOURCE), *folders]
            command += ["-ltorch_cpu", "-lc10", "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            made.replace(library)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", None) or str(error)
        raise NoBrgemmError(f"brgemm.cpp cannot be built: {message.strip().splitlines()[0]}") from error
    return library


def _brgemm_products(dtype: str) -> list[Product]:
    """Products by brgemm, one for each tile size."""
    torch.ops.load_library(_library())
    products = [_brgemm(tile, dtype) for tile in _TILES]
    try:
        products[0].step(0)
    except RuntimeError as error:
        raise NoBrgemmError(f"brgemm in {dtype}: {str(error).splitlines()[0]}") from error
    return products


def ceiling_record(
    product: str, dtype: str, device: str, rates: list[float], source: records.Origin
) -> records.CeilingRecord:
    """Makes the record of a timed matrix product."""
    quartiles = records.Quartiles.of(rates)
    values = (records.rounded(rate) for rate in (quartiles.median, quartiles.q1, quartiles.q3))
    return records.CeilingRecord(source, product, dtype, device, *values, len(rates))


def measure(dtype: str, source: records.Origin, device: str = "cpu") -> tuple[Product, list[records.CeilingRecord]]:
    """Returns the fastest product of a dtype, by its median rate, and records of all products that were tried.

    Prints the record of the fastest product. Without brgemm, prints the reason and tries only products of torch.
    """
    if device == "cpu":
        products = [_square(_SQUARE, dtype, device), *(_batched(tile, dtype) for tile in _TILES)]
        try:
            products += _brgemm_products(dtype)
        except NoBrgemmError as error:
            print(f"{error}; the ceiling is the fastest of torch's own products", flush=True)
    else:
        products = [_square(_SQUARE_ON_DEVICE, dtype, device)]
    seconds = timing.interleave({product.name: product.step for product in products}, _EFFORT)
    tried = [ceiling_record(p.name, dtype, device, [p.gflops(s) for s in seconds[p.name]], source) for p in products]
    fastest, product = max(zip(tried, products), key=lambda pair: pair[0].gflops)
    print(f"ceiling: {fastest}", flush=True)
    return product, tried
