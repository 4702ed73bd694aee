"""Uses of torch's private interfaces."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def has_values(t: Tensor) -> bool:
    """Whether a tensor has values to look at: not in a graph being made, nor in FakeTensorMode or under vmap."""
    return (
        not torch.compiler.is_compiling()
        and not isinstance(t, FakeTensor)
        and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
        and not torch._C._functorch.is_batchedtensor(t)
    )


def values_readable(t: Tensor) -> bool:
    """Whether its values can be had for nothing: a GPU would wait. Where they can't, the kernels clamp instead."""
    return t.device.type == "cpu" and has_values(t)
