"""The largest allowed values of sizes, in configurations and flags. They are above usual sizes.

The limits catch typos before memory of that size is allocated. Training checks separately whether a model
fits into memory. This module does not import torch, since the command-line parser reads it.
"""

from types import MappingProxyType

# By field of a configuration: the limit, and published values, which the error prints.
MOST = MappingProxyType(
    {
        "vocab_size": (10_000_000, "XLM-V has 901,629"),
        "hidden_size": (65_536, "BERT-large has 1,024"),
        "num_hidden_layers": (1_000, "BERT-large has 24"),
        "num_attention_heads": (1_024, "BERT-large has 16"),
        "intermediate_size": (1_048_576, "usual: 4 * hidden_size; BERT-large has 4,096"),
        "max_position_embeddings": (1_048_576, "BERT has 512"),
        "type_vocab_size": (65_536, "BERT has 2"),
        "num_labels": (1_000_000, "sentiment has 2 to 5"),
        "contexts": (65_536, "SentiHood has 8"),
        "inter_layers": (1_000, "published: 1 to 3"),
        "heads": (1_024, "published: 8"),
        "ff_size": (1_048_576, "published: 2,048"),
        "conv_channels": (65_536, "published: 1,024"),
        "num_question_types": (1_000_000, "published: 6"),
    }
)
SEED = 2**32 - 1  # the largest seed of NumPy's generator, which transformers seeds too


def limit(field: str) -> str:
    """Returns the limit of a field of MOST as text for messages, such as `1,000 (BERT-large has 24)`."""
    most, usual = MOST[field]
    return f"{most:,} ({usual})"
