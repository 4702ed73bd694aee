"""Int8 inference of a trained model's encoder, with torchao.

Weights of linear layers are quantized once, with a scale per output channel. Activations are quantized at every call,
with a scale per token, so that a prediction does not depend on the rest of the batch. Embeddings, pooler, classifier
and gates stay in float.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.modules.context import fold_context, has_context_layers
from qacg_models.utils.quiet import quiet

# The oldest tested release. On the CPU, some older releases compute int8 products as int32 products, which is slow.
LEAST_TORCHAO = (0, 18)


def in_int8(trained: TrainedModel) -> TrainedModel:
    """Quantizes the encoder of a model to int8, in place, and sets the model to evaluation mode.

    If the model has context layers, `fold_context` first folds them into the projections of attention.

    Returns:
        A TrainedModel with `int8` set to True and the same model object.

    Raises:
        InputError: the model is not on the CPU; torchao is missing, too old or incompatible with this torch; or int8
            products are not exact on this CPU.
        TypeError: a context layer, or an attention projection of its encoder layer, has a hook or a wrapper, such as an
            adapter.
    """
    device = trained.model.device.type
    if device != "cpu":
        raise InputError(f"int8: expected a model on the device cpu, got one on {device}")
    quantize = load_quantizer()
    _check_products(quantize)
    model = trained.model.eval()
    if has_context_layers(model):
        fold_context(model)
    for layer in model.base_model.encoder.layer:
        fold = getattr(layer, "fold", None)
        for name, linear in layer.named_modules():
            # A fold replaces the linear layers of attention.self, which are no longer called.
            if type(linear) is nn.Linear and not (fold is not None and name.startswith("attention.self.")):
                quantize(linear)
        if fold is not None:
            fold.weight = _quantized(fold.weight, quantize)
    return replace(trained, int8=True)


def load_quantizer() -> Callable[[nn.Module], None]:
    """Returns a function that quantizes a linear layer to int8, in place.

    Raises:
        InputError: torchao is not installed, too old, or incompatible with this torch.
    """
    least = _shown(LEAST_TORCHAO)
    install = f"run pip install 'torchao>={least}' (the extra `int8`), or omit --int8"
    if importlib.util.find_spec("torchao") is None:
        raise InputError(f"int8: expected the package torchao, got none; {install}")
    version = importlib.metadata.version("torchao")
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_TORCHAO:
        raise InputError(f"int8: expected torchao {least} or newer, got {version}; {install}")
    try:
        with quiet("torchao", "torch.utils._pytree"):
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        raise InputError(
            f"int8: torchao {version} is incompatible with torch {torch.__version__} ({error}); install a newer torch,"
            " such as 2.13, or omit --int8"
        ) from None
    config = Int8DynamicActivationInt8WeightConfig()

    def quantize(layer: nn.Module) -> None:
        with quiet():
            quantize_(layer, config)
        # For print(layer), torchao stores a method in the layer that pickle rejects.
        vars(layer).pop("extra_repr", None)

    return quantize


def _quantized(weight: Tensor, quantize: Callable[[nn.Module], None]) -> Tensor:
    """Returns an (out, in) float weight as the quantized tensor of an int8 linear layer."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    quantize(layer)
    return layer.weight.detach()


def _check_products(quantize: Callable[[nn.Module], None]) -> None:
    """Raises InputError if int8 products saturate on this CPU.

    Without VNNI instructions, torch adds pairs of products in 16 bits, and clips overflows silently.
    """
    width = 64
    layer = nn.Linear(width, width, bias=False)
    nn.init.ones_(layer.weight)
    quantize(layer)
    with torch.inference_mode():
        found = layer(torch.ones(width, width))
    if not torch.allclose(found, torch.full_like(found, width), rtol=0.01):
        raise InputError(
            "int8: expected a CPU with instructions for exact sums of 8-bit products (VNNI, in x86 since 2019), got one"
            f" that computes {found.mean().item():.1f} instead of {width}; omit --int8"
        )


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
