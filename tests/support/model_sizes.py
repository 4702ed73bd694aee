"""Sizes of the models in tests, which are small and all different, and a batch for these models."""

import torch

TINY = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 9,
}
# Training options of a small model, and the same as flags of `qacg train`.
SMALL = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}
SMALL_FLAGS = [f"--set={name}={value}" for name, value in SMALL.items()]
# Two sequences, the second padded.
TOKENS = {
    "input_ids": torch.tensor([[2, 7, 30, 11, 3], [2, 9, 3, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]),
}
CONTEXTS = {"context_ids": torch.tensor([2, 0])}
LABELS = {"labels": torch.tensor([1, 2])}
