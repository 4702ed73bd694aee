"""The most that a size may be, for configurations and for flags: above every published model, below what harms.

A number typed wrong is refused before anything is made of its size. Whether a model of allowed sizes fits into the
memory of a machine is another question, which training asks when it knows them all.
"""

from __future__ import annotations

from types import MappingProxyType

# By the field of the configuration: the most, and what is usual.
MOST = MappingProxyType(
    {
        "vocab_size": (10_000_000, "the largest published vocabulary, XLM-V's, has 901,629 pieces"),
        "hidden_size": (65_536, "BERT-large has 1,024"),
        "num_hidden_layers": (1_000, "BERT-large has 24"),
        "num_attention_heads": (1_024, "BERT-large has 16"),
        "intermediate_size": (1_048_576, "usual is 4 * hidden_size; BERT-large has 4,096"),
        "max_position_embeddings": (1_048_576, "BERT has 512"),
        "type_vocab_size": (65_536, "BERT has 2"),
        "num_labels": (1_000_000, "sentiment has 2 to 5"),
        "contexts": (65_536, "SentiHood has 8"),
        "inter_layers": (1_000, "published are 1 to 3"),
        "heads": (1_024, "published are 8"),
        "ff_size": (1_048_576, "published are 2,048"),
        "conv_channels": (65_536, "published are 1,024"),
        "num_question_types": (1_000_000, "published are 6"),
    }
)
SEED = 2**32 - 1  # NumPy's generator, which transformers seeds too, takes no larger one


def limit(field: str) -> str:
    """The limit of a field of MOST in words: `1,000 (BERT-large has 24)`."""
    most, usual = MOST[field]
    return f"{most:,} ({usual})"
