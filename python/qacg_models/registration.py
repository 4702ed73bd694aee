"""Registration with transformers: model types, an attention implementation with its mask, and the pipeline."""

import functools
import importlib

from qacg_models.models.auto import register_auto_classes
from qacg_models.modules.transformers_attention import NAME, fused_attention_forward


@functools.cache
def register() -> None:
    """Registers everything that transformers finds by name, once per process."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    register_auto_classes()
    AttentionInterface.register(NAME, fused_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    importlib.import_module("qacg_models.inference.aspect_pipeline")  # its last statement registers the pipeline
