"""The optimizer and schedule of the first BERT releases, which the released QACG-BERT code uses."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


class BertAdam(Optimizer):
    """Adam without bias correction, with decoupled weight decay and clipping per tensor.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w = w - lr (m / (sqrt(v) + eps) + decay w), where g is the
    gradient of one tensor, scaled down to the norm `max_grad_norm` if its norm is larger.

    Args:
        params: tensors, or parameter groups, which can override the other arguments.
        lr: maximum learning rate; a scheduler lowers it.
        betas: decay rates b1 and b2 of the moments.
        eps: added to the denominator.
        weight_decay: `decay` in the formula.
        max_grad_norm: maximum norm of the gradient of each tensor; 0 does not clip.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ):
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Performs one update.

        Args:
            closure: computes the loss again; optional.

        Returns:
            The result of `closure`; None without it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
                gradient = weight.grad
                if group["max_grad_norm"]:
                    norm = torch.linalg.vector_norm(gradient)
                    gradient = gradient * (group["max_grad_norm"] / (norm + 1e-6)).clamp(max=1.0)
                state["mean"].lerp_(gradient, 1 - first)
                state["square"].mul_(second).add_(gradient.square(), alpha=1 - second)
                update = state["mean"] / (state["square"].sqrt() + group["eps"])
                weight.sub_(group["lr"] * (update + group["weight_decay"] * weight))
        return loss


def warmup_then_linear(step: int, steps: int, warmup: float) -> float:
    """Returns the factor of the learning rate at a step.

    With x = step / steps, the factor is x / warmup while x is below `warmup`, then 1 - x, and 0 after the last step.
    The released code has the same jump at x = warmup. Unlike this function, it underestimates the total number of
    steps, and its rates are negative after that number.

    Args:
        step: number of the step, from 0.
        steps: total number of steps.
        warmup: share of the steps with an increasing rate, in [0, 1].
    """
    share = step / steps
    return share / warmup if share < warmup else max(0.0, 1.0 - share)
