"""Small encoders of the library transformers with random weights, for tests of heads."""

import torch
import transformers
from model_sizes import TINY
from parity import strengthen

SIZES = {**TINY, "max_position_embeddings": 16}
DISTILBERT = {"vocab_size": 31, "dim": 12, "n_layers": 1, "n_heads": 3, "hidden_dim": 20, "max_position_embeddings": 16}


def bert_config(**settings):
    return transformers.BertConfig(**{**SIZES, **settings})


def roberta_config(**settings):
    return transformers.RobertaConfig(**{**SIZES, "type_vocab_size": 1, **settings})


FAMILIES = {
    "bert": bert_config,
    "roberta": roberta_config,
    "distilbert": lambda: transformers.DistilBertConfig(**DISTILBERT),
    "electra": lambda: transformers.ElectraConfig(**SIZES, embedding_size=8),
    "deberta-v2": lambda: transformers.DebertaV2Config(**SIZES, relative_attention=True, position_biased_input=False),
}


def build(model_class, config, dtype=torch.float32, strong=True):
    """Makes a model in evaluation mode; with `strong`, its weights are large."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    return (strengthen(model) if strong else model).to(dtype)
