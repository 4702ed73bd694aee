"""The context path of a whole model folded for inference; `modules/context_fold.py` has the folding of one layer."""

from typing import Any

from torch import nn

from qacg_models.modules.context_encoder import ContextBertEncoder
from qacg_models.modules.context_fold import ContextFold


def has_context_layers(model: nn.Module) -> bool:
    """Whether there is a context path to fold: a model may have no contexts, or take them in elsewhere."""
    return bool(_context_encoders(model))


def fold_context(model: nn.Module) -> int:
    """Folds the context path of every layer of a QACG-BERT or CG-BERT, for inference; returns how many layers.

    Results stay the same up to rounding. The folded weights are used where no gradients are recorded and no maps
    are asked for. Putting the model into training mode or loading a state dict drops them; after any other change
    of the weights call this again. Parameters, state dict and saved files stay as they are.

    Raises:
        ValueError: the model is in training mode, or has no layer with a context.
        TypeError: a projection is not a plain nn.Linear.
    """
    if model.training:
        raise ValueError("model: got one in training mode, wanted model.eval() before folding for inference")
    encoders = _context_encoders(model)
    if not encoders:
        raise ValueError(f"model: got a {type(model).__name__} without context layers, wanted a QACG-BERT or CG-BERT")
    pairs: list[Any] = [pair for encoder in encoders for pair in zip(encoder.layer, encoder.context_layer)]
    folds = [(layer, ContextFold(layer.attention.self, context_layer)) for layer, context_layer in pairs]
    for layer, fold in folds:
        layer.fold = fold.eval()
    return len(folds)


def _context_encoders(model: nn.Module) -> list[ContextBertEncoder]:
    return [module for module in model.modules() if isinstance(module, ContextBertEncoder)]
