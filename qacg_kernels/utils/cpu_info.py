"""The processor of this machine: its architecture and its name."""

import platform
import re
import subprocess
from pathlib import Path


def is_aarch64() -> bool:
    """Whether this process runs on a 64-bit ARM processor."""
    return platform.machine().lower() in ("aarch64", "arm64")


def model() -> str:
    """The processor's name.

    On Linux, the family and model numbers follow the name, because virtual machines often shorten it. ARM Linux reports
    no name; the result then has the numbers of implementer, part, variant and revision. If the system reports neither,
    the result is that of the module `platform`.
    """
    if platform.system() == "Linux":
        return _of_linux(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    if platform.system() == "Darwin":
        done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


_NUMBERS = ("implementer", "part", "variant", "revision")


def _of_linux(table: str) -> str:
    named = re.search(r"^model name\s*:\s*(\S.*)$", table, re.MULTILINE)
    if named:
        kind = [re.search(rf"^{name}\s*:\s*(\d+)$", table, re.MULTILINE) for name in ("cpu family", "model")]
        numbers = f" (family {kind[0][1]}, model {kind[1][1]})" if all(kind) else ""
        return named[1].strip() + numbers
    kinds = set()
    for core in table.split("\n\n"):
        numbers = [re.search(rf"^CPU {name}\s*:\s*(\S+)$", core, re.MULTILINE) for name in _NUMBERS]
        if all(numbers):
            kinds.add(" ".join(f"{name} {found[1]}" for name, found in zip(_NUMBERS, numbers)))
    return f"ARM {'; '.join(sorted(kinds))}" if kinds else platform.processor() or platform.machine()
