"""Models with quasi-attention and without, for aspect-based sentiment, question answering and summaries.

`__init__.pyi` lists the public names. Importing transformers takes seconds, so a name is imported on first use. The
first use also registers the package with transformers.
"""

import functools
import importlib

import lazy_loader  # type: ignore[import-untyped]

_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    from qacg_models.utils.machine import quiet

    with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
        value = _import_name(name)
        _register()
    return value


@functools.cache
def _register() -> None:
    """Registers everything that transformers finds by name: model types, attention with its mask, the pipeline."""
    from qacg_models.layers.attention import register_attention
    from qacg_models.models.auto import register_auto_classes

    register_auto_classes()
    register_attention()
    importlib.import_module("qacg_models.sentiment.pipeline")  # its last statement registers the pipeline
