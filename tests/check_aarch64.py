"""Runs the operator tests on the ARM kernels in an emulator: `make check-aarch64`, about half an hour.

    make check-aarch64 EMULATED="--processors max --seconds-each 300"    one processor, starts no test after 5 minutes

The tests run with torch's wheel for aarch64 under QEMU's user-mode emulation, on one processor after another: "max" has
BFMMLA, "neoverse-n1" does not. Then the self-check runs, and `auto` must select the kernels. Tests that do not start in
time are skipped, and pytest lists them with the reason. Times in the emulator mean nothing.

It requires apt-get of Debian or Ubuntu and two packages, whose names it prints if they are missing. It requires neither
an ARM machine nor root. Python, its libraries and torch for ARM are unpacked once into build/aarch64: half a gigabyte.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
DEBIAN = ("python3", "libgomp1", "libstdc++6")
# The oldest supported torch; later wheels for aarch64 require CUDA's libraries.
WHEELS = (
    "torch==2.10.0",
    *("numpy", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
)
# The instruction sets of each processor for float32 and bfloat16.
PROCESSORS = {"max": ("neon", "neon_bf16"), "neoverse-n1": ("neon", "neon")}
# The slowest files are last: the time limit skips their tests first.
TESTS = (
    "test_few_queries.py",
    "test_random_calls.py",
    "test_dropout.py",
    "test_hidden_keys.py",
    "test_float16.py",
    "test_edges.py",
    "test_backends_within_budget.py",
    "test_instruction_sets.py",
)
SELF_CHECK = """
import torch
import qacg_kernels as qk
from qacg_kernels.operators import self_check
from qacg_kernels.backends import cpu

sets = cpu.instruction_sets()
assert (sets["float32"], sets["bfloat16"]) == ({float32!r}, {bfloat16!r}), sets
assert cpu.NEEDS_SELF_CHECK
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    call = [torch.randn(2, 3, 40, 64, dtype=dtype, requires_grad=True) for _ in range(5)]
    assert qk.explain(*call, torch.rand(2, 3, 40).to(dtype)).selected == "cpu"
    qk.quasi_attention(*call, torch.rand(2, 3, 40).to(dtype)).sum().backward()
summary = self_check.summary(torch.device("cpu"))
assert summary == "6 kernel variants passed, 0 failed", summary
"""


def run(command: list[object], **options) -> None:
    done = subprocess.run(list(map(str, command)), check=False, **options)
    if done.returncode:
        raise SystemExit(f"check-aarch64: exit status {done.returncode} of {' '.join(map(str, command))[:300]}")


def check_tools() -> None:
    missing = {tool: package for tool, package in TOOLS.items() if not shutil.which(tool)}
    if missing:
        raise SystemExit(
            f"check-aarch64: expected {' and '.join(missing)} on the path, got none. "
            f"Run: apt-get install {' '.join(missing.values())}"
        )


class Machine:
    """A folder with an ARM system: Debian's files, torch, and this package with its library for ARM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.site, self.package = folder / "root", folder / "site", folder / "package"

    def prepare(self) -> None:
        self._once(self.root, self._unpack_debian)
        self._once(self.site, self._unpack_wheels)

    def _once(self, target: Path, make) -> None:
        """Makes the folder `target` with `make`, unless it exists; it has another name until it is complete."""
        if target.exists():
            return
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(target)

    def _unpack_debian(self, to: Path) -> None:
        """Unpacks packages for ARM, with a separate apt state."""
        state = self.folder / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        apt = ["apt-get", "-q", "-y", "-o", f"Dir::State={state}", "-o", f"Dir::State::Status={state}/status"]
        apt += ["-o", f"Dir::Cache={state}/cache", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"]
        apt += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=", "--no-install-recommends"]
        log = self.folder / "apt.log"
        with log.open("w") as output:
            run([*apt, "update"], stdout=output, stderr=output)
            run([*apt, "install", "--download-only", *DEBIAN], stdout=output, stderr=output)
        for archive in sorted((state / "cache/archives").glob("*.deb")):
            run(["dpkg-deb", "-x", archive, to])

    def _unpack_wheels(self, to: Path) -> None:
        version = self._python().name.removeprefix("python")
        choice = ["--platform", "manylinux_2_28_aarch64", "--only-binary=:all:", "--python-version", version]
        # pip would select dependencies for this machine's processor.
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *choice, "--target", to, *WHEELS])

    def _python(self) -> Path:
        return next(p for p in (self.root / "usr/bin").iterdir() if re.fullmatch(r"python3\.\d+", p.name))

    def build(self) -> None:
        """Copies the package and compiles its library for ARM, with the sources and flags of the build."""
        os.environ["CXX"] = "aarch64-linux-gnu-g++"
        sys.path.insert(0, str(ROOT / "distributions"))
        from native import compilers, cpu, torch_headers

        shutil.rmtree(self.package, ignore_errors=True)
        shutil.copytree(
            ROOT / "qacg_kernels",
            self.package / "qacg_kernels",
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "_build_*"),
        )
        # Processes that a test starts also run in the emulator.
        (self.package / "sitecustomize.py").write_text(
            "import os, sys\n\nsys.executable = os.environ['QACG_EMULATOR']\n"
        )
        torch, objects = self.site / "torch", []
        includes = [f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"]
        sources, without = cpu.sources_for("aarch64")
        if without:
            raise SystemExit(f"check-aarch64: {os.environ['CXX']} is too old: {without}")
        for source, flags in sources.items():
            print(f"compiling {source}", flush=True)
            objects.append(self.folder / f"{Path(source).stem}.o")
            flags = [*compilers.COMMON, "-O3", "-DNDEBUG", *(flags or [*includes, torch_headers.CPU_FLAG])]
            run([os.environ["CXX"], *flags, "-c", ROOT / source, "-o", objects[-1]])
        links = [f"-L{torch}/lib", "-ltorch_cpu", "-Wl,--allow-shlib-undefined"]
        run([os.environ["CXX"], "-shared", *objects, *links, "-o", self.package / "qacg_kernels/_cpu.so"])

    def command(self, processor: str) -> Path:
        """Writes a program that runs the ARM Python on an emulated processor."""
        program = self.folder / f"python-{processor}"
        paths = ":".join(map(str, (self.package, self.site)))
        program.write_text(
            "#!/bin/sh\n"
            f"export QACG_EMULATOR='{program}' PYTHONPATH='{paths}' OMP_NUM_THREADS=1\n"
            f"exec qemu-aarch64 -cpu {processor} -L '{self.root}' '{self._python()}' \"$@\"\n"
        )
        program.chmod(0o755)
        return program


def main() -> int:
    parser = argparse.ArgumentParser(description="The operator tests on ARM's kernels, in an emulator.")
    parser.add_argument("--out", type=Path, default=ROOT / "build/aarch64", help="folder (%(default)s)")
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=list(PROCESSORS), help="both by default")
    parser.add_argument(
        "--seconds-each", type=float, default=900, help="per processor, start no test after this time (%(default).0f)"
    )
    parser.add_argument("--select", default="", metavar="WORDS", help="an expression for pytest -k")
    options = parser.parse_args()
    check_tools()
    machine = Machine(options.out.resolve())
    machine.prepare()
    machine.build()
    failed = [
        f"{part} on {processor}"
        for processor in options.processors
        for part, status in check(machine, processor, options).items()
        if status
    ]
    if failed:
        print(f"aarch64: failed: {', '.join(failed)}")
        return 1
    print("aarch64: no operator test failed, and the self-check passed")
    return 0


def check(machine: Machine, processor: str, options: argparse.Namespace) -> dict[str, int]:
    """Runs the operator tests and the self-check on an emulated processor; returns their exit statuses."""
    python = machine.command(processor)
    float32, bfloat16 = PROCESSORS[processor]
    print(f"{processor}: float32 on {float32}, bfloat16 on {bfloat16}", flush=True)
    # -P keeps the package of the current folder off the import path.
    tests = ["-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    tests += ["-o", "addopts=--strict-markers -m 'not full'"]
    tests += ["--backend", "cpu", "--seconds", str(options.seconds_each), "--random-calls", "12"]
    tests += ["-k", options.select] if options.select else []
    tests += [str(ROOT / "tests/kernels" / name) for name in TESTS]
    self_check = SELF_CHECK.format(float32=float32, bfloat16=bfloat16)
    return {
        "operator tests": subprocess.run([python, *tests], cwd=ROOT, check=False).returncode,
        "self-check": subprocess.run([python, "-c", self_check], cwd=machine.folder, check=False).returncode,
    }


if __name__ == "__main__":
    sys.exit(main())
