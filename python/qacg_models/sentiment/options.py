"""Options for reading data and for training, with defaults, limits and help texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES, ModelEntry
from qacg_models.sentiment.columns import AUTO, QUOTING, UTF_8, Columns
from qacg_models.utils.fields import SEED, convert_options, format_value, option
from qacg_models.utils.machine import world_size


@dataclass(frozen=True)
class DataOptions:
    """Options for reading data. Each field has a help text in its metadata, for `qacg train`."""

    format: str = option(
        "auto", "format of the data; auto: by file names and, for .tsv, by the header", metavar="FORMAT"
    )
    dev_fraction: float = option(
        0.1, "share of the training sentences used as dev, if neither a file nor a column 'split' marks rows for dev"
    )
    dev_seed: int = option(0, "seed of the division into training and dev sentences")

    text_column: str = option("text", "column or key of the text", metavar="NAME")
    aspect_column: str = option("aspect", "column or key of the aspect", metavar="NAME")
    label_column: str = option("label", "column or key of the label", metavar="NAME")
    id_column: str | None = option(None, "column of the id; without it, equal texts share one", metavar="NAME")
    target_column: str | None = option(None, "column of the target, if a text has several", metavar="NAME")
    delimiter: str = option(AUTO, "delimiter of a CSV; \\t is a tab; auto: by the header", metavar="CHARACTER")
    quoting: str = option(
        AUTO,
        "none: quotation marks are ordinary characters; minimal: they may enclose a field; auto: as minimal, but an"
        " error if most such fields join rows",
        *QUOTING,
    )
    encoding: str = option(UTF_8, "encoding of text files, such as cp1252, latin-1 or utf-16", metavar="NAME")
    wide: bool = option(False, "the table has a column of labels for each aspect: all but text, id, target and split")
    aspect_columns: tuple[str, ...] | None = option(None, "the aspect columns of a wide table; implies wide")
    skip_empty: bool = option(False, "leave out and count rows with an empty cell, which otherwise are an error")
    aspects: tuple[str, ...] | None = option(None, "the aspects (default: those of the training split)")
    labels: tuple[str, ...] | None = option(None, "the labels (default: those of the training split)")
    absent_label: str | None = option(
        None, "label that means no opinion on the aspect (default: none, if a label has that name)", metavar="NAME"
    )

    def __post_init__(self):
        from qacg_models.sentiment.formats import NAMES

        convert_options(self)
        if self.format not in ("auto", *NAMES):
            raise InputError(f"format: expected auto or one of {', '.join(NAMES)}, got {self.format!r}")
        if not 0 < self.dev_fraction < 1:
            raise InputError(f"dev_fraction: expected a number above 0 and below 1, got {self.dev_fraction}")
        for name in ("aspects", "labels", "aspect_columns"):
            value = getattr(self, name)
            if value is None:
                continue
            names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
            if names is None or not all(isinstance(one, str) for one in names):
                raise InputError(f"{name}: expected a list of str, got {value!r}.")
            object.__setattr__(self, name, names)
        if self.aspect_columns is not None and not self.aspect_columns:
            raise InputError("aspect_columns: expected at least one column, got none")
        for name in ("aspect_column", "label_column"):
            value = getattr(self, name)
            if self.is_wide and value != f"{name.removesuffix('_column')}":
                raise InputError(
                    f"{name}: expected none for a wide table, which has a column for each aspect, got {value!r}; omit"
                    f" {name}. For a table with a row for each aspect, set wide=false instead, and omit aspect_columns"
                )
        object.__setattr__(self, "encoding", self.columns().encoding)

    @property
    def is_wide(self) -> bool:
        """Whether the table has a column for each aspect."""
        return self.wide or self.aspect_columns is not None

    def overridden(self, given: Mapping[str, Any]) -> DataOptions:
        """Returns a copy with the values in `given`.

        `wide=False` also resets `aspect_columns`: a model that was trained on a wide table can then be evaluated on a
        table with a row for each aspect.
        """
        reset = {"aspect_columns": None} if given.get("wide") is False else {}
        return replace(self, **reset | dict(given))

    def columns(self) -> Columns:
        """Returns the options that describe a table."""
        named = {name: getattr(self, f"{name}_column") for name in ("text", "aspect", "label", "id", "target")}
        return Columns(
            **named,
            delimiter=self.delimiter,
            encoding=self.encoding,
            quoting=self.quoting,
            wide=self.is_wide,
            aspect_columns=self.aspect_columns,
        )


# Bounds of numbers.
SHARE: dict[str, Any] = {"least": 0, "most": 1}
BELOW_ONE: dict[str, Any] = {"least": 0, "below": 1}
# The value of --from for random weights.
SCRATCH = "scratch"
# Options that a checkpoint defines, so they cannot be given together with a checkpoint as --from.
SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training. Each field has a help text in its metadata, for `qacg train`."""

    model: str | None = option(
        None,
        "backbone. With a checkpoint of one of these models, the defaults of model, pooler, context_standalone and"
        " context_from_layer are those of the checkpoint",
        *BACKBONES,
    )
    from_checkpoint: str | None = option(
        None,
        "folder or file of a checkpoint to start from, with its tokenizer; or `minilm`, a small English BERT from a"
        " Python package; or `scratch`, random weights. Default: minilm if its package is installed, the text is"
        " English, --max-length is at most 512, and neither a size, tokenizer nor protocol=released is given;"
        " otherwise scratch",
        metavar="PATH",
    )
    protocol: str = option(
        "dev",
        "dev: the split dev selects the best weights; released: the split test selects them, and other options have"
        " the defaults of the code released with the QACG-BERT paper",
        *("dev", "released"),
    )
    tokenizer: str | None = option(
        None,
        "tokenizer folder or vocab.txt (default: that of the checkpoint, or one learned from the training split)",
        metavar="PATH",
    )
    cased: bool = option(False, "the vocab.txt that `tokenizer` names is cased, so texts are not lowercased")
    max_length: int = option(128, "maximum tokens of an input; longer inputs are truncated", least=1, most=1_048_576)
    frozen_layers: int = option(
        0,
        "with a checkpoint, train neither the token embeddings nor this number of first layers, which makes training"
        " faster and the model less accurate; 0: train all weights",
        least=0,
    )
    seed: int = option(0, "seed of initial weights, order of rows and dropout", least=0, most=SEED)

    minutes: float | None = option(
        None, "time limit of training in minutes, evaluations included; 0: no limit", least=0
    )
    epochs: int | None = option(
        None,
        "passes over the training split. Default: 30 with protocol=released. With a checkpoint and up to 24,000 rows:"
        " the smallest number that is at least 4 and has at least 400 steps, unless --max-steps, schedule, patience or"
        " eval_every is given. Otherwise no limit: training ends by --max-steps, patience or --minutes",
        least=1,
        most=100_000,
    )
    max_steps: int | None = option(None, "maximum number of steps; overrides --epochs", least=1)
    schedule: str | None = option(
        None,
        "schedule of the learning rate. steady: constant after the warm-up; the running average of the weights is"
        " evaluated and saved, so that training may end at any step. linear: decays to 0 at the last step",
        *("steady", "linear"),
    )
    batch_size: int | None = option(None, "rows per batch in each process", least=1, most=1_000_000)
    gradient_accumulation: int = option(1, "number of batches in one step of the optimizer", least=1, most=1_000_000)
    learning_rate: float | None = option(
        None,
        "maximum learning rate, at the end of the warm-up. With a checkpoint the default depends on the hidden size,"
        " from 2e-4 (384 or less) to 5e-5 (768 or more)",
        least=1e-12,
    )
    warmup: float | None = option(
        None,
        "length of the warm-up, in which the learning rate increases, as a share of all steps; with the schedule"
        " steady, as a share of 1,000 steps",
        **SHARE,
    )
    balance: float | None = option(
        None,
        "class balance of the sampled rows: 0 keeps the shares of the data, 1 samples every class equally often",
        **SHARE,
    )
    logit_adjustment: float | None = option(
        None,
        "weight of the log label frequencies that the loss adds to the logits, so that the model predicts rare labels"
        " more often. If training starts from a checkpoint and macro-F1 selects the weights, the default is 1, and"
        " that of balance is 0, unless balance or protocol=released is given",
        **SHARE,
    )
    dropout: float | None = option(
        None,
        "dropout probability of hidden states and attention; with a checkpoint the default is that of the checkpoint",
        **BELOW_ONE,
    )
    word_dropout: float | None = option(
        None, "share of the tokens of a text that are replaced by the unknown token", **BELOW_ONE
    )
    join_texts: float | None = option(
        None,
        "share of the rows whose text is joined with a second text that has no opinion on the row's aspect. For the"
        " model `bert`, and for data without a label for no opinion, 0 is the default and the only value",
        **BELOW_ONE,
    )

    eval_every: int | None = option(
        None,
        "steps between evaluations; 0: once per epoch. Default: 25 with protocol=released. Once per epoch if --epochs"
        " or --max-steps is given, unless schedule=steady. With the default --epochs of a checkpoint: once per epoch,"
        " or only after the last step if dev has fewer than 500 rows. Otherwise half an epoch, clipped to 50 to 500"
        " steps",
        least=0,
    )
    patience: int | None = option(
        None, "number of evaluations without improvement after which training stops; 0: no early stopping", least=0
    )
    checkpoint_every: int = option(200, "steps between checkpoints, from which --resume continues", least=1)
    tensorboard: str | None = option(
        None, "folder for TensorBoard logs; requires the extra `tensorboard`", metavar="DIR"
    )

    hidden_size: int | None = option(None, "hidden size", least=1, most=65_536)
    layers: int | None = option(None, "number of layers", least=1, most=1_000)
    heads: int | None = option(None, "attention heads per layer", least=1, most=1_024)
    intermediate_size: int | None = option(None, "size of the feed-forward layers", least=1, most=1_048_576)
    vocab_size: int | None = option(
        None, "maximum size of a vocabulary learned from the training split", least=1, most=10_000_000
    )
    pooler: str | None = option(
        None,
        "input of the classifier. cls: the first token; attention: an attention-weighted average of the tokens",
        "cls",
        "attention",
    )
    context_standalone: bool | None = option(
        None,
        "pass the aspect by its context id only, without its name as a second segment. The default is false for cg-bert"
        " with a checkpoint, and for qacg-bert and cg-bert with protocol=released",
    )
    context_from_layer: int | None = option(
        None,
        "index, from 0, of the first layer that reads the aspect. With context_standalone, the layers below are"
        " computed once for all aspects of a text. Default: the last layer; for qacg-bert and cg-bert from scratch, or"
        " without context_standalone, 0",
        least=0,
    )

    attention: str = option(
        "auto",
        "implementation of attention; auto: the fastest one that the model supports",
        *("auto", "fused", "sdpa", "eager"),
    )
    precision: str = option(
        "auto",
        "precision of matrix products; auto: bfloat16 with a checkpoint on a CPU with bfloat16 instructions, otherwise"
        " float32. Weights and moments stay float32",
        *("auto", "float32", "bfloat16"),
    )
    cuda_graphs: bool = option(
        False,
        "on a GPU, run training steps as CUDA graphs, which takes the launch overhead from the host. Batches are padded"
        " to lengths that are multiples of 16; lengths that are rare run without a graph. Not yet run on a GPU",
    )
    threads: int | None = option(
        None,
        "number of CPU threads; 0: torch's default, or the CPU quota of the container if that is lower. More than 1 is"
        " faster for larger models only",
        least=0,
        most=1_024,
    )

    def __post_init__(self):
        convert_options(self)
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
        if self.frozen_layers and self.from_checkpoint == SCRATCH:
            raise InputError(
                f"frozen_layers: expected 0 for random weights, got {self.frozen_layers}. Name a checkpoint with"
                " --from."
            )
        if self.model is None:
            return
        entry = BACKBONES[self.model]
        lacking = [] if entry.contexts else ["context_standalone", "join_texts"]
        for name in [*lacking, *([] if entry.context_from_layer else ["context_from_layer"])]:
            if getattr(self, name):
                raise InputError(
                    f"{name}: expected none for the model {self.model!r}, which cannot use it, got"
                    f" {getattr(self, name)}. Omit {name}."
                )

    def resolved(self) -> TrainingOptions:
        """Returns the options with the defaults of their recipes.

        Options without a default in the recipes stay None, such as those that a checkpoint or the data determines.
        `from_checkpoint` is None for random weights.
        """
        if self.from_checkpoint == SCRATCH:
            return replace(self, from_checkpoint=None).resolved()
        released = self.protocol == "released"
        counted = self.epochs is not None or self.max_steps is not None or released
        if self.schedule == "linear" and not counted:
            raise InputError(
                "schedule: expected epochs or max_steps with 'linear', got neither. With 'linear', the learning rate"
                " decays to 0 at the last step, so the number of steps is required. Set epochs or max_steps."
            )
        names = ["scratch" if self.from_checkpoint is None else "pretrained"]
        names += ["counted"] if counted and self.schedule != "steady" else []
        names += ["released"] if released else []
        values: dict[str, Any] = {}
        for recipe in (RECIPES[name] for name in names):
            values |= {name: value for name, value in vars(recipe).items() if value is not None}
        entry = BACKBONES[self.model or values["model"]]
        if not entry.contexts:
            values |= {"context_standalone": False, "join_texts": 0.0}
        # Shared layers require aspects that start from their names. Other models are as published: sentence pairs.
        pairs = released or not entry.quasi_attention or self.context_standalone is False
        if entry.context_projection and (pairs or self.from_checkpoint is None):
            values |= {"context_standalone": self.from_checkpoint is None and not released, "context_from_layer": 0}
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    @property
    def entry(self) -> ModelEntry:
        """The entry of the model in the table of models; raises KeyError if no model is given or resolved."""
        return BACKBONES[self.model or ""]

    @property
    def selection_split(self) -> str:
        """The split that selects the checkpoint."""
        return "test" if self.protocol == "released" else "dev"

    def steps_per_epoch(self, rows: int) -> int:
        """Returns the number of optimizer steps in which all processes together read `rows` rows once."""
        batches = math.ceil(rows / ((self.batch_size or 1) * world_size()))
        return math.ceil(batches / self.gradient_accumulation)

    def step_limit(self, rows: int) -> int | None:
        """Returns the maximum number of steps with `rows` training rows; None without a limit."""
        if self.max_steps is not None:
            return self.max_steps
        return None if self.epochs is None else self.steps_per_epoch(rows) * self.epochs


# The defaults of options that are not given. Later recipes override earlier ones, in this order.
RECIPES = {
    # Tuned on the bundled sample, for models of two layers. The metric on dev is constant for some hundred steps before
    # it improves, so the patience is large.
    "scratch": TrainingOptions(
        model="qacg-bert",
        schedule="steady",
        minutes=60.0,
        patience=20,
        batch_size=64,
        learning_rate=2e-3,
        warmup=0.1,
        balance=0.3,
        logit_adjustment=0.0,
        dropout=0.2,
        word_dropout=0.1,
        join_texts=0.5,
        hidden_size=64,
        layers=2,
        heads=4,
        intermediate_size=256,
        vocab_size=4000,
        pooler="attention",
        context_standalone=True,
        threads=1,
    ),
    "pretrained": TrainingOptions(
        model="qacg-bert",
        schedule="steady",
        minutes=60.0,
        patience=6,
        batch_size=32,
        warmup=0.05,
        word_dropout=0.0,
        join_texts=0.0,
        balance=0.3,
        logit_adjustment=0.0,
        pooler="cls",
        context_standalone=True,
        threads=0,
    ),
    # With a given number of steps, training does not stop early.
    "counted": TrainingOptions(
        schedule="linear",
        minutes=0.0,
        patience=0,
        eval_every=0,
        warmup=0.1,
        word_dropout=0.0,
        join_texts=0.0,
    ),
    # Values of the code that the authors of QACG-BERT released. Its weight decay, gradient clipping and maximum length
    # are those of all trainings.
    "released": TrainingOptions(
        epochs=30,
        batch_size=64,
        warmup=0.1,
        learning_rate=2e-5,
        balance=1.0,
        eval_every=25,
        pooler="cls",
    ),
}


def describe_default(name: str) -> str | None:
    """Returns the defaults of an option in all recipes, for its help text; None if "scratch" has none."""
    scratch, pretrained, counted, released = (getattr(recipe, name) for recipe in RECIPES.values())
    if scratch is None:
        return None
    same = pretrained == scratch or (pretrained is None and released is None)
    parts = [format_value(scratch) if same else f"{format_value(scratch)} from scratch"]
    parts += [f"{format_value(pretrained)} with a checkpoint"] if pretrained not in (scratch, None) else []
    # The default of --epochs has the same effect on other defaults as a given one, except on --minutes.
    epochs = "--epochs" if name == "minutes" else "--epochs (given or by default)"
    steps = f"{epochs}, --max-steps or protocol=released" if released is None else f"{epochs} or --max-steps"
    for value, condition in ((counted, steps), (released, "protocol=released")):
        if value is not None and {scratch, pretrained} - {None} != {value}:
            parts.append(f"{format_value(value)} with {condition}")
    return ", ".join(parts)
