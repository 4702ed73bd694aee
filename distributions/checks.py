"""Checks the files of a release: contents, tags, and the symbols that their libraries require.

Each check of a file returns a line with its findings, or raises CheckError.
"""

import struct
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from native.environment import TARGETS

CPU_LIBRARY, LAUNCHER, CUDA_LIBRARY = (f"qacg_kernels/{name}.so" for name in ("_cpu", "_launch", "_cuda"))
# Libraries that every manylinux system has.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
CUDA_RUNTIME = {"librt.so.1"}  # required by the CUDA runtime in the CUDA library
# The libraries of torch that each library requires, and the prefix of the names that it exports.
TORCH = {library: {"libtorch_cpu.so"} for library in (CPU_LIBRARY, LAUNCHER)}
TORCH[CUDA_LIBRARY] = {"libtorch_cpu.so", "libtorch_cuda.so"}
EXPORTED = {CPU_LIBRARY: "qacg_cpu_", LAUNCHER: "qacg_launch_", CUDA_LIBRARY: "qacg_cuda_"}
LARGEST_WHEEL = 10 * 10**6  # the package index accepts 100 MB; users without a GPU download the CUDA library too
STABLE = ("aoti_torch_", "torch_")  # prefixes of torch's stable C functions


class CheckError(Exception):
    """A file does not meet the requirements for a release."""


def require(condition: object, message: str) -> None:
    """Raises CheckError with the message if the condition is false."""
    if not condition:
        raise CheckError(message)


def check_sdist(path: Path, root: Path) -> str:
    """Checks the sdist of qacg-kernels: it has all sources for building, all Python tests, and no compiled files."""
    expected = {str(p.relative_to(root)) for p in (root / "csrc").rglob("*") if p.is_file()}
    expected |= {str(p.relative_to(root)) for name in ("distributions", "tests") for p in (root / name).rglob("*.py")}
    expected |= {"setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile"}
    expected |= modules(root, "qacg_kernels") | {f"python/{name}" for name in models_sources(root)}
    return _check_names(path, expected)


def check_models_sdist(path: Path, root: Path) -> str:
    """Checks the sdist of qacg-models: it has all modules, metadata, and no compiled files."""
    return _check_names(path, models_sources(root) | {"PKG-INFO"})


def _check_names(path: Path, expected: set[str]) -> str:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    require(expected <= names, f"{path.name}: expected the files {sorted(expected - names)}, got none of them")
    built = [name for name in names if name.endswith(".so") or Path(name).name.startswith("_build_")]
    require(not built, f"{path.name}: expected no files built on this machine, got {built}")
    return f"{len(names)} files"


def modules(root: Path, package: str) -> set[str]:
    """Paths of a package's modules, relative to the folder that holds the package."""
    return {str(p.relative_to(root)) for p in (root / package).rglob("*.py")}


def models_sources(root: Path) -> set[str]:
    """Paths of the modules and build files of qacg-models, relative to the folder `python` of a checkout."""
    return modules(root / "python", "qacg_models") | {"setup.py", "pyproject.toml", "README.md", "LICENSE"}


def check_models_wheel(path: Path, root: Path, version: str) -> str:
    """Checks qacg-models' wheel: modules, sample data, page files, version, required qacg-kernels, the command qacg."""
    contents = _contents(path, "any", root)
    data = [p for p in (root / "python/qacg_models").rglob("*") if p.suffix in (".tsv", ".css", ".js", ".html")]
    expected = modules(root / "python", "qacg_models") | {str(p.relative_to(root / "python")) for p in data}
    expected |= {"qacg_models/py.typed"}
    missing = sorted(expected - contents.keys())
    require(not missing, f"{path.name}: expected the files {missing}, got none of them")
    metadata = _of_dist_info(contents, "METADATA")
    require(metadata["Version"] == version, f"{path.name}: expected version {version}, got {metadata['Version']}")
    pin = f"qacg-kernels=={version}"
    required = metadata.get_all("Requires-Dist")
    require(pin in required, f"{path.name}: expected the requirement {pin}, got {required}")
    entries = next(data.decode() for name, data in contents.items() if name.endswith("entry_points.txt"))
    require("qacg = qacg_models.cli:main" in entries, f"{path.name}: expected the command qacg, got {entries!r}")
    return f"{len(contents)} files"


def _contents(path: Path, tag: str, root: Path) -> dict[str, bytes]:
    """Reads the files of a wheel; checks that its tag is py3-none-`tag` and that no file has a path of this machine."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    require(path.name.endswith(f"-py3-none-{tag}.whl"), f"wheel: expected the tag py3-none-{tag}, got {path.name}")
    fields = _of_dist_info(contents, "WHEEL")
    require(fields["Tag"] == f"py3-none-{tag}", f"{path.name}: expected the tag py3-none-{tag}, got {fields['Tag']}")
    pure = fields["Root-Is-Purelib"]
    require((pure == "true") == (tag == "any"), f"{path.name}: Root-Is-Purelib: expected {tag == 'any'}, got {pure}")
    for name, data in contents.items():
        for place in {str(root), sys.prefix, str(Path.home()) + "/", tempfile.gettempdir() + "/"} - {"//"}:
            require(place.encode() not in data, f"{path.name}: {name}: expected no path of this machine, got {place}")
    return contents


def _of_dist_info(contents: dict[str, bytes], file: str) -> Message:
    (text,) = (data for name, data in contents.items() if name.endswith(f".dist-info/{file}"))
    return Parser().parsestr(text.decode())


def libraries_for(tag: str) -> list[str]:
    """Paths of the libraries in the wheel with a platform tag, or with the tag "any"."""
    if tag == "any":
        return []
    launcher = [LAUNCHER] if "linux" in tag else []
    return [CPU_LIBRARY, *launcher, *([CUDA_LIBRARY] if TARGETS[tag].has_cuda else [])]


def check_wheel(path: Path, tag: str, root: Path, libraries: list[str] | None = None) -> str:
    """Checks a wheel of qacg-kernels: its modules, tags and size, and libraries that its platform can load."""
    contents = _contents(path, tag, root)
    expected = modules(root, "qacg_kernels") | {"qacg_kernels/py.typed"}
    missing = sorted(expected - contents.keys())
    require(not missing, f"{path.name}: expected the files {missing}, got none of them")
    others = [name for name in contents if not name.startswith(("qacg_kernels/", "qacg_kernels-"))]
    require(not others, f"{path.name}: expected files of qacg_kernels only, got {others[:9]}")
    required = [r for r in _of_dist_info(contents, "METADATA").get_all("Requires-Dist") if "extra ==" not in r]
    require(
        all(r.startswith("torch>") for r in required), f"{path.name}: expected to require torch only, got {required}"
    )
    libraries = sorted(libraries_for(tag) if libraries is None else libraries)
    there = sorted(name for name in contents if name.endswith((".so", ".dylib")))
    require(there == libraries, f"{path.name}: expected the libraries {libraries}, got {there}")
    size = path.stat().st_size
    require(size <= LARGEST_WHEEL, f"{path.name}: expected at most {LARGEST_WHEEL:,} bytes, got {size:,}")
    if tag == "any":
        return "no library"
    found = []
    for name in libraries:
        data = contents[name]
        checked = check_mach_o(data) if tag.startswith("macosx") else check_elf(data, tag, name)
        found.append(f"{Path(name).name} of {len(data) / 10**6:.1f} MB, {checked}")
    if not tag.startswith("macosx"):
        found.append(check_manylinux(path, tag))
    return f"{size / 10**6:.1f} MB; {'; '.join(found)}"


def check_elf(data: bytes, tag: str, name: str) -> str:
    """Checks a library for Linux: its machine, required libraries, and required and exported symbols."""
    import io

    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(data))
    machine = file["e_machine"].removeprefix("EM_").replace("X86_64", "x86_64").replace("AARCH64", "aarch64")
    require(tag.endswith(machine), f"{name}: expected code for {tag}, got code for {machine}")
    needed = {entry.needed for entry in file.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    torch = TORCH[name]
    others = SYSTEM | LOADERS | (CUDA_RUNTIME if name == CUDA_LIBRARY else set())
    allowed = needed - torch <= others
    require(torch <= needed and allowed, f"{name}: expected {sorted(torch)} and system libraries, got {sorted(needed)}")
    required, exported = [], []
    numbers = file.get_section_by_name(".gnu.version")
    for index, symbol in enumerate(file.get_section_by_name(".dynsym").iter_symbols()):
        if not symbol.name or (symbol["st_info"]["bind"] == "STB_WEAK" and symbol["st_shndx"] == "SHN_UNDEF"):
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.append(symbol.name)
        elif numbers.get_symbol(index)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL"):  # symbols of glibc have versions
            required.append(symbol.name)
    foreign = [symbol for symbol in required if not symbol.startswith(STABLE)]
    require(not foreign, f"{name}: expected to require only torch's stable C functions, got {foreign}")
    require(required, f"{name}: expected to require functions of torch, got none")
    ours = exported and all(symbol.startswith(EXPORTED[name]) for symbol in exported)
    require(ours, f"{name}: expected exported names that begin with {EXPORTED[name]}, got {exported}")
    return f"{len(required)} functions of torch"


def check_manylinux(path: Path, tag: str) -> str:
    """Checks with auditwheel that every platform of the tag has all required libraries and glibc, except torch's."""
    from auditwheel.wheel_abi import analyze_wheel_abi

    exclude = frozenset().union(*TORCH.values())
    found = analyze_wheel_abi(None, None, path, exclude, disable_isa_ext_check=False, allow_graft=False)
    name = found.overall_policy.name
    fits = name.startswith("manylinux_") and glibc_of(name) <= glibc_of(tag)
    require(fits, f"{path.name}: expected {tag} or older by auditwheel, got {name}")
    return f"{name} by auditwheel"


def glibc_of(tag: str) -> list[int]:
    return [int(number) for number in tag.split("_")[1:3]]  # manylinux_2_28_x86_64 has 2 and 28


MACH_O, ARM64, DYLIB, SIGNATURE = 0xFEEDFACF, 0x0100000C, 6, 0x1D
LOADED, WEAKLY_LOADED, BUILD_VERSION = 0xC, 0x80000018, 0x32


def check_mach_o(data: bytes) -> str:
    """Checks a library for macOS on arm64: oldest macOS, signature and loaded libraries."""
    magic, machine, _, kind, commands = struct.unpack_from("<IIIII", data)
    require((magic, machine, kind) == (MACH_O, ARM64, DYLIB), "library: expected one for macOS on arm64, got another")
    at, loaded, oldest, signed = 32, [], None, False
    for _ in range(commands):
        command, length = struct.unpack_from("<II", data, at)
        if command in (LOADED, WEAKLY_LOADED):
            begin = at + struct.unpack_from("<I", data, at + 8)[0]
            loaded.append(data[begin : at + length].split(b"\0")[0].decode())
        elif command == BUILD_VERSION:
            version = struct.unpack_from("<I", data, at + 12)[0]
            oldest = (version >> 16, version >> 8 & 0xFF)
        signed = signed or command == SIGNATURE
        at += length
    require(oldest == (11, 0), f"library: expected one for macOS (11, 0), got {oldest}")
    require(signed, "library: expected a signature, which macOS on arm64 requires, got none")
    system = loaded and all(name.startswith("/usr/lib/lib") for name in loaded)
    require(system, f"library: expected to load system libraries only, got {loaded}")
    return f"macOS {oldest[0]}.{oldest[1]}, loads {', '.join(loaded)}"
