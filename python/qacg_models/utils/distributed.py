"""Several processes that train together, started by torchrun. All functions also work for one process."""

import os
from collections.abc import Callable
from typing import TypeVar

from qacg_models.errors import InputError

T = TypeVar("T")


def world_size() -> int:
    """Returns the number of processes, from WORLD_SIZE, which torchrun sets; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Returns the number of this process, from RANK; 0 for the main process, and without torchrun."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Returns whether this is the main process, which writes files and prints."""
    return rank() == 0


def main_only(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns `say` in the main process, and a function that does nothing in the other processes."""
    return say if is_main() else lambda line: None


def join_group() -> None:
    """Initializes the process group if there are several processes; `run_on_main` and `wait_for_all` require it."""
    if world_size() > 1:
        from accelerate import PartialState

        PartialState()


def run_on_main(action: Callable[[], T]) -> T:
    """Runs `action` in the main process, and returns its result in all processes.

    With several processes, the result must be picklable.

    Raises:
        InputError: in the other processes, with the message of an exception that `action` raises in the main process.
            The main process raises the exception itself.
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
