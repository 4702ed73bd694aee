"""Compares a model with its formulas: every output, and the gradient of every parameter."""

import statistics

import torch
from parity import strengthen, weighted_sum


def flat(found):
    """Flattens outputs by name: a list over layers becomes one entry per layer."""
    pairs = [(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
    lists = [(name, value) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    return dict(pairs + [(f"{name}[{i}]", t) for name, values in lists for i, t in enumerate(values)])


# The gradient_band that scaled_dot_product_attention requires: gradients of queries and keys contain dA - delta, whose
# terms cancel and are several times as large as the result.
SDPA_GRADIENT_BAND = 64


def check_against_formulas(build, implementation, dtype, results, truth, gradient_band=16, draws=1):
    """Compares a model in one implementation with its formulas, relative to the error of eager in the same dtype.

    Args:
        build: function of implementation name and dtype that returns a model.
        implementation: the implementation to check, which may be "eager" itself.
        dtype: dtype of the model.
        results: function of a model that returns its outputs by name, as tensors or lists of tensors.
        truth: function of float64 weights by name and a configuration that returns outputs with at least these names.
        gradient_band: allowed error of gradients in addition to the rule, in units in the last place of the largest
            element.
        draws: number of draws of weights; medians of their errors are compared. With few elements, the error of a
            single draw is too random, and so is the largest error of several draws.
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
        assert error <= 2 * own + band, f"{name}: error of {error:.3g} units in the last place, eager's {own:.3g}"
        # The error of eager itself must be rounding, through two layers and back.
        assert own <= 100, f"eager {name}: error of {own:.3g} units in the last place"


def _errors(build, implementation, dtype, results, truth):
    """The largest errors of every output and gradient, in `implementation` and eager, in units in the last place."""
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
            # The gradient of a bias may be a sum whose terms cancel, as for the pooler's score before a softmax. The
            # terms are as large as those of the weight.
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
