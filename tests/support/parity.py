"""Comparison of a model with its oracle: large weights, a scalar of all outputs, every gradient."""

import torch


def strengthen(module, seed=1):
    """Sets random weights that make scores, gates and biases matter; returns the module."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            parts = name.lower().split(".")
            centre = 1.0 if parts[-1] == "weight" and parts[-2:-1] in (["layernorm"], ["layer_norm"]) else 0.0
            p.copy_(centre + 0.4 * torch.randn(p.shape, generator=generator))
    return module


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weighted_sum(tensors):
    """A weighted sum of all elements of all tensors, with different weights."""
    return sum((t.double() * random(*t.shape, seed=n).double()).sum() for n, t in enumerate(tensors))


def double_leaves(module):
    """Parameters and buffers in float64, for the gradients of an oracle."""
    return {
        name: t.detach().double().requires_grad_(isinstance(t, torch.nn.Parameter))
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    }


def assert_as_exact(name, mine, exact, scale, roundings=100):
    """The error is rounding: at most `roundings` units of the last place of `scale`.

    The gradient of a bias may cancel to nothing while the terms of its sum do not; `scale` then is theirs.
    """
    error = float((mine.detach().double() - exact.detach()).abs().max()) if mine.numel() else 0.0
    limit = roundings * torch.finfo(mine.dtype).eps * scale
    assert mine.shape == exact.shape, f"{name}: {tuple(mine.shape)} for {tuple(exact.shape)}"
    assert error <= limit, f"{name}: error {error:.3e}, limit {limit:.3e}"


def check_outputs_and_gradients(module, outputs, leaves, exact, unused=(), roundings=100):
    """Every named output, then the gradient of every parameter of `module` for a weighted sum of them all.

    leaves: float64 parameters that `exact` was computed from. unused: names that the model never reads.
    """
    assert outputs.keys() == exact.keys()
    for name, t in outputs.items():
        assert_as_exact(name, t, exact[name], float(exact[name].detach().abs().max()), roundings)
    module.zero_grad()
    weighted_sum(outputs.values()).backward()
    weighted_sum(exact.values()).backward()
    largest = {}
    for name, _ in module.named_parameters():
        if name not in unused:
            layer = name.rpartition(".")[0]
            largest[layer] = max(largest.get(layer, 0.0), float(leaves[name].grad.abs().max()))
    for name, p in module.named_parameters():
        if name in unused:
            assert p.grad is None, name
            assert leaves[name].grad is None, name
            continue
        scale = largest[name.rpartition(".")[0]]
        assert scale > 0, f"{name}: the oracle has no gradient"
        assert p.grad is not None, f"{name}: no gradient"
        assert_as_exact(f"gradient of {name}", p.grad, leaves[name].grad, scale, roundings)
