"""Compares a model with its oracle: sets large weights, and compares all outputs and all gradients."""

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
    """Returns a weighted sum of all elements of all tensors, with random weights."""
    return sum((t.double() * random(*t.shape, seed=n).double()).sum() for n, t in enumerate(tensors))


def double_leaves(module):
    """Copies parameters and buffers to float64, by name, as leaves for the gradients of an oracle."""
    return {
        name: t.detach().double().requires_grad_(isinstance(t, torch.nn.Parameter))
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    }


def assert_as_exact(name, mine, exact, scale, roundings=100):
    """Asserts that an error is at most `roundings` units in the last place of `scale`."""
    error = float((mine.detach().double() - exact.detach()).abs().max()) if mine.numel() else 0.0
    limit = roundings * torch.finfo(mine.dtype).eps * scale
    assert mine.shape == exact.shape, f"{name}: expected shape {tuple(exact.shape)}, got {tuple(mine.shape)}"
    assert error <= limit, f"{name}: expected an error of at most {limit:.3e}, got {error:.3e}"


def check_outputs_and_gradients(module, outputs, leaves, exact, unused=(), roundings=100):
    """Checks every output of a model, then the gradient of every parameter for a weighted sum of all outputs.

    `exact` are the outputs of the oracle, computed from `leaves`, the float64 parameters by name. The model does not
    read the parameters in `unused`.
    """
    assert outputs.keys() == exact.keys()
    for name, t in outputs.items():
        assert_as_exact(name, t, exact[name], float(exact[name].detach().abs().max()), roundings)
    module.zero_grad()
    weighted_sum(outputs.values()).backward()
    weighted_sum(exact.values()).backward()
    largest = {}  # by layer, because the terms of the gradient of a bias may cancel
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
        assert scale > 0, f"{name}: expected a gradient of the oracle, got None"
        assert p.grad is not None, f"{name}: expected a gradient, got None"
        assert_as_exact(f"gradient of {name}", p.grad, leaves[name].grad, scale, roundings)
