"""Runs the C++ CPU kernels of this machine's instruction sets under sanitizers: `make check-sanitizers CALLS=100`.

It builds the library with the address and undefined-behaviour sanitizers, and with the thread sanitizer. Calls run
forward and backward with 1, 2 and 4 threads: those of test_random_calls.py, those of test_few_queries.py, and one with
results that are large enough for pages of 2 MB. Their results must be equal bit for bit. A report ends the run with
exit status 1. GCC with libasan and libtsan is required.

AMX instructions run in software (tests/support/software_tiles.h) on every processor with AVX-512 BF16, and the results
of these kernels must meet the error rule. The last line of each sanitizer names the instruction sets that this machine
lacks.
"""

import argparse
import concurrent.futures
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEVELS = ("plain", "avx2", "avx512", "avx512_bf16", "amx")
if platform.machine().lower() in ("aarch64", "arm64"):
    LEVELS = ("neon", "neon_bf16")
THREADS = (1, 2, 4)
AMX_SOURCE = "csrc/cpu/kernels_amx.cpp"
SOFTWARE_TILES = ["-include", ROOT / "tests/support/software_tiles.h"]
LARGE_RESULTS = dict(batch=500, heads=1, queries=33, head_dim=64)  # 4.2 MB each, more than kLeast in huge_pages.h
UNDEFINED = "signed-integer-overflow,integer-divide-by-zero,float-cast-overflow,shift,bounds,return,bool,enum"
# Name: flags, library to load before Python, and its options.
SANITIZERS = {
    "address": (
        # Addresses are checked by calls, and pointers are not checked again as undefined behaviour. Otherwise compiling
        # a file of kernels would take twenty times as long.
        [
            "-fsanitize=address",
            "--param=asan-instrumentation-with-call-threshold=0",
            f"-fsanitize={UNDEFINED}",
            f"-fno-sanitize-recover={UNDEFINED}",
        ],
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
    "thread": (
        ["-fsanitize=thread", "-DQACG_STD_THREADS"],
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"},
    ),
}
# The sanitizer does not see the joins of torch's OpenMP threads. The kernels use std::thread in this build.
LIBRARIES = ("libtorch_cpu.so", "libtorch_python.so", "libgomp")
# When glibc keeps too many stacks, a thread that ends frees the thread-local memory of earlier threads
# (__nptl_free_stacks), which the sanitizer reports as a race with their writes. glibc orders both by a lock that the
# sanitizer does not see. The kernels have no thread_local variables.
LOADER = "race:_dl_deallocate_tls"
SUPPRESSIONS = (*(f"called_from_lib:{library}" for library in LIBRARIES), LOADER)


def compiler() -> str:
    return os.environ.get("CXX") or "g++"


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)


def compile_to(target: Path, arguments: list[str | Path]) -> None:
    unfinished = target.with_suffix(".unfinished")
    command = [compiler(), *arguments, "-o", unfinished]
    done = run(command)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    unfinished.rename(target)


def build(name: str, folder: Path, levels: list[str]) -> None:
    """Copies the package to `folder`, with a library that contains a sanitizer.

    A file of kernels takes a minute or more. So objects of the same sources and flags are reused, and kernels of other
    instruction sets than `levels` are compiled without sanitizer and optimisation.
    """
    sys.path.insert(0, str(ROOT / "distributions"))
    import torch
    from native import compilers, cpu, torch_headers
    from torch.utils.cpp_extension import include_paths, library_paths

    # -g1 has only line numbers, for the reports, and compiles in a third of the time.
    flags = [*compilers.COMMON, "-O1", "-g1", "-DNDEBUG", "-fno-omit-frame-pointer", *SANITIZERS[name][0]]
    sources, without = cpu.sources_for()
    if AMX_SOURCE in sources:
        kept_flags = [flag for flag in sources[AMX_SOURCE] if not flag.startswith("-mamx")]
        sources[AMX_SOURCE] = [*kept_flags, *SOFTWARE_TILES]
        flags.append("-DQACG_SOFTWARE_TILES")
    torch_flags = [*(f"-isystem{p}" for p in include_paths()), torch_headers.CPU_FLAG, *without]
    digest = hashlib.sha256(repr((flags, torch_flags, levels, torch.__version__)).encode())
    for path in sorted([*(ROOT / "csrc/cpu").iterdir(), *(ROOT / "csrc/common").iterdir(), SOFTWARE_TILES[1]]):
        digest.update(path.name.encode() + path.read_bytes())
    package, kept = folder / "qacg_kernels", folder / f"objects-{digest.hexdigest()[:16]}"
    for old in folder.glob("objects-*"):
        if old != kept:
            shutil.rmtree(old)
    kept.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "qacg_kernels", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    objects = {source: kept / f"{Path(source).stem}.o" for source in sources}
    not_run = {f"csrc/cpu/kernels_{level}.cpp" for level in LEVELS if level not in levels}
    flags_of = {source: [*compilers.COMMON, "-O0"] if source in not_run else flags for source in sources}
    commands = {
        target: [*flags_of[source], *(sources[source] or torch_flags), "-c", ROOT / source]
        for source, target in objects.items()
        if not target.exists()
    }
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_to, commands.keys(), commands.values()))
    links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu", "-pthread"]
    compile_to(package / "_cpu.so", [*flags, "-shared", *objects.values(), *links])


def inside(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs this file in a Python process that has loaded the sanitizer."""
    _, library, options = SANITIZERS[name]
    path = run([compiler(), f"-print-file-name={library}"]).stdout.strip()
    (folder / "suppressions").write_text("".join(line + "\n" for line in SUPPRESSIONS))
    if name == "thread":
        options = {key: f"{value}:suppressions={folder / 'suppressions'}" for key, value in options.items()}
    paths = os.pathsep.join(map(str, (folder, ROOT, *(ROOT / "tests" / name for name in ("support", "kernels")))))
    environment = os.environ | options | {"LD_PRELOAD": path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    # The thread sanitizer requires the memory layout without randomisation.
    command = ["setarch", "-R"] if name == "thread" and shutil.which("setarch") else []
    return run([*command, sys.executable, Path(__file__), *arguments], env=environment)


def levels_here() -> list[str]:
    """Instruction sets of this machine, by their names in QACG_CPU_CAPABILITY; none without the library."""
    from qacg_kernels.backends import cpu

    found = []
    for level in LEVELS:
        os.environ["QACG_CPU_CAPABILITY"] = level
        if level in cpu.instruction_sets().values():
            found.append(level)
    return found


def make_calls(count: int, levels: list[str]) -> None:
    import torch
    from judging import check
    from test_few_queries import CASES
    from test_random_calls import drawn

    import qacg_kernels
    from qacg_kernels.backends import cpu
    from qacg_kernels.testing import evaluate, through_backend
    from qacg_kernels.testing.inputs import Case, make_inputs

    if ROOT in Path(qacg_kernels.__file__).parents and "build" not in Path(qacg_kernels.__file__).parts:
        raise RuntimeError("expected the copy of the package with the sanitizer, got that of the checkout")
    if cpu.missing():
        raise RuntimeError(cpu.missing()[0])
    here, done = levels_here(), 0
    levels = [level for level in levels if level in here]
    for level in levels:
        os.environ["QACG_CPU_CAPABILITY"] = level
        cases = [(drawn(number), (torch.float32, torch.bfloat16)[number % 2]) for number in range(count)]
        cases.append((Case("call with large results", **LARGE_RESULTS), torch.float32))
        cases += [(case, torch.float32) for case in CASES]
        for case, dtype in cases:
            inputs = make_inputs(case, dtype)
            alone = None
            for threads in THREADS:
                torch.set_num_threads(threads)
                results = evaluate(inputs, through_backend("cpu"))
                alone = alone or results
                for name, t in results.items():
                    if not torch.equal(t.nan_to_num(), alone[name].nan_to_num()):
                        raise AssertionError(f"{case.name}, {level}: {name} differs at {threads} threads")
                done += 1
            if level == "amx":
                check(case, "cpu", dtype, "cpu")
        if level == "amx" and cpu.product_rates().keys() != set(cpu.PRODUCTS):
            raise AssertionError(f"product_rates: expected {cpu.PRODUCTS}, got {cpu.product_rates()}")
        print(f"{level}: {len(cases)} calls at {', '.join(map(str, THREADS))} threads", file=sys.stderr, flush=True)
    missing = [level for level in LEVELS if level not in here]
    print(f"{done} calls by {', '.join(levels)}; this machine lacks {', '.join(missing) or 'none'}", flush=True)
    # Skips the end of Python, where the sanitizer reports torch's own mutexes.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/sanitizers", help="where the libraries are built")
    parser.add_argument("--calls", type=int, default=100, help="random calls for each instruction set")
    parser.add_argument("--only", choices=SANITIZERS, action="append", help="one sanitizer; both if not given")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS), help="instruction sets (all)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return make_calls(options.calls, options.levels)
    here = set(levels_here()) or set(LEVELS)
    if "avx512_bf16" in here:
        here.add("amx")  # whose instructions run in software
    levels = [level for level in options.levels if level in here]
    for name in options.only or SANITIZERS:
        folder = options.out.resolve() / name
        print(f"{name}: building", flush=True)
        build(name, folder, levels)
        print(f"{name}: running", flush=True)
        done = inside(name, folder, "--inside", "--calls", str(options.calls), "--levels", *levels)
        if done.returncode:
            sys.exit(f"{name}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-8000:]}")
        print(f"{name}: no report in {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
