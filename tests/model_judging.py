"""What a model is compared to, and the comparison: every output, and the gradient of every parameter."""

import torch


def strengthen(model):
    """Gives a model weights with which scores, gates and biases all matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            p.copy_(centre + 0.4 * torch.randn(p.shape, generator=generator))
    return model


def weighted_sum(tensors):
    """A scalar in which every element of every output has a weight of its own."""
    total = 0.0
    for n, t in enumerate(tensors):
        total = (
            total
            + (t.double() * torch.randn(t.shape, generator=torch.Generator().manual_seed(n)).double()).sum()
        )
    return total


def flat(found):
    """Named outputs, lists over layers spread out."""
    pairs = [(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
    lists = [(name, value) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    return dict(pairs + [(f"{name}[{i}]", t) for name, values in lists for i, t in enumerate(values)])


# What scaled_dot_product_attention needs for gradients: queries and keys see dA - delta, which cancels, so their
# terms are several times as large as the result.
SDPA_GRADIENT_BAND = 64


# From one draw of weights to another eager's own error is 9 to 100 roundings in the worst gradient of a QACG-BERT, and
# so is that of the kernels, whatever their instructions: with 16 beside twice eager's error, 3 of 24 draws would fail
# with AVX2, AVX-512 and AMX alike.
GRADIENT_BAND = 32


def check_against_formulas(build, implementation, dtype, results, truth, gradient_band=GRADIENT_BAND):
    """Holds a model in one implementation to its formulas; eager in the same dtype is the measure.

    Args:
        build: implementation name and dtype to a model.
        implementation: the one to judge; "eager" itself is judged too.
        results: a model to its named outputs, tensors or lists of tensors.
        truth: float64 weights by name, and the configuration, to outputs of the same names, among others.
        gradient_band: roundings of the largest element that a gradient may be off beside the rule.
    """
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
    with torch.no_grad():
        for name, t in true.items():
            scale = float(t.abs().max())
            _check(name, outputs[implementation][name], outputs["eager"][name], t, scale, dtype, band=16)
        largest = {}
        for name, leaf in weights.items():
            layer = name.rpartition(".")[0]
            largest[layer] = max(largest.get(layer, 0.0), float(leaf.grad.abs().max()))
        for name, leaf in weights.items():
            # A bias may cancel to nothing (the pooler's score, which a softmax follows): the terms of its sum
            # are as large as those of the weight.
            scale = largest[name.rpartition(".")[0]]
            grads = (gradients[kind][name] for kind in (implementation, "eager"))
            _check(f"gradient of {name}", *grads, leaf.grad, scale, dtype, gradient_band)


def _check(name, judged, eager, true, scale, dtype, band):
    # Over as few elements as here eager's own error is a matter of luck, 0.1 to 5 roundings of the largest
    # element, and kernels rebuild P from the logsumexp of a row, which costs roundings of the size of a score;
    # hence the band.
    rounding = torch.finfo(dtype).eps * scale
    own = float((eager.double() - true).abs().max())
    error = float((judged.double() - true).abs().max())
    assert error <= 2 * own + band * rounding, f"{name}: {error:.3e}, eager's {own:.3e}, rounding {rounding:.3e}"
    # And eager is itself the formula: its error is rounding, through two layers and back.
    assert own <= 100 * rounding, f"eager {name}: {own:.3e}, rounding {rounding:.3e}"
