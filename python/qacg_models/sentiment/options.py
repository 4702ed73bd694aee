"""Options for reading data and for training, with defaults, limits and help texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES
from qacg_models.sentiment.columns import AUTO, QUOTING, UTF_8, Columns
from qacg_models.utils.fields import MOST, SEED, convert_options, format_value, option_group
from qacg_models.utils.machine import world_size

_data = option_group("data")
_own = option_group("tables of your own (CSV, JSON, JSONL, Excel, Parquet)")


@dataclass(frozen=True)
class DataOptions:
    """Options for reading data. Each field has a help text in its metadata, for `qacg train`.

    Raises:
        InputError: a value is invalid, or contradicts another option.
    """

    format: str = _data(
        "auto", "format of the data; auto: by file names and, for .tsv, by the header", metavar="FORMAT"
    )
    dev_fraction: float = _data(
        0.1,
        "share of the training sentences used as dev if there is no dev file, and no row is marked dev in a column"
        " 'split'",
    )
    dev_seed: int = _data(0, "seed of the division into training and dev sentences")

    text_column: str = _own("text", "column or key of the text", metavar="NAME")
    aspect_column: str = _own("aspect", "column or key of the aspect", metavar="NAME")
    label_column: str = _own("label", "column or key of the label", metavar="NAME")
    id_column: str | None = _own(None, "column of the id; without it, equal texts share one", kind=str, metavar="NAME")
    target_column: str | None = _own(None, "column of the target, if a text has several", kind=str, metavar="NAME")
    delimiter: str = _own(AUTO, "delimiter of a CSV; \\t is a tab; auto: by the header", metavar="CHARACTER")
    quoting: str = _own(
        AUTO,
        "none: quotation marks are ordinary characters; minimal: they may enclose a field; auto: as minimal, but an"
        " error if most such fields join rows",
        *QUOTING,
    )
    encoding: str = _own(UTF_8, "encoding of text files, such as cp1252, latin-1 or utf-16", metavar="NAME")
    wide: bool = _own(
        False, "the table has a column of labels for each aspect: all columns except text, id, target and split"
    )
    aspect_columns: tuple[str, ...] | None = _own(None, "the aspect columns of a wide table; implies wide", kind=list)
    skip_empty: bool = _own(False, "leave out and count rows with an empty cell, which otherwise are an error")
    aspects: tuple[str, ...] | None = _own(None, "the aspects (default: those of the training split)", kind=list)
    labels: tuple[str, ...] | None = _own(None, "the labels (default: those of the training split)", kind=list)
    absent_label: str | None = _own(
        None,
        "label that means no opinion on the aspect (default: none, if a label has that name)",
        kind=str,
        metavar="NAME",
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
            if value is not None:
                object.__setattr__(self, name, _names(name, value))
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
        """Returns a copy of these options with the values in `given`.

        Args:
            given: values by field. `wide=False` also resets `aspect_columns`: a model that was trained on a wide table
                can then be evaluated on a table with a row for each aspect.

        Raises:
            InputError: a value is invalid, or contradicts another option.
        """
        reset = {"aspect_columns": None} if given.get("wide") is False else {}
        return replace(self, **reset | dict(given))

    def columns(self) -> Columns:
        """Returns the options that describe a table: column names, whether it is wide, and how its text is stored."""
        return Columns(
            text=self.text_column,
            aspect=self.aspect_column,
            label=self.label_column,
            id=self.id_column,
            target=self.target_column,
            delimiter=self.delimiter,
            encoding=self.encoding,
            quoting=self.quoting,
            wide=self.is_wide,
            aspect_columns=self.aspect_columns,
        )


def _names(option: str, value: Any) -> tuple[str, ...]:
    """Returns the names in a list or another iterable; raises InputError for other values, such as a single str."""
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InputError(f"{option}: expected a list of str, got {value!r}.")
    return names


PROTOCOLS = ("dev", "released")
SCHEDULES = ("steady", "linear")
# The value of --from for random weights.
SCRATCH = "scratch"
# Options that a checkpoint defines, so they cannot be given together with a checkpoint as --from.
SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size")
# Options of earlier versions, which run.yaml and training.json of their models have.
REMOVED = (
    *("keep_checkpoints", "weight_decay", "max_grad_norm", "fsdp", "initializer_range", "context_projection"),
    *("context_start", "quasi_scale", "beta", "gamma"),
)

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
        128,
        "maximum number of tokens of an input, special tokens included; longer inputs are truncated",
        least=1,
        most=MOST["max_position_embeddings"][0],
    )
    frozen_layers: int = _what(
        0,
        "with a checkpoint, train neither the token embeddings nor this number of first layers, which makes training"
        " faster and the model less accurate; 0: train all weights",
        least=0,
    )
    seed: int = _what(0, "seed of initial weights, order of rows and dropout", least=0, most=SEED)

    minutes: float | None = _step(
        None, "time limit of training in minutes, evaluations included; 0: no limit", kind=float, least=0
    )
    epochs: int | None = _step(
        None,
        "passes over the training split. Default: 30 with protocol=released. With a checkpoint and up to 24,000 rows:"
        " the smallest number that is at least 4 and has at least 400 steps, unless --max-steps, schedule,"
        " patience or eval_every is given. Otherwise no limit: training ends by --max-steps, patience or"
        " --minutes",
        kind=int,
        least=1,
        most=100_000,
    )
    max_steps: int | None = _step(None, "maximum number of steps; overrides --epochs", kind=int, least=1)
    schedule: str | None = _step(
        None,
        "schedule of the learning rate. steady: constant after the warm-up; the running average of the weights is"
        " evaluated and saved, so that training may end at any step. linear: decays to 0 at the last step",
        *SCHEDULES,
        kind=str,
    )
    batch_size: int | None = _step(None, "rows per batch in each process", kind=int, least=1, most=1_000_000)
    gradient_accumulation: int = _step(1, "number of batches in one step of the optimizer", least=1, most=1_000_000)
    learning_rate: float | None = _step(
        None,
        "maximum learning rate, at the end of the warm-up. With a checkpoint the default depends on the hidden size,"
        " from 2e-4 (384 or less) to 5e-5 (768 or more)",
        kind=float,
        least=1e-12,
    )
    warmup: float | None = _step(
        None,
        "length of the warm-up, in which the learning rate increases, as a share of all steps, in [0, 1]; with the"
        " schedule steady, as a share of 1,000 steps",
        kind=float,
        least=0,
        most=1,
    )
    balance: float | None = _step(
        None,
        "class balance of the sampled rows, in [0, 1]: 0 keeps the shares of the data, 1 samples every class equally"
        " often",
        kind=float,
        least=0,
        most=1,
    )
    logit_adjustment: float | None = _step(
        None,
        "weight, in [0, 1], of the log label frequencies that the loss adds to the logits, so that the model predicts"
        " rare labels more often. If training starts from a checkpoint and macro-F1 selects the weights, the default is"
        " 1, and that of balance is 0, unless balance or protocol=released is given",
        kind=float,
        least=0,
        most=1,
    )
    dropout: float | None = _step(
        None,
        "dropout probability of hidden states and attention, in [0, 1); with a checkpoint the default is that of the"
        " checkpoint",
        kind=float,
        least=0,
        below=1,
    )

    word_dropout: float | None = _step(
        None,
        "share of the tokens of a text that are replaced by the unknown token, in [0, 1)",
        kind=float,
        least=0,
        below=1,
    )
    join_texts: float | None = _step(
        None,
        "share, in [0, 1), of the rows whose text is joined with a second text that has no opinion on the row's aspect."
        " For the model `bert`, and for data without a label for no opinion, 0 is the default and the only value",
        kind=float,
        least=0,
        below=1,
    )

    eval_every: int | None = _watch(
        None,
        "steps between evaluations; 0: once per epoch. Default: 25 with protocol=released. Once per epoch if --epochs"
        " or --max-steps is given, unless schedule=steady. With the default --epochs of a checkpoint: once per"
        " epoch, or only after the last step if dev has fewer than 500 rows. Otherwise half an epoch, clipped to 50 to"
        " 500 steps",
        kind=int,
        least=0,
    )
    patience: int | None = _watch(
        None,
        "number of evaluations without improvement after which training stops; 0: no early stopping",
        kind=int,
        least=0,
    )
    checkpoint_every: int = _watch(200, "steps between checkpoints, from which --resume continues", least=1)
    tensorboard: str | None = _watch(
        None, "folder for TensorBoard logs; requires the extra `tensorboard`", kind=str, metavar="DIR"
    )

    hidden_size: int | None = _shape(None, "hidden size", kind=int, least=1, most=MOST["hidden_size"][0])
    layers: int | None = _shape(None, "number of layers", kind=int, least=1, most=MOST["num_hidden_layers"][0])
    heads: int | None = _shape(
        None, "attention heads per layer", kind=int, least=1, most=MOST["num_attention_heads"][0]
    )
    intermediate_size: int | None = _shape(
        None, "size of the feed-forward layers", kind=int, least=1, most=MOST["intermediate_size"][0]
    )
    vocab_size: int | None = _shape(
        None,
        "maximum size of a vocabulary learned from the training split",
        kind=int,
        least=1,
        most=MOST["vocab_size"][0],
    )
    pooler: str | None = _shape(
        None,
        "input of the classifier. cls: the first token; attention: an attention-weighted average of the tokens",
        "cls",
        "attention",
        kind=str,
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
        least=0,
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

        Raises:
            InputError: the schedule is "linear", and nothing determines the number of steps.
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
        entry = BACKBONES[self.model]
        if not entry.contexts:
            values |= {"context_standalone": False, "join_texts": 0.0}
        if not entry.context_from_layer:
            del values["context_from_layer"]
        if entry.adds_context:
            # A second segment with the aspect would exclude shared layers. The checkpoint determines the last layer.
            values |= {"context_standalone": True} | ({"context_from_layer": None} if self.from_checkpoint else {})
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def steps_per_epoch(self, rows: int) -> int:
        """Returns the number of optimizer steps in which all processes together read `rows` rows once.

        `batch_size` must not be None.
        """
        batches = math.ceil(rows / ((self.batch_size or 1) * world_size()))
        return math.ceil(batches / self.gradient_accumulation)

    def step_limit(self, rows: int) -> int | None:
        """Returns the maximum number of optimizer steps: `max_steps`, otherwise the steps of `epochs`.

        Args:
            rows: number of rows of the training split; `batch_size` must not be None.

        Returns:
            The number; None if both options are None, because then the number of steps has no limit.
        """
        if self.max_steps is not None:
            return self.max_steps
        return None if self.epochs is None else self.steps_per_epoch(rows) * self.epochs


# The defaults of options that are not given. Later recipes override earlier ones, in this order.
RECIPES = {
    # Tuned on the bundled sample, for models of two layers: a high rate. From scratch, the metric on dev is constant
    # for some hundred steps before it improves, so the patience is large.
    "scratch": TrainingOptions(
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
        context_from_layer=0,
        threads=1,
    ),
    "pretrained": TrainingOptions(
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
        context_standalone=False,
        context_from_layer=0,
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
        context_standalone=False,
    ),
}


def describe_default(name: str) -> str | None:
    """Returns the defaults of an option in all recipes, for its help text; None if "scratch" has no default for it."""
    scratch, pretrained, counted, released = (getattr(recipe, name) for recipe in RECIPES.values())
    if scratch is None:
        return None
    same = pretrained == scratch or (pretrained is None and released is None)
    parts = [format_value(scratch) if same else f"{format_value(scratch)} from scratch"]
    parts += [f"{format_value(pretrained)} with a checkpoint"] if pretrained not in (scratch, None) else []
    # With a checkpoint, --epochs often has a default (`resolve_options`). It has the same effect on other defaults as a
    # given --epochs, except on --minutes.
    epochs = "--epochs" if name == "minutes" else "--epochs (given or by default)"
    steps = f"{epochs}, --max-steps or protocol=released" if released is None else f"{epochs} or --max-steps"
    for value, condition in ((counted, steps), (released, "protocol=released")):
        if value is not None and {scratch, pretrained} - {None} != {value}:
            parts.append(f"{format_value(value)} with {condition}")
    return ", ".join(parts)
