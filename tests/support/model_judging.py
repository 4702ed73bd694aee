"""Compares a model with its formulas: every output, and the gradient of every parameter."""

import statistics

import torch
from parity import strengthen, weighted_sum

# The gradient_band that scaled_dot_product_attention requires: gradients of queries and keys contain dA - delta, whose
# terms cancel and are several times as large as the result.
SDPA_GRADIENT_BAND = 64


def flat(found):
    """Flattens outputs by name: a list over layers becomes one entry per layer."""
    pairs = [(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
    lists = [(name, value) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    return dict(pairs + [(f"{name}[{i}]", t) for name, values in lists for i, t in enumerate(values)])


def check_against_formulas(build, implementation, dtype, results, truth, gradient_band=16, draws=1):
    """Compares a model in one implementation with its formulas, relative to the error of eager in the same dtype.

    Args:
        build: function of implementation name and dtype that returns a model.
        implementation: the implementation to check, which may be "eager" itself.
        results: function of a model that returns its outputs by name, as tensors or lists of tensors.
        truth: function of float64 weights by name and a configuration that returns outputs with at least these names.
        gradient_band: allowed error of gradients beside the rule, in units in the last place of the largest element.
        draws: number of draws of weights, whose median error is compared: with few elements, a single one is random.
    """
    found = {}
    for seed in range(1, draws + 1):
        models = {kind: build(kind, dtype) for kind in (implementation, "eager")}
        if seed > 1:
            models = {kind: strengthen(model, seed) for kind, model in models.items()}
        for name, errors in _errors(*(models[kind] for kind in (implementation, "eager")), results, truth).items():
            found.setdefault(name, []).append(errors)
    for name, errors in found.items():
        error, own = map(statistics.median, zip(*errors))
        # With so few elements the error of eager is random, 0.1 to 5 roundings of the largest element. Kernels keep
        # scores in powers of two, whose rounded factor log2 e causes errors in P of the size of a score.
        band = gradient_band if name.startswith("gradient of ") else 16
        assert error <= 2 * own + band, f"{name}: error of {error:.3g} units in the last place, eager's {own:.3g}"
        # The error of eager itself must be rounding, through two layers and back.
        assert own <= 100, f"eager {name}: error of {own:.3g} units in the last place"


def _errors(judged, eager, results, truth):
    """The largest errors of every output and gradient of both models, in units in the last place."""
    outputs, gradients = [], []
    for model in (judged, eager):
        outputs.append(flat(results(model)))
        weighted_sum(outputs[-1].values()).backward()
        gradients.append({f"gradient of {name}": p.grad for name, p in model.named_parameters()})
    weights = {name: p.detach().double().requires_grad_() for name, p in eager.named_parameters()}
    true = flat(truth(weights, eager.config))
    true = {name: true[name] for name in outputs[1]}
    weighted_sum(true.values()).backward()
    scales = {name: float(t.detach().abs().max()) for name, t in true.items()}
    for name, leaf in weights.items():
        # The gradient of a bias may be a sum whose terms cancel, as for the pooler's score before a softmax. The terms
        # are as large as those of the weight, so both have the scale of their layer.
        layer = name.rpartition(".")[0]
        scales[layer] = max(scales.get(layer, 0.0), float(leaf.grad.abs().max()))
    for name, leaf in weights.items():
        true[f"gradient of {name}"], scales[f"gradient of {name}"] = leaf.grad, scales[name.rpartition(".")[0]]
    found = [{**output, **gradient} for output, gradient in zip(outputs, gradients)]
    rounding = torch.finfo(next(eager.parameters()).dtype).eps  # maps may have a wider dtype than the model
    return {name: [_roundings(each[name], t, rounding * scales[name]) for each in found] for name, t in true.items()}


@torch.no_grad()
def _roundings(judged, true, rounding):
    """The largest error as a multiple of `rounding`; where that is 0, the result must be 0."""
    error = float((judged.double() - true).abs().max())
    return error / rounding if rounding else (0.0 if error == 0 else float("inf"))
