"""The options of training, with their help texts and limits.

An option that is not given gets the default of a recipe (`recipes.py`). There are recipes for random weights, for a
checkpoint, for a given number of steps, and for the training code that the authors of QACG-BERT released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES
from qacg_models.runs.recipes import RECIPES
from qacg_models.utils.field_checks import MOST, SEED, limit
from qacg_models.utils.option_fields import convert_options, option_group

PROTOCOLS = ("dev", "released")
SCHEDULES = ("steady", "linear")
STARTS = ("random", "names")
# The value of --from for random weights.
SCRATCH = "scratch"
# Options that a checkpoint defines, so they cannot be given together with a checkpoint as --from.
SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size", "initializer_range")

_what = option_group("what is trained")
_step = option_group("steps")
_watch = option_group("evaluations and checkpoints")
_shape = option_group("shape of the model, where no checkpoint defines it")
_machine = option_group("machine")


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training. Each field has a help text in its metadata, for `qacg train`.

    Raises:
        InputError: a value has the wrong type, is not allowed or is outside its range, or two values exclude each
            other.
    """

    model: str = _what("qacg-bert", "backbone", *BACKBONES)
    from_checkpoint: str | None = _what(
        None,
        "folder or file of a checkpoint to start from, with its tokenizer; or `minilm`, a small English BERT from a"
        " Python package; or `scratch`, random weights. Default: minilm if its package is installed, the text is"
        " English, --max-length is at most 512, and neither a size, tokenizer nor protocol=released is given;"
        " otherwise scratch",
        kind=str,
        metavar="PATH",
    )
    protocol: str = _what(
        "dev",
        "dev: the split dev selects the best weights; released: the split test selects them, and other options have the"
        " defaults of the code released with the QACG-BERT paper",
        *PROTOCOLS,
    )
    tokenizer: str | None = _what(
        None,
        "tokenizer folder or vocab.txt (default: that of the checkpoint, or one learned from the training split)",
        kind=str,
        metavar="PATH",
    )
    cased: bool = _what(False, "the vocab.txt that `tokenizer` names is cased, so texts are not lowercased")
    max_length: int = _what(
        128, "maximum number of tokens of an input, special tokens included; longer inputs are truncated"
    )
    frozen_layers: int = _what(
        0,
        "with a checkpoint, train neither the token embeddings nor this number of first layers, which makes training"
        " faster and the model less accurate; 0: train all weights",
    )
    seed: int = _what(0, "seed of initial weights, order of rows and dropout")

    minutes: float | None = _step(
        None, "time limit of training in minutes, evaluations included; 0: no limit", kind=float
    )
    epochs: int | None = _step(
        None,
        "passes over the training split. Default: 30 with protocol=released. With a checkpoint and up to 24,000 rows:"
        " the smallest number that is at least 4 and has at least 400 steps, unless --max-steps, schedule,"
        " patience or eval_every is given. Otherwise no limit: training ends by --max-steps, patience or"
        " --minutes",
        kind=int,
    )
    max_steps: int | None = _step(None, "maximum number of steps; overrides --epochs", kind=int)
    schedule: str | None = _step(
        None,
        "schedule of the learning rate. steady: constant after the warm-up; the running average of the weights is"
        " evaluated and saved, so that training may end at any step. linear: decays to 0 at the last step",
        *SCHEDULES,
        kind=str,
    )
    batch_size: int | None = _step(None, "rows per batch in each process", kind=int)
    gradient_accumulation: int = _step(1, "number of batches in one step of the optimizer")
    learning_rate: float | None = _step(
        None,
        "maximum learning rate, at the end of the warm-up. With a checkpoint the default depends on the hidden size,"
        " from 2e-4 (384 or less) to 5e-5 (768 or more)",
        kind=float,
    )
    warmup: float | None = _step(
        None,
        "length of the warm-up, in which the learning rate increases, as a share of all steps, in [0, 1]; with the"
        " schedule steady, as a share of 1,000 steps",
        kind=float,
    )
    balance: float | None = _step(
        None,
        "class balance of the sampled rows, in [0, 1]: 0 keeps the shares of the data, 1 samples every class equally"
        " often",
        kind=float,
    )
    logit_adjustment: float | None = _step(
        None,
        "weight, in [0, 1], of the log label frequencies that the loss adds to the logits, so that the model predicts"
        " rare labels more often. If training starts from a checkpoint and macro-F1 selects the weights, the default is"
        " 1, and that of balance is 0, unless balance or protocol=released is given",
        kind=float,
    )
    weight_decay: float = _step(0.01, "decoupled weight decay, on all parameters but biases and LayerNorm")
    max_grad_norm: float = _step(
        1.0,
        "gradient clipping: maximum norm of all gradients together; with protocol=released, of the gradient of each"
        " tensor; 0: no clipping",
    )
    dropout: float | None = _step(
        None,
        "dropout probability of hidden states and attention, in [0, 1); with a checkpoint the default is that of the"
        " checkpoint",
        kind=float,
    )

    word_dropout: float | None = _step(
        None, "share of the tokens of a text that are replaced by the unknown token, in [0, 1)", kind=float
    )
    join_texts: float | None = _step(
        None,
        "share, in [0, 1), of the rows whose text is joined with a second text that has no opinion on the row's aspect."
        " For the model `bert`, and for data without a label for no opinion, 0 is the default and the only value",
        kind=float,
    )

    eval_every: int | None = _watch(
        None,
        "steps between evaluations; 0: once per epoch. Default: 25 with protocol=released. Once per epoch if --epochs"
        " or --max-steps is given, unless schedule=steady. With the default --epochs of a checkpoint: once per"
        " epoch, or only after the last step if dev has fewer than 500 rows. Otherwise half an epoch, clipped to 50 to"
        " 500 steps",
        kind=int,
    )
    patience: int | None = _watch(
        None, "number of evaluations without improvement after which training stops; 0: no early stopping", kind=int
    )
    checkpoint_every: int = _watch(200, "steps between checkpoints, from which --resume continues")
    keep_checkpoints: int = _watch(
        2, "number of newest checkpoints that are kept during training; all are deleted afterwards"
    )
    tensorboard: str | None = _watch(
        None, "folder for TensorBoard logs; requires the extra `tensorboard`", kind=str, metavar="DIR"
    )

    hidden_size: int | None = _shape(None, "hidden size", kind=int)
    layers: int | None = _shape(None, "number of layers", kind=int)
    heads: int | None = _shape(None, "attention heads per layer", kind=int)
    intermediate_size: int | None = _shape(None, "size of the feed-forward layers", kind=int)
    vocab_size: int | None = _shape(None, "maximum size of a vocabulary learned from the training split", kind=int)
    initializer_range: float | None = _shape(None, "standard deviation of the initial weights", kind=float)
    pooler: str | None = _shape(
        None,
        "input of the classifier. cls: the first token; attention: an attention-weighted average of the tokens",
        "cls",
        "attention",
        kind=str,
    )
    context_projection: str | None = _shape(
        None,
        "matrices that project the context. hidden: hidden size x hidden size; head: head size x head size, shared by"
        " the heads",
        "hidden",
        "head",
        kind=str,
    )
    quasi_scale: float | None = _shape(
        None, "weight of quasi-attention (default: that of the checkpoint, or 1); 0: softmax attention only", kind=float
    )
    beta: float | None = _shape(
        None,
        "factor of the query gate in lambda, the weight of the quasi-attention map: lambda = 1 - (beta x query gate +"
        " gamma x key gate), about 1 - (beta + gamma) / 2 before training (default: that of the checkpoint, 0.9 with"
        " context_start=names, or 1)",
        kind=float,
    )
    gamma: float | None = _shape(
        None,
        "factor of the key gate in lambda, see beta (default: that of the checkpoint, 0.9 with context_start=names,"
        " or 1)",
        kind=float,
    )
    context_standalone: bool | None = _shape(
        None,
        "pass the aspect to the model by its context id only, without its name as a second segment (aspect-bert: on by"
        " default)",
        kind=bool,
    )
    context_from_layer: int | None = _shape(
        None,
        "index, from 0, of the first layer that reads the aspect. With context_standalone, the layers below are"
        " computed once for all aspects of a text. For aspect-bert with a checkpoint, the default is the layer of an"
        " aspect-bert checkpoint, or the last layer",
        kind=int,
    )
    context_start: str | None = _shape(
        None,
        "initial weights for aspects in qacg-bert and aspect-bert if the checkpoint has no aspects. names: the vector"
        " of an aspect is the average hidden state of its name. In qacg-bert, the context projections are then copies"
        " of the query and key projections, context scores get the bias -log(number of keys), and beta and gamma are"
        " 0.9. Default: names with a checkpoint, context_standalone and protocol=dev, for qacg-bert only if"
        " context_projection is hidden; otherwise random",
        *STARTS,
        kind=str,
    )

    attention: str = _machine(
        "auto",
        "implementation of attention; auto: the fastest one that the model supports",
        "auto",
        "fused",
        "sdpa",
        "eager",
    )
    bf16: bool | None = _machine(
        None,
        "bfloat16 autocast. Weights and moments stay float32. Default: on with a checkpoint on a CPU with bfloat16"
        " instructions, otherwise off",
        kind=bool,
    )
    threads: int | None = _machine(
        None,
        "number of CPU threads; 0: torch's default. More than 1 is faster for larger models only; 0 is at most the CPU"
        " quota of the container",
        kind=int,
    )
    fsdp: bool = _machine(False, "under torchrun, shard weights, gradients and moments over the processes (FSDP2)")

    def __post_init__(self):
        convert_options(self)
        for option in fields(self):
            value, known = getattr(self, option.name), option.metadata["choices"]
            if known and value is not None and value not in known:
                raise InputError(f"{option.name}: expected one of {', '.join(known)}, got {value!r}.")
        for name, least in _MIN.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}.")
        for name, (most, description) in _MAX.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise InputError(f"{name}: expected at most {description}, got {value}.")
        for name in ("learning_rate", "initializer_range"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name}: expected a positive number, got {value}.")
        for name in ("weight_decay", "max_grad_norm", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: expected a finite number of at least 0, got {value}.")
        for name in ("balance", "warmup", "logit_adjustment"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name}: expected a number from 0 to 1, got {value}.")
        for name in ("dropout", "word_dropout", "join_texts"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name}: expected a number in [0, 1), got {value}.")
        self._check_together()

    def _check_together(self) -> None:
        if self.hidden_size is not None and self.heads is not None and self.hidden_size % self.heads:
            raise InputError(
                f"hidden_size: expected a multiple of {self.heads}, the number of heads, got {self.hidden_size}."
            )
        given = [name for name in SIZES if getattr(self, name) is not None]
        if self.from_checkpoint not in (None, SCRATCH) and given:
            raise InputError(
                f"{given[0]}: expected none with the checkpoint {self.from_checkpoint}, which defines it, got"
                f" {getattr(self, given[0])}. Omit {given[0]}."
            )
        if self.cased and self.tokenizer is None:
            raise InputError("cased: expected a vocab.txt as tokenizer, got none. Omit cased, or set tokenizer.")
        if self.schedule == "steady" and self.protocol == "released":
            raise InputError(
                "schedule: expected 'linear' or none for the protocol 'released', got 'steady'. Omit schedule."
            )
        if self.schedule == "linear" and not self._counted:
            raise InputError(
                "schedule: expected epochs or max_steps with 'linear', got neither. With 'linear', the learning rate"
                " decays to 0 at the last step, so the number of steps is required. Set epochs or max_steps."
            )
        if self.fsdp and (self.schedule == "steady" or not self._counted):
            raise InputError(
                "fsdp: expected epochs or max_steps, and another schedule than 'steady', got"
                f" epochs={self.epochs}, max_steps={self.max_steps}, schedule={self.schedule!r}. The schedule 'steady',"
                " the default without a number of steps, averages the weights, and the average cannot be sharded."
            )
        entry = BACKBONES[self.model]
        for name in ("context_standalone", "context_projection"):
            if not entry.contexts and getattr(self, name):
                raise InputError(
                    f"{name}: expected none for the model {self.model!r}, got {getattr(self, name)}. This model has no"
                    f" contexts; the second segment of its input is the name of the aspect. Omit {name}."
                )
        if not entry.contexts and self.join_texts:
            raise InputError(
                f"join_texts: expected none for the model {self.model!r}, got {self.join_texts}. Texts with the same"
                " context are joined, and this model has no contexts. Omit join_texts."
            )
        for name, value in self.quasi_attention.items():
            if not entry.quasi_attention:
                raise InputError(
                    f"{name}: expected none for the model {self.model!r}, which has no quasi-attention, got {value}."
                    f" Omit {name}."
                )
            if not math.isfinite(value):
                raise InputError(f"{name}: expected a finite number, got {value}.")
        for name, has_field in (
            ("context_projection", entry.context_projection),
            ("context_from_layer", entry.context_from_layer),
        ):
            if not has_field and getattr(self, name):
                raise InputError(
                    f"{name}: expected none for the model {self.model!r}, which has no such field, got"
                    f" {getattr(self, name)}. Omit {name}."
                )

        self._check_start()

    def _check_start(self) -> None:
        if self.frozen_layers and self.from_checkpoint == SCRATCH:
            raise InputError(
                f"frozen_layers: expected 0 for random weights, got {self.frozen_layers}. Name a checkpoint with"
                " --from."
            )
        if self.context_start and not BACKBONES[self.model].starts_from_names:
            models = " or ".join(repr(name) for name, entry in BACKBONES.items() if entry.starts_from_names)
            raise InputError(
                f"context_start: expected none for the model {self.model!r}, got {self.context_start!r}. Omit"
                f" context_start, or set model to {models}."
            )
        if self.context_start != "names":
            return
        if self.from_checkpoint == SCRATCH:
            raise InputError(
                "context_start: expected 'random' because training starts from random weights, got 'names'. Name a"
                " checkpoint with --from."
            )
        if self.context_projection == "head":
            raise InputError(
                "context_start: expected 'random' for the context projection 'head', whose matrix is not of the size"
                " of the query projection, got 'names'. Omit context_start or context_projection."
            )

    @property
    def quasi_attention(self) -> dict[str, float]:
        """The values of quasi_scale, beta and gamma that are not None, by their names in the model configuration."""
        given = {name: getattr(self, name) for name in ("quasi_scale", "beta", "gamma")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def _counted(self) -> bool:
        """Whether epochs, max_steps or the protocol "released" determine the number of steps."""
        return self.epochs is not None or self.max_steps is not None or self.protocol == "released"

    def resolved(self) -> TrainingOptions:
        """Returns the options with the defaults of their recipe.

        Options without a default in the recipe stay None, such as those that a checkpoint or the data determines.
        `from_checkpoint` is None for random weights.
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
            recipe["context_projection"] = None
        if not entry.context_from_layer:
            recipe["context_from_layer"] = None
        if entry.adds_context:
            # A second segment with the aspect would exclude shared layers. The checkpoint determines the last layer.
            recipe |= {"context_standalone": True} | ({"context_from_layer": None} if self.from_checkpoint else {})
        resolved = replace(self, **{name: value for name, value in recipe.items() if getattr(self, name) is None})
        return resolved if resolved.context_start else replace(resolved, context_start=resolved._default_start())

    def _default_start(self) -> str | None:
        entry = BACKBONES[self.model]
        if not entry.starts_from_names:
            return None
        can = self.from_checkpoint is not None and (entry.adds_context or self.context_projection == "hidden")
        return "names" if can and self.context_standalone and self.protocol == "dev" else "random"


_MIN = {
    **dict.fromkeys(("epochs", "max_steps", "batch_size", "gradient_accumulation", "checkpoint_every"), 1),
    **dict.fromkeys(("keep_checkpoints", "hidden_size", "layers", "heads", "intermediate_size"), 1),
    **dict.fromkeys(("vocab_size", "max_length"), 1),
    **dict.fromkeys(("eval_every", "patience", "threads", "seed", "context_from_layer", "frozen_layers"), 0),
}
# By option: the maximum, and its description in messages.
_MAX = {
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
    "batch_size": (1_000_000, "1,000,000 (usual: 16 to 256)"),
    "gradient_accumulation": (1_000_000, "1,000,000 (usual: 1 to 64)"),
    "threads": (1_024, "1,024 (usual: the number of cores)"),
    "seed": (SEED, f"{SEED:,} (the limit of NumPy's generator)"),
}
