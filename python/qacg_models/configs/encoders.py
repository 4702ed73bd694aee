"""The configurations of the encoders by model type. Importing this module registers them with AutoConfig."""

from transformers import AutoConfig

from qacg_models.configs.aspect_bert import AspectBertConfig
from qacg_models.configs.bert import PlainBertConfig
from qacg_models.configs.cg_bert import CGBertConfig
from qacg_models.configs.qacg_bert import QACGBertConfig

CONFIGS = (
    PlainBertConfig,
    CGBertConfig,
    QACGBertConfig,
    AspectBertConfig,
)
ENCODER_CONFIGS = {config.model_type: config for config in CONFIGS}

for _model_type, _config in ENCODER_CONFIGS.items():
    # exist_ok: reloading a module in a notebook registers its new classes.
    AutoConfig.register(_model_type, _config, exist_ok=True)
