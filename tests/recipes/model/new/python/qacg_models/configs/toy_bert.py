"""Configuration of the toy BERT."""

from typing_extensions import Unpack

from qacg_models.configs.context import ContextConfig, ContextFields


class ToyBertConfig(ContextConfig):
    """A BERT whose pooled output is scaled by its context: the fields of `ContextConfig` and no others."""

    model_type = "toy_bert"

    def __init__(self, **kwargs: Unpack[ContextFields]):  # documented and checked in ContextConfig
        super().__init__(**kwargs)
