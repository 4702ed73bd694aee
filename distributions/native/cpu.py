"""The libraries that a C++ compiler alone builds: that of the CPU, with its flags, and the launcher for GPUs."""

import sys
from pathlib import Path

from native import compilers, environment, torch_headers

# -ffp-contract=fast compiles a * b + c to one instruction.
KERNEL = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprfchw", "-mprefer-vector-width=512"]
HOST_SOURCE = "csrc/cpu/attention.cpp"
LAUNCH_SOURCE = "csrc/launch/launcher.cpp"
# Flags of each translation unit.
SOURCES = {
    HOST_SOURCE: [],
    "csrc/cpu/capability.cpp": [],
    "csrc/cpu/kernels_plain.cpp": KERNEL,
    "csrc/cpu/kernels_avx2.cpp": [*KERNEL, "-mavx2", "-mfma", "-mf16c"],
    "csrc/cpu/kernels_avx512.cpp": [*KERNEL, *AVX512],
    "csrc/cpu/kernels_avx512_bf16.cpp": [*KERNEL, *AVX512, "-mavx512bf16"],
    "csrc/cpu/kernels_amx.cpp": [*KERNEL, *AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    "csrc/cpu/kernels_neon.cpp": [*KERNEL, "-march=armv8-a"],
    "csrc/cpu/kernels_neon_bf16.cpp": [*KERNEL, "-march=armv8.2-a+bf16"],
}
# Parts of the names of sources, by the processor that they are for. Every aarch64 has NEON, so it omits plain kernels.
X86_ONLY, ARM_ONLY, NOT_ARM = ("avx2", "avx512", "amx"), ("neon",), ("plain",)
# Kernels that older compilers cannot compile, and the flag for capability.cpp in a library without them.
OPTIONAL_SOURCES = {
    "csrc/cpu/kernels_amx.cpp": "-DQACG_WITHOUT_AMX",
    "csrc/cpu/kernels_neon_bf16.cpp": "-DQACG_WITHOUT_NEON_BF16",
}


def sources_for(processor: str | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """The sources and their flags for a processor (None: that of the build's target).

    Also returns flags for capability.cpp that list the kernels that the compiler cannot compile.
    """
    processor, without = (processor or environment.machine()).lower(), []
    others = [] if processor in ("x86_64", "amd64") else [*X86_ONLY]
    others += NOT_ARM if processor in ("aarch64", "arm64") else ARM_ONLY
    sources = {s: flags for s, flags in SOURCES.items() if not any(word in s for word in others)}
    for source, flag in OPTIONAL_SOURCES.items():
        if source in sources and not compilers.accepts(sources[source]):
            print(f"qacg_kernels: {compilers.compiler()} cannot compile {source}, which is omitted", file=sys.stderr)
            del sources[source]
            without.append(flag)
    return sources, without


def write_ninja(path: Path, library: Path) -> None:
    """Writes the ninja file that builds the CPU library."""
    _write_ninja(path, library, *sources_for(), exported="qacg_cpu_*")


def write_launch_ninja(path: Path, library: Path) -> None:
    """Writes the ninja file that builds the launcher."""
    _write_ninja(path, library, {LAUNCH_SOURCE: []}, [], exported="qacg_launch_*")


def _write_ninja(path: Path, library: Path, sources: dict[str, list[str]], without: list[str], exported: str) -> None:
    optimise = ["-O0", "-g"] if environment.debugging() else ["-O3", "-DNDEBUG"]
    headers = torch_headers.include_folder()
    torch_flags = [f"-isystem{headers}", torch_headers.CPU_FLAG, *without]
    links = link_flags(path.parent, library.name, exported)
    here = compilers.without_machine_paths(headers)
    lines, objects = compilers.rules(f"$cxx -shared $in {compilers.escaped(links)}"), []
    for source, flags in sources.items():
        objects.append(path.parent / (Path(source).stem + ".o"))
        # Kernel files include no torch header: see csrc/README.md.
        special = compilers.translated(flags) if flags else [*torch_flags, *here]
        lines += compilers.compile_edge("compile", source, objects[-1], [*compilers.COMMON, *optimise, *special])
    path.write_text("\n".join([*lines, *compilers.link_edge(library, objects)]))


def link_flags(folder: Path, name: str, exported: str) -> list[str]:
    """Returns the linker flags of a library, and writes the files that they refer to.

    On macOS torch's functions are resolved at load time. On Linux the library is linked against an empty
    libtorch_cpu.so, of which it records only the name. If QACG_BUILD_FOR is set, the library contains Zig's C++
    runtime, whose symbols are hidden on Linux.
    """
    other = environment.target()
    if not ("linux" in other.triple if other else sys.platform != "darwin"):
        mac = ["-undefined", "dynamic_lookup", "-install_name", f"@rpath/{name}"]  # no path of this machine
        return ["-O2", *mac, "-s"] if other else mac
    links = ["-Wl,--no-as-needed", *compilers.stand_ins(("torch_cpu",), folder), "-ldl", "-Wl,--as-needed"]
    return links if other is None else ["-O2", *links, *compilers.hide_symbols(exported, folder)]
