"""Several processes that work together, as torchrun starts them; everything here also works for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from qacg_models.errors import InputError

T = TypeVar("T")


def world_size() -> int:
    """Number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that writes files and speaks."""
    return rank() == 0


def main_only(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say` in the main process; in the others what says nothing."""
    return say if is_main() else lambda line: None


def join_group() -> None:
    """Makes the processes one group, which the functions below need; nothing for a single process."""
    if world_size() > 1:
        from accelerate import PartialState

        PartialState()


def run_on_main(action: Callable[[], T]) -> T:
    """What `action` returns in the main process, the only one that runs it; others wait.

    Raises:
        InputError: in every process, where the action raises one.
    """
    if world_size() == 1:
        return action()
    import torch.distributed as dist

    told: list = [None, None]
    error: Exception | None = None
    if is_main():
        try:
            told[0] = action()
        except Exception as caught:
            error, told[1] = caught, f"{caught}"
    dist.broadcast_object_list(told)
    if error is not None:
        raise error
    if told[1] is not None:
        raise InputError(told[1])
    return told[0]


def wait_for_all() -> None:
    """Returns when every process has come here."""
    if world_size() > 1:
        import torch.distributed as dist

        dist.barrier()


def local_device(name: str = "auto") -> str:
    """The device that a name stands for in this process: of several GPUs, "cuda" is the process's own.

    Args:
        name: "auto" is a GPU where there is one, and the CPU elsewhere.
    """
    if name == "auto":
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and world_size() > 1 else name
