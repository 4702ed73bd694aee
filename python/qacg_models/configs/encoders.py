"""The configurations of the encoders of this package, by model type. Importing this makes AutoConfig know them all."""

from transformers import AutoConfig

from qacg_models.configs.bert import PlainBertConfig
from qacg_models.configs.cg_bert import CGBertConfig
from qacg_models.configs.qacg_bert import QACGBertConfig

CONFIGS = (
    PlainBertConfig,
    CGBertConfig,
    QACGBertConfig,
)
ENCODER_CONFIGS = {config.model_type: config for config in CONFIGS}

for _model_type, _config in ENCODER_CONFIGS.items():
    # exist_ok: reloading a module in a notebook registers its new classes.
    AutoConfig.register(_model_type, _config, exist_ok=True)
