"""A trained model whose linear layers multiply in int8, by torchao.

A layer's weights are rounded to 8 bits once, each output channel with a scale of its own, and what comes in at every
call, each token with a scale of its own, so that no answer depends on what else is in the batch. Those layers are meant
that every token goes through; pooler, classifier and gates stay as they are.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.modules.context_fold import fold_context, has_context_layers
from qacg_models.utils.quiet import quiet

# The oldest release that this was tried with; some before it multiply in int32 on the CPU, which is slow.
LEAST_TORCHAO = (0, 18)


def in_int8(trained: TrainedModel) -> TrainedModel:
    """The same model, changed in place, with its encoder in int8; the context path is folded first.

    Raises:
        InputError: the model is not on the CPU, torchao is missing or too old, or this CPU cannot multiply so.
    """
    device = trained.model.device.type
    if device != "cpu":
        raise InputError(f"int8: expected the cpu, for which it is, got a model on the device {device}")
    quantize = load_quantizer()
    _check_products(quantize)
    model = trained.model.eval()
    if has_context_layers(model):
        fold_context(model)
    for layer in model.base_model.encoder.layer:
        fold = getattr(layer, "fold", None)
        for name, linear in layer.named_modules():
            # What a fold has taken in is no longer called.
            if type(linear) is nn.Linear and not (fold is not None and name.startswith("attention.self.")):
                quantize(linear)
        if fold is not None:
            fold.weight = _quantized(fold.weight, quantize)
    return replace(trained, int8=True)


def load_quantizer() -> Callable[[nn.Module], None]:
    """What makes a linear layer one of int8, in place.

    Raises:
        InputError: torchao is not there, is too old, or cannot be imported beside this torch.
    """
    install = f"pip install 'torchao>={_shown(LEAST_TORCHAO)}', the extra `int8`, or leave --int8 out"
    if importlib.util.find_spec("torchao") is None:
        raise InputError(f"int8: needs torchao, not installed here; {install}")
    version = importlib.metadata.version("torchao")
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_TORCHAO:
        raise InputError(f"int8: got torchao {version}; {install}")
    try:
        with quiet("torchao", "torch.utils._pytree"):
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        raise InputError(
            f"int8: torchao {version} cannot be used beside torch {torch.__version__} ({error}); wanted a newer torch,"
            " such as 2.13, or leave --int8 out"
        ) from None
    config = Int8DynamicActivationInt8WeightConfig()

    def quantize(layer: nn.Module) -> None:
        with quiet():
            quantize_(layer, config)

    return quantize


def _quantized(weight: Tensor, quantize: Callable[[nn.Module], None]) -> Tensor:
    """A weight (out, in) as a linear layer of int8 has it."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    quantize(layer)
    return layer.weight.detach()


def _check_products(quantize: Callable[[nn.Module], None]) -> None:
    """Raises InputError where sums of products do not fit the registers that they are taken in.

    Without instructions of the VNNI kind, torch adds pairs of products in 16 bits, cuts what is over, and says nothing.
    """
    width = 64
    layer = nn.Linear(width, width, bias=False)
    nn.init.ones_(layer.weight)
    quantize(layer)
    with torch.inference_mode():
        found = layer(torch.ones(width, width))
    if not torch.allclose(found, torch.full_like(found, width), rtol=0.01):
        raise InputError(
            "int8: this CPU lacks instructions that add products of 8 bits without loss (VNNI, of x86 since 2019), and"
            f" would give other answers: {found.mean().item():.1f} in place of {width}; leave --int8 out"
        )


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
