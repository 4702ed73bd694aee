"""What a backend is: a module of this folder with these members."""

from typing import Protocol

import torch

from qacg_kernels.call.problem import Problem


class Backend(Protocol):
    """What `dispatch` asks of a backend.

    Attributes:
        NAME: by which users choose it; one of `ops.BACKENDS`.
        NEEDS_SELF_CHECK: whether its operators compare the first call of each kernel variant with the reference
            (`qacg_kernels.self_check`), because its kernels have not run on the hardware that they are for.
    """

    NAME: str
    NEEDS_SELF_CHECK: bool

    @property
    def DEVICE(self) -> str | None:
        """The type of the devices whose tensors it takes, "cpu" or "cuda"; None for all of them."""

    def missing(self) -> list[str]:
        """Why this backend is not on this machine; empty if it is."""

    def not_for(self, device: torch.device) -> list[str]:
        """Why this backend takes no call at all on a device of its type; empty if it takes some."""

    def unsupported(self, problem: Problem) -> list[str]:
        """Reasons why this backend would not take a call; empty if it would."""

    def residuals(self, problem: Problem) -> dict[str, bool]:
        """Which branch outputs the backward wants from the forward."""

    def note(self, problem: Problem) -> str | None:
        """What a user should know of how a call would be computed, for `explain`."""
