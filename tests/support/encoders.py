"""Small encoders of the library transformers with random weights, for tests of heads."""

import torch
import transformers
from model_sizes import TINY
from parity import strengthen

SIZES = {**TINY, "max_position_embeddings": 16}


def bert_config(**settings):
    return transformers.BertConfig(**{**SIZES, **settings})


def roberta_config(**settings):
    return transformers.RobertaConfig(**{**SIZES, "type_vocab_size": 1, **settings})


def distilbert_config():
    return transformers.DistilBertConfig(
        vocab_size=31, dim=12, n_layers=1, n_heads=3, hidden_dim=20, max_position_embeddings=16
    )


def electra_config():
    return transformers.ElectraConfig(**SIZES, embedding_size=8)


def deberta_config():
    return transformers.DebertaV2Config(**{**SIZES, "relative_attention": True, "position_biased_input": False})


FAMILIES = {
    "bert": bert_config,
    "roberta": roberta_config,
    "distilbert": distilbert_config,
    "electra": electra_config,
    "deberta-v2": deberta_config,
}


def build(model_class, config, dtype=torch.float32, strong=True):
    """Makes a model in evaluation mode; with `strong`, its weights are large."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    return (strengthen(model) if strong else model).to(dtype)
