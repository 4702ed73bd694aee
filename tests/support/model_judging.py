"""Comparison of a model with its formulas: every output, and the gradient of every parameter."""

import statistics

import torch
from parity import strengthen, weighted_sum


def flat(found):
    """Named outputs; lists over layers become one entry per layer."""
    pairs = [(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
    lists = [(name, value) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    return dict(pairs + [(f"{name}[{i}]", t) for name, values in lists for i, t in enumerate(values)])


# What scaled_dot_product_attention needs for gradients: queries and keys see dA - delta, which cancels, so their
# terms are several times as large as the result.
SDPA_GRADIENT_BAND = 64


def check_against_formulas(build, implementation, dtype, results, truth, gradient_band=16, draws=1):
    """Compares a model in one implementation with its formulas, relative to the error of eager in the same dtype.

    Args:
        build: implementation name and dtype to a model.
        implementation: the one to judge; "eager" itself is judged too.
        results: a model to its named outputs, tensors or lists of tensors.
        truth: float64 weights by name, and the configuration, to outputs of the same names, among others.
        gradient_band: roundings of the largest element that a gradient may be off beside the rule.
        draws: of weights; the medians of their errors are compared. Where few numbers are judged, one draw compares
            eager's luck to a kernel's, and the largest of several do no better: one in eight is three times the rest.
    """
    found = {}
    for seed in range(1, draws + 1):

        def drawn(kind, dtype, seed=seed):
            model = build(kind, dtype)
            return model if seed == 1 else strengthen(model, seed)

        for name, errors in _errors(drawn, implementation, dtype, results, truth).items():
            found.setdefault(name, []).append(errors)
    for name, errors in found.items():
        error, own = map(statistics.median, zip(*errors))
        # With so few elements the error of eager is random, 0.1 to 5 roundings of the largest element. Kernels keep
        # scores in powers of two, whose rounded factor log2 e causes errors in P of the size of a score.
        band = gradient_band if name.startswith("gradient of ") else 16
        assert error <= 2 * own + band, f"{name}: {error:.3g} roundings, eager's {own:.3g}"
        # The error of eager itself must be rounding, through two layers and back.
        assert own <= 100, f"eager {name}: {own:.3g} roundings"


def _errors(build, implementation, dtype, results, truth):
    """The largest error of every output and gradient, and that of eager, in roundings of its scale."""
    outputs, gradients = {}, {}
    for kind in (implementation, "eager"):
        model = build(kind, dtype)
        outputs[kind] = flat(results(model))
        weighted_sum(outputs[kind].values()).backward()
        gradients[kind] = {name: p.grad for name, p in model.named_parameters()}
    weights = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    true = flat(truth(weights, model.config))
    true = {name: true[name] for name in outputs["eager"]}
    weighted_sum(true.values()).backward()
    errors = {}
    with torch.no_grad():
        for name, t in true.items():
            judged, eager = (outputs[kind][name] for kind in (implementation, "eager"))
            errors[name] = _in_roundings(judged, eager, t, float(t.abs().max()), dtype)
        largest = {}
        for name, leaf in weights.items():
            layer = name.rpartition(".")[0]
            largest[layer] = max(largest.get(layer, 0.0), float(leaf.grad.abs().max()))
        for name, leaf in weights.items():
            # A bias may cancel to nothing (the pooler's score, which a softmax follows): the terms of its sum
            # are as large as those of the weight.
            scale = largest[name.rpartition(".")[0]]
            judged, eager = (gradients[kind][name] for kind in (implementation, "eager"))
            errors[f"gradient of {name}"] = _in_roundings(judged, eager, leaf.grad, scale, dtype)
    return errors


def _in_roundings(judged, eager, true, scale, dtype):
    rounding = torch.finfo(dtype).eps * scale
    return [_share(float((t.double() - true).abs().max()), rounding) for t in (judged, eager)]


def _share(error, rounding):
    # Where the reference is zero everywhere, the result must be zero.
    return error / rounding if rounding else (0.0 if error == 0 else float("inf"))
