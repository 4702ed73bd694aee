"""Reports on this installation and machine: `python -m qacg_kernels.info [--json] [--rates]`.

The report is for bug reports and benchmark records. If the processor's name or the GPUs cannot be determined, their
fields have the text of the error.
"""

import argparse
import json
import os
import platform
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

from qacg_kernels import __version__
from qacg_kernels.backends import cpu, dispatch


def collect() -> dict[str, object]:
    """Collects versions, processor, backends and GPUs.

    Returns:
        Nested dicts and lists of strings, numbers, booleans and None, which JSON can represent.

    Example:
        >>> collect()["package"]
        '0.1.0'
    """
    return {
        "package": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton_version(),
        "os": platform.platform(),
        "cpu": {
            "model": _probe(_cpu_model),
            "cores": _usable_cores(),
            "threads": torch.get_num_threads(),
            "torch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        },
        "cpu_library": {
            "built": not cpu.missing(),
            "reasons": list(cpu.missing()),
            "instruction_sets": {} if cpu.missing() else cpu.instruction_sets(),
            "reasons_of_choice": {} if cpu.missing() else cpu.reasons_of_choice(),
        },
        "backends": _backends(),
        "cuda": _probe(_cuda),
    }


def render(facts: dict[str, object]) -> str:
    """Formats the result of `collect` as lines of text."""
    host, library, cuda = facts["cpu"], facts["cpu_library"], facts["cuda"]
    lines = [
        f"qacg_kernels  {facts['package']}",
        f"python        {facts['python']}",
        f"torch         {facts['torch']}",
        f"triton        {facts['triton']}",
        f"system        {facts['os']}",
        f"cpu           {host['model']}; {_counted(host['cores'], 'core')}, {_counted(host['threads'], 'thread')}; "
        f"torch uses {host['torch_instruction_set']}",
        f"cpu library   {_library_line(library)}",
    ]
    if "product_rates" in facts:
        found = ", ".join(f"{name} {rate:.4g}" for name, rate in facts["product_rates"].items())
        lines.append("products      " + (f"{found} GFLOP/s of one thread" if found else "not measured"))
    for name, state in facts["backends"].items():
        state_text = "available" if state["available"] else "not available: " + "; ".join(state["reasons"])
        state_text += "".join(f"; not on {device}: {'; '.join(why)}" for device, why in state["not_on"].items())
        lines.append(f"backend       {name:<10} {state_text}")
    if isinstance(cuda, str):
        lines.append(f"cuda          {cuda}")
    else:
        lines.append(f"cuda          {cuda['version'] or 'torch was built without CUDA'}")
        for index, device in enumerate(cuda["devices"]):
            lines.append(f"  device {index}    {device['name']}, {device['architecture']}, {device['memory_gib']} GiB")
    return "\n".join(lines)


def _counted(count: object, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _probe(find: Callable[[], object]) -> object:
    try:
        return find()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _library_line(library: dict) -> str:
    if not library["built"]:
        return "not in use: " + "; ".join(library["reasons"])
    whys = library["reasons_of_choice"]
    uses = (f"{dtype} on {name}: {whys[dtype]}" for dtype, name in library["instruction_sets"].items())
    return "loaded; " + "\n              ".join(uses)


def _triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    table = Path("/proc/cpuinfo")
    return _of_linux(table.read_text(encoding="utf-8", errors="replace") if table.is_file() else "")


def _of_linux(table: str) -> str:
    # The family and model numbers follow the name, because virtual machines often shorten it. ARM's table has no name.
    named = re.search(r"^model name\s*:\s*(\S.*)$", table, re.MULTILINE)
    if not named:
        return platform.processor() or platform.machine()
    kind = [re.search(rf"^{name}\s*:\s*(\d+)$", table, re.MULTILINE) for name in ("cpu family", "model")]
    numbers = f" (family {kind[0][1]}, model {kind[1][1]})" if all(kind) else ""
    return named[1].strip() + numbers


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer cores than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _backends() -> dict[str, dict[str, object]]:
    found = {}
    for name in dispatch.BACKENDS:
        module = dispatch.backend_of(name)
        missing = list(module.missing())
        # GPUs of this machine on which an available backend cannot run.
        gpus = range(torch.cuda.device_count()) if module.DEVICE == "cuda" and not missing else ()
        not_on = {f"cuda:{gpu}": why for gpu in gpus if (why := module.not_for(torch.device("cuda", gpu)))}
        found[name] = {"available": not missing, "reasons": missing, "not_on": not_on}
    return found


def _cuda() -> dict[str, object]:
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}{properties.minor}"
        devices.append(
            {
                "name": properties.name,
                "architecture": properties.gcnArchName.split(":")[0] if torch.version.hip else f"sm_{capability}",
                "capability": capability,
                "memory_gib": round(properties.total_memory / 2**30, 1),
            }
        )
    rocm = f"ROCm {torch.version.hip}" if torch.version.hip else None
    return {"version": torch.version.cuda or rocm, "devices": devices}


def main(arguments: list[str] | None = None) -> None:
    """Runs the command with these arguments (those of `sys.argv` when None)."""
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.info",
        description="Prints the versions, backends and devices of this installation.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--rates", action="store_true", help="measure the rates of products (AVX-512 BF16, AMX)")
    options = parser.parse_args(arguments)
    facts = collect() | ({"product_rates": cpu.product_rates()} if options.rates else {})
    print(json.dumps(facts, indent=2) if options.json else render(facts))


if __name__ == "__main__":
    main()
