"""How a model is trained: every choice, with its help text and its limits, in one place.

A choice left open is settled by the recipe: that of small models from scratch, that of pretrained weights, or that of
the released code (`recipes.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from qacg_models.configs.limits import MOST, SEED, limit
from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES
from qacg_models.runs.recipes import RECIPES
from qacg_models.utils.option_fields import option_group

PROTOCOLS = ("dev", "released")
SCHEDULES = ("steady", "linear")
# The value of --from for weights at random.
SCRATCH = "scratch"
# What a checkpoint settles, so that --from leaves no choice.
SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size", "initializer_range")

_what = option_group("what is trained")
_step = option_group("steps")
_watch = option_group("evaluations and checkpoints")
_shape = option_group("shape of the model, beyond what a checkpoint settles")
_machine = option_group("machine")


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. The fields are the arguments; the help text beside each says what it means.

    Raises:
        InputError: a value outside its range, or two that exclude one another.
    """

    model: str = _what("qacg-bert", "backbone", *BACKBONES)
    from_checkpoint: str | None = _what(
        None,
        "folder or file of a checkpoint to begin from, with its tokenizer; or `minilm`, a small English BERT that is a"
        " Python package; or `scratch`, random weights (default: minilm where its package is installed, the text is"
        " English, and no size or tokenizer is given; otherwise scratch)",
        kind=str,
        metavar="PATH",
    )
    protocol: str = _what(
        "dev", "how the checkpoint is chosen and trained: on dev, or as in the released code, on test", *PROTOCOLS
    )
    tokenizer: str | None = _what(
        None,
        "tokenizer folder or vocab.txt; without it the checkpoint's, or one learned from the training split",
        kind=str,
        metavar="PATH",
    )
    cased: bool = _what(False, "the vocab.txt given as tokenizer is cased")
    max_length: int = _what(128, "most tokens of an input, special tokens included; what is over is cut")
    seed: int = _what(0, "of initial weights, order and dropout")

    minutes: float | None = _step(
        None, "budget: training ends then at the latest, evaluations included; 0 sets none", kind=float
    )
    epochs: int | None = _step(
        None,
        "passes over the training split; without them: with a checkpoint and up to 24,000 rows, 4, or as many as 400"
        " steps take; otherwise training goes on while dev rises",
        kind=int,
    )
    max_steps: int | None = _step(None, "stop after so many steps, whatever the epochs say", kind=int)
    schedule: str | None = _step(
        None,
        "of the learning rate. steady: it stays after the warm-up, and the average of the weights is judged and kept,"
        " so that training may end at any time; linear: it falls to 0 at the last step",
        *SCHEDULES,
        kind=str,
    )
    batch_size: int | None = _step(None, "rows per step and process, before accumulation", kind=int)
    gradient_accumulation: int = _step(1, "batches per step")
    learning_rate: float | None = _step(
        None,
        "highest rate, at the end of the warm-up; with --from by the width of the checkpoint, 2e-4 up to 384 and 5e-5"
        " from 768",
        kind=float,
    )
    warmup: float | None = _step(
        None, "share of the steps over which the rate rises; where their number is open, of 1,000", kind=float
    )
    balance: float | None = _step(
        None,
        "how far the drawing of rows evens out classes: 0 not at all, 1 draws every class equally often",
        kind=float,
    )
    logit_adjustment: float | None = _step(
        None,
        "weight of the log shares of the labels that the loss adds to the logits, so that rare labels are answered more"
        " often, in [0, 1]; 1, and balance 0, with a checkpoint that macro-F1 judges, unless either is given",
        kind=float,
    )
    weight_decay: float = _step(0.01, "on all but biases and LayerNorm, not mixed into the moments")
    max_grad_norm: float = _step(1.0, "norm to which gradients are clipped; 0 does not clip")
    dropout: float | None = _step(
        None, "of hidden states and of attention, in [0, 1); a checkpoint has its own", kind=float
    )

    word_dropout: float | None = _step(
        None, "share of a text's pieces that are replaced by the unknown one at each look, in [0, 1)", kind=float
    )
    join_texts: float | None = _step(
        None,
        "share of the rows whose text is joined with another one that has no opinion on their aspect, in [0, 1); 0"
        " where no label means that, and with `bert`",
        kind=float,
    )

    eval_every: int | None = _watch(
        None,
        "steps between evaluations; 0: once per epoch, as also with --epochs or --max-steps; else without it half an"
        " epoch, but at least 50 and at most 500",
        kind=int,
    )
    patience: int | None = _watch(
        None, "stop after so many evaluations without a better one; 0 never stops early", kind=int
    )
    checkpoint_every: int = _watch(200, "steps between checkpoints, from which --resume goes on")
    keep_checkpoints: int = _watch(2, "newest checkpoints that are kept while training; none is kept afterwards")
    tensorboard: str | None = _watch(
        None, "folder for TensorBoard logs, which the extra `tensorboard` writes", kind=str, metavar="DIR"
    )

    hidden_size: int | None = _shape(None, "width", kind=int)
    layers: int | None = _shape(None, "number of layers", kind=int)
    heads: int | None = _shape(None, "attention heads per layer", kind=int)
    intermediate_size: int | None = _shape(None, "width inside the feed-forward blocks", kind=int)
    vocab_size: int | None = _shape(None, "most pieces of a vocabulary learned from the training split", kind=int)
    initializer_range: float | None = _shape(None, "standard deviation of the initial weights", kind=float)
    pooler: str | None = _shape(
        None, "what the classifier reads: the first token or an average", "cls", "attention", kind=str
    )
    context_projection: str | None = _shape(None, "context projections: whole or per head", "hidden", "head", kind=str)
    quasi_scale: float | None = _shape(
        None, "weight of quasi-attention beside softmax attention, 1 without it; 0 leaves softmax attention", kind=float
    )
    beta: float | None = _shape(
        None,
        "weight of the queries' side of lambda, 1 without it; lambda begins at 1 - (beta + gamma) / 2, which is 0",
        kind=float,
    )
    gamma: float | None = _shape(None, "weight of the keys' side of lambda, 1 without it", kind=float)
    context_standalone: bool | None = _shape(
        None, "give the aspect by context id only, without its name as a second segment", kind=bool
    )

    attention: str = _machine(
        "auto", "implementation of attention; auto takes the model's fastest", "auto", "fused", "sdpa", "eager"
    )
    bf16: bool | None = _machine(
        None,
        "bfloat16 autocast; weights and moments stay float32 (default: on with a checkpoint on a CPU that multiplies in"
        " bfloat16, otherwise off)",
        kind=bool,
    )
    threads: int | None = _machine(
        None, "CPU threads; 0 takes every core that the process may use, which pays off for larger models", kind=int
    )
    fsdp: bool = _machine(False, "under torchrun, shard weights, gradients and moments over the processes (FSDP2)")

    def __post_init__(self):
        for option in fields(self):
            value, known = getattr(self, option.name), option.metadata["choices"]
            if known and value is not None and value not in known:
                raise InputError(f"{option.name}: got {value!r}, wanted one of {', '.join(known)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}; got {value}")
        for name, (most, shown) in _MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise InputError(f"{name} must be at most {shown}; got {value}")
        for name in ("learning_rate", "initializer_range"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a positive number; got {value}")
        for name in ("weight_decay", "max_grad_norm", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} must be at least 0; got {value}")
        for name in ("balance", "warmup", "logit_adjustment"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} must be from 0 to 1; got {value}")
        for name in ("dropout", "word_dropout", "join_texts"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name} must be in [0, 1); got {value}")
        self._check_together()

    def _check_together(self) -> None:
        if self.hidden_size is not None and self.heads is not None and self.hidden_size % self.heads:
            raise InputError(f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}")
        given = [name for name in SIZES if getattr(self, name) is not None]
        if self.from_checkpoint not in (None, SCRATCH) and given:
            raise InputError(f"{given[0]}: the checkpoint {self.from_checkpoint} settles it; wanted none beside it")
        if self.cased and self.tokenizer is None:
            raise InputError("cased: got True without a tokenizer, wanted --tokenizer with a vocab.txt beside it")
        if self.schedule == "steady" and self.protocol == "released":
            raise InputError(
                "schedule: got 'steady' with protocol 'released', whose rate falls; wanted none or 'linear'"
            )
        if self.schedule == "linear" and not self._counted:
            raise InputError("schedule: 'linear' falls to 0 at the last step; wanted epochs or max_steps beside it")
        if self.fsdp and (self.schedule == "steady" or not self._counted):
            raise InputError(
                "fsdp: the average of the weights is not kept in shards, so the rate cannot be steady; wanted epochs or"
                " max_steps beside it, and no schedule 'steady'"
            )
        entry = BACKBONES[self.model]
        if not entry.contexts and (self.context_standalone or self.context_projection):
            raise InputError(
                f"model: {self.model!r} has no contexts, so the aspect's name has to be a second segment; "
                "wanted no context_standalone and no context_projection"
            )
        if not entry.contexts and self.join_texts:
            raise InputError(f"model: {self.model!r} has no contexts, by which texts are joined; wanted no join_texts")
        for name, value in self.quasi_attention.items():
            if not entry.quasi_attention:
                raise InputError(f"model: {self.model!r} has no quasi-attention; wanted no {name}")
            if not math.isfinite(value):
                raise InputError(f"{name} must be a finite number; got {value}")
        if not entry.context_projection and self.context_projection:
            raise InputError(f"model: {self.model!r} does not project its contexts; wanted no context_projection")

    @property
    def quasi_attention(self) -> dict[str, float]:
        """The scalars of quasi-attention that were given, by their names in the configuration."""
        given = {name: getattr(self, name) for name in ("quasi_scale", "beta", "gamma")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def _counted(self) -> bool:
        """Whether the number of steps is known beforehand."""
        return self.epochs is not None or self.max_steps is not None or self.protocol == "released"

    def resolved(self) -> TrainingOptions:
        """The same with every choice settled, but for those that a checkpoint or the size of the data settles.

        Without a checkpoint these are the choices of a training from scratch.
        """
        if self.from_checkpoint == SCRATCH:
            return replace(self, from_checkpoint=None).resolved()
        recipe: dict[str, Any] = dict(RECIPES["scratch" if self.from_checkpoint is None else "pretrained"])
        if self._counted and self.schedule != "steady":
            recipe |= RECIPES["counted"]
        if self.protocol == "released":
            recipe |= RECIPES["released"]
        entry = BACKBONES[self.model]
        if not entry.contexts:
            recipe |= {"context_standalone": False, "join_texts": 0.0}
        if not entry.context_projection:
            recipe |= {"context_projection": None}
        settled = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        return replace(self, **settled)


_LEAST = {
    **dict.fromkeys(("epochs", "max_steps", "batch_size", "gradient_accumulation", "checkpoint_every"), 1),
    **dict.fromkeys(("keep_checkpoints", "hidden_size", "layers", "heads", "intermediate_size"), 1),
    **dict.fromkeys(("vocab_size", "max_length"), 1),
    **dict.fromkeys(("eval_every", "patience", "threads", "seed"), 0),
}
# The most of a choice, and how a message says it.
_MOST = {
    **{
        name: (MOST[field][0], limit(field))
        for name, field in {
            "hidden_size": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "intermediate_size": "intermediate_size",
            "vocab_size": "vocab_size",
            "max_length": "max_position_embeddings",
        }.items()
    },
    "epochs": (100_000, "100,000 (fine-tuning takes 3 to 30)"),
    "batch_size": (1_000_000, "1,000,000 (usual are 16 to 256)"),
    "gradient_accumulation": (1_000_000, "1,000,000 (usual are 1 to 64)"),
    "threads": (1_024, "1,024 (usual is the number of cores)"),
    "seed": (SEED, f"{SEED:,}, as NumPy's generator has it"),
}
