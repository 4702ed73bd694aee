"""CPU threads, GPUs and memory, as torch uses them."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qacg_models.utils.distributed import world_size

_CGROUP = Path("/sys/fs/cgroup")


def let_threads_sleep() -> None:
    """Makes OpenMP threads sleep instead of spin while they wait for one another.

    Spinning uses CPU time that other threads need. Time of a training step of MiniLM on two cores, in seconds:

    | other busy processes | 2 threads, spinning | 2 threads, sleeping | 1 thread |
    |---:|---:|---:|---:|
    | 0 | 0.7 | 0.7 | 1.2 |
    | 10 | 11 to 18 | 4 to 5 | 4.4 to 6.4 |

    OpenMP reads the setting when torch is imported, so this function does nothing after that import. An existing value
    of OMP_WAIT_POLICY is kept.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cpu_quota() -> int | None:
    """Returns the number of cores that the control group allows (`docker --cpus`), rounded up; None without a limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (_CGROUP / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (_CGROUP / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal()):  # "max", or -1 in version 1
        return None
    return max(1, math.ceil(int(quota) / int(period)))


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Sets the number of torch's CPU threads inside the block, and restores it afterwards.

    Args:
        count: number of threads. 0 or None: the current number, or `cpu_quota` if that is lower, since torch does not
            read the quota. Torch's default depends on the CPU affinity and OMP_NUM_THREADS.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or min(before, cpu_quota() or before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def local_device(name: str = "auto") -> str:
    """Returns the device of this process for a device name.

    Args:
        name: "auto" selects a GPU if there is one, otherwise the CPU. With several processes, "cuda" becomes the GPU
            of this process, such as "cuda:1". Other names are returned unchanged.
    """
    if name == "auto":
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and world_size() > 1 else name


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether torch raised the error because a device has no memory left."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
