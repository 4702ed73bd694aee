"""Configuration of Aspect-BERT."""

from typing_extensions import Unpack

from qacg_models.configs.context import ContextFromLayerConfig, ContextFromLayerFields


class AspectBertConfig(ContextFromLayerConfig):
    """Configuration of Aspect-BERT: sizes, contexts, and the layer to whose input the context embedding is added.

    Args:
        **kwargs: fields of `ContextFromLayerConfig`, `ContextConfig` and `EncoderConfig`.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

    Example:
        >>> AspectBertConfig(contexts=["price", "service"], num_labels=3, context_from_layer=11).context_id("service")
        1
    """

    model_type = "aspect_bert"

    def __init__(self, **kwargs: Unpack[ContextFromLayerFields]):  # documented and checked in the base classes
        super().__init__(**kwargs)
