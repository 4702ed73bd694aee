"""How a model is trained: every choice, with its help text and its limits, in one place.

A choice left open is settled by the recipe: that of small models from scratch, that of pretrained weights, or that of
the released code (`recipes.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

from qacg_models.errors import InputError
from qacg_models.recipes import RECIPES

MODELS = ("qacg-bert", "cg-bert", "bert")
PROTOCOLS = ("dev", "released")
# What a checkpoint settles, so that --from leaves no choice.
SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size", "initializer_range")


def _choice(default, text: str, *choices: str, kind: type | None = None):
    return field(default=default, metadata={"help": text, "choices": choices or None, "kind": kind or type(default)})


def _open(kind: type, text: str, *choices: str):
    return _choice(None, text, *choices, kind=kind)


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. The fields are the arguments; the help text beside each says what it means.

    Raises:
        InputError: a value outside its range, or two that exclude one another.
    """

    model: str = _choice("qacg-bert", "backbone", *MODELS)
    from_checkpoint: str | None = _open(
        str, "folder or file of a checkpoint to begin from, with its tokenizer; without it weights begin at random"
    )
    protocol: str = _choice(
        "dev", "how the checkpoint is chosen and trained: on dev, or as in the released code, on test", *PROTOCOLS
    )
    epochs: int | None = _open(int, "passes over the training split")
    max_steps: int | None = _open(int, "stop after so many steps, whatever the epochs say")
    batch_size: int = _choice(64, "rows per step and process, before accumulation")
    gradient_accumulation: int = _choice(1, "batches per step")
    learning_rate: float | None = _open(float, "highest rate; rises over the warm-up, falls to 0 in a line")
    warmup: float = _choice(0.1, "share of the steps over which the rate rises")
    balance: float | None = _open(
        float, "how far the drawing of rows evens out classes: 0 not at all, 1 draws every class equally often"
    )
    weight_decay: float = _choice(0.01, "on all but biases and LayerNorm, not mixed into the moments")
    max_grad_norm: float = _choice(1.0, "norm to which gradients are clipped; 0 does not clip")
    dropout: float | None = _open(float, "of hidden states and of attention, in [0, 1); a checkpoint has its own")
    bf16: bool = _choice(False, "bfloat16 autocast; weights and moments stay float32")
    eval_every: int | None = _open(int, "steps between evaluations; 0: once per epoch")
    patience: int = _choice(0, "stop after so many evaluations without a better one; 0 never stops early")
    checkpoint_every: int = _choice(200, "steps between checkpoints, from which --resume goes on")
    keep_checkpoints: int = _choice(2, "newest checkpoints that are kept while training; none is kept afterwards")
    max_length: int = _choice(128, "most tokens of an input, special tokens included; what is over is cut")
    tokenizer: str | None = _open(
        str, "tokenizer folder or vocab.txt; without it the checkpoint's, or one learned from the training split"
    )
    cased: bool = _choice(False, "the vocab.txt given as tokenizer is cased")
    hidden_size: int | None = _open(int, "width of a model from scratch")
    layers: int | None = _open(int, "number of its layers")
    heads: int | None = _open(int, "its attention heads per layer")
    intermediate_size: int | None = _open(int, "width inside its feed-forward blocks")
    vocab_size: int | None = _open(int, "most pieces of a vocabulary learned from the training split")
    initializer_range: float | None = _open(float, "standard deviation of its initial weights")
    pooler: str | None = _open(str, "what the classifier reads: the first token or an average", "cls", "attention")
    context_projection: str | None = _open(str, "context projections: whole or per head", "hidden", "head")
    context_standalone: bool | None = _open(
        bool, "give the aspect by context id only, without its name as a second segment"
    )
    attention: str = _choice(
        "auto", "implementation of attention; auto takes the model's fastest", "auto", "fused", "sdpa", "eager"
    )
    threads: int | None = _open(int, "CPU threads; 0 leaves it to torch, which pays off for larger models")
    fsdp: bool = _choice(False, "under torchrun, shard weights, gradients and moments over the processes (FSDP2)")
    tensorboard: str | None = _open(str, "folder for TensorBoard logs")
    seed: int = _choice(0, "of initial weights, order and dropout")

    def __post_init__(self):
        for option in fields(self):
            value, known = getattr(self, option.name), option.metadata["choices"]
            if known and value is not None and value not in known:
                raise InputError(f"{option.name}: got {value!r}, wanted one of {', '.join(known)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}; got {value}")
        for name in ("learning_rate", "initializer_range"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a positive number; got {value}")
        for name in ("weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be at least 0; got {getattr(self, name)}")
        for name in ("balance", "warmup"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} must be from 0 to 1; got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be in [0, 1); got {self.dropout}")
        self._check_together()

    def _check_together(self) -> None:
        if self.hidden_size is not None and self.heads is not None and self.hidden_size % self.heads:
            raise InputError(f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}")
        given = [name for name in SIZES if getattr(self, name) is not None]
        if self.from_checkpoint is not None and given:
            raise InputError(f"{given[0]}: the checkpoint {self.from_checkpoint} settles it; wanted none beside it")
        if self.cased and self.tokenizer is None:
            raise InputError("cased speaks of a vocabulary given as tokenizer; there is none")
        if self.model == "bert" and (self.context_standalone or self.context_projection):
            raise InputError(
                "model: 'bert' has no contexts, so the aspect's name has to be a second segment; "
                "wanted no context_standalone and no context_projection"
            )

    def resolved(self) -> TrainingOptions:
        """The same with every choice settled, but for those that a checkpoint settles."""
        recipe = dict(RECIPES["scratch" if self.from_checkpoint is None else "pretrained"])
        if self.protocol == "released":
            recipe |= RECIPES["released"]
        if self.model == "bert":
            recipe |= {"context_standalone": False, "context_projection": None}
        settled = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        return replace(self, **settled)


_LEAST = {
    **dict.fromkeys(("epochs", "max_steps", "batch_size", "gradient_accumulation", "checkpoint_every"), 1),
    **dict.fromkeys(("keep_checkpoints", "hidden_size", "layers", "heads", "intermediate_size"), 1),
    **dict.fromkeys(("eval_every", "patience", "threads", "seed"), 0),
}
