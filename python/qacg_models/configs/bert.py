"""Configuration of BERT."""

from typing_extensions import Unpack

from qacg_models.configs.encoder import EncoderConfig, EncoderFields


class PlainBertConfig(EncoderConfig):
    """BERT with plain softmax attention: the fields of `EncoderConfig` and no others.

    Called plain because transformers has a BertConfig, and its registry goes by class name. It reads the
    configuration files of transformers' BERT.
    """

    model_type = "plain_bert"

    def __init__(self, **kwargs: Unpack[EncoderFields]):  # documented and checked in EncoderConfig
        super().__init__(**kwargs)
