"""The process and its machine: devices, threads, other processes, quiet libraries, provenance."""

import importlib
import logging
import math
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from qacg_models.errors import InputError

T = TypeVar("T")


def world_size() -> int:
    """Returns the number of processes, from WORLD_SIZE, which torchrun sets; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Returns whether this is the main process, which writes files and prints: RANK is 0, or not set."""
    return int(os.environ.get("RANK", "0")) == 0


def main_only(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns `say` in the main process, and a function that does nothing in the other processes."""
    return say if is_main() else lambda line: None


def join_group() -> None:
    """Initializes the process group if there are several processes; `run_on_main` and `wait_for_all` require it."""
    if world_size() > 1:
        from accelerate import PartialState

        PartialState()


def run_on_main(action: Callable[[], T]) -> T:
    """Runs `action` in the main process, and returns its result, which is picklable, in all processes.

    An exception of `action` is raised in the main process, and as an InputError with its message in the others.
    """
    if world_size() == 1:
        return action()
    import torch.distributed as dist

    shared: list = [None, None]  # result, error message
    error: Exception | None = None
    if is_main():
        try:
            shared[0] = action()
        except Exception as caught:
            error, shared[1] = caught, f"{caught}"
    dist.broadcast_object_list(shared)
    if error is not None:
        raise error
    if shared[1] is not None:
        raise InputError(shared[1])
    return shared[0]


def wait_for_all() -> None:
    """Waits until every process has called this function."""
    if world_size() > 1:
        import torch.distributed as dist

        dist.barrier()


_CGROUP = Path("/sys/fs/cgroup")


def let_threads_sleep() -> None:
    """Makes OpenMP threads sleep instead of spin while they wait for one another, unless OMP_WAIT_POLICY is set.

    Spinning uses CPU time that other threads need. OpenMP reads the setting when torch is imported, so this function
    does nothing after that import.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cpu_quota() -> int | None:
    """Returns the number of cores that the control group allows (`docker --cpus`), rounded up; None without a limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return max(1, math.ceil(int(quota) / int(period))) if quota.isdecimal() else None  # "max" without a limit


_restored: dict[int, int] = {}  # of each Python thread inside `cpu_threads`: the number that it restores
_counting = threading.Lock()


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Sets the number of torch's CPU threads inside the block, and restores it afterwards.

    For 0 or None, the number is the current one, or `cpu_quota` if that is lower, since torch does not read the quota.
    A Python thread that enters while others are inside restores the number that the first of them found, because torch
    gives a new thread the number that another thread has set.
    """
    import torch

    thread = threading.get_ident()
    with _counting:
        before, nested = torch.get_num_threads(), thread in _restored
        if not nested:
            before = _restored[thread] = next(iter(_restored.values()), before)
        torch.set_num_threads(count or min(before, cpu_quota() or before))
    try:
        yield
    finally:
        with _counting:
            torch.set_num_threads(before)
            if not nested:
                del _restored[thread]


def local_device(name: str = "auto") -> str:
    """Returns the device of this process for a device name; "auto" selects a GPU if there is one, otherwise the CPU.

    With several processes, "cuda" becomes the GPU of this process, such as "cuda:1".
    """
    if name == "auto":
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and world_size() > 1 else name


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether torch raised the error because a device has no memory left."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppresses all Python warnings, and log lines of `loggers` below the level ERROR, inside the block."""
    found = [logging.getLogger(name) for name in loggers]
    before = [logger.level for logger in found]
    for logger in found:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(found, before):
            logger.setLevel(level)


@contextmanager
def hidden_library_bars() -> Iterator[None]:
    """Hides the progress bars of transformers, such as those of loading weights, inside the block or function."""
    from transformers.utils import logging as library

    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bar()


def load_libraries() -> None:
    """Imports torch and transformers without warnings, with sleeping OpenMP threads, and disables progress bars."""
    let_threads_sleep()
    with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
        importlib.import_module("transformers.modeling_layers")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def origin() -> dict[str, object]:
    """Returns the versions of packages, the machine (CPU, CUDA, threads) and the commit, as JSON values."""
    import torch

    from qacg_kernels import info

    facts = info.collect()
    return {
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")}
        | {"qacg-kernels": facts["package"], "python": platform.python_version()},
        "machine": {"cpu": facts["cpu"], "cuda": facts["cuda"], "threads": torch.get_num_threads()},
        "commit": commit(),
    }


def now() -> str:
    """Returns the time in UTC in ISO 8601 format, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """Returns the commit, followed by "-modified" if tracked files differ; None outside a checkout or without git."""
    from qacg_kernels.utils.source_revision import checkout_of

    found = checkout_of(__file__, "-uno")
    return found and found[0] + ("-modified" if found[1] else "")
