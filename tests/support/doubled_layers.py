"""Ways to double the result of a linear layer so that only a call of the layer shows it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune


@torch.no_grad()
def by_its_weights(layer):
    """Doubles weight and bias, so that reading them equals a call."""
    for parameter in layer.parameters():
        parameter.mul_(2)
    return layer


def by_a_hook(layer):
    layer.register_forward_hook(lambda layer, args, out: 2 * out)
    return layer


def by_a_pre_hook(layer):
    if layer.bias is not None:
        layer.bias.data.mul_(2)
    layer.register_forward_pre_hook(lambda layer, args: (2 * args[0],))
    return layer


def by_its_own_forward(layer):
    layer.forward = lambda x: 2 * F.linear(x, layer.weight, layer.bias)
    return layer


def by_offloading(layer):
    inside = by_its_weights(copy.deepcopy(layer))
    layer.to("meta").forward = lambda x: F.linear(x, inside.weight, inside.bias)
    return layer


class Adapter(nn.Module):
    """A layer whose weight is that of the layer below, as in PEFT's LoRA."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.adapter = layer, copy.deepcopy(layer)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    @property
    def weight(self):
        return self.layer.weight

    @property
    def bias(self):
        return self.layer.bias

    def forward(self, x):
        return self.layer(x) + self.adapter(x)


def by_a_parametrization(layer):
    for name, _ in list(layer.named_parameters()):
        parametrize.register_parametrization(layer, name, Double())
    return layer


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


def by_pruning(layer):
    for name, parameter in list(layer.named_parameters()):
        prune.custom_from_mask(layer, name, 2 * torch.ones_like(parameter))
    return layer


class DoublingWeight(torch.Tensor):
    """A weight that only F.linear reads right, as some quantized weights."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is not F.linear:
            return super().__torch_function__(func, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return 2 * F.linear(*args, **(kwargs or {}))


def by_the_class_of_the_weight(layer):
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(DoublingWeight))
    return layer


WAYS = {
    "hook": by_a_hook,
    "pre-hook": by_a_pre_hook,
    "own forward": by_its_own_forward,
    "offloaded": by_offloading,
    "adapter": Adapter,
    "parametrized": by_a_parametrization,
    "pruned": by_pruning,
    "weight class": by_the_class_of_the_weight,
}


def change(module, names, way):
    """Replaces the linear layers whose path ends with one of the names; returns the module."""
    for path, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear) and path.endswith(names):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, way(layer))
    return module
