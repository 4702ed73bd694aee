"""The fields that every configuration of transformers takes, for type checkers to know a misspelt one."""

from typing import Literal

import torch
from typing_extensions import TypedDict

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


class CommonFields(TypedDict, total=False):
    """Fields of transformers' PreTrainedConfig that mean something here; each may be left out."""

    architectures: list[str] | None
    attn_implementation: str | dict[str, str] | None
    dtype: str | torch.dtype | None
    id2label: dict[int, str] | dict[str, str] | None
    label2id: dict[str, int] | dict[str, str] | None
    model_type: str
    name_or_path: str
    num_labels: int
    output_attentions: bool
    output_hidden_states: bool
    problem_type: ProblemType | None
    return_dict: bool
    transformers_version: str | None
