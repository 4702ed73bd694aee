"""Assigns the tensors of a checkpoint to a model: names in other programs, conversion of shapes, and the report.

Every tensor that does not fit raises CheckpointError, unless `Permissions` allow it.

The names in this package are those of a model with a head, such as `classifier.bias`. The attention layers are named
as in the released code: `bert.encoder.layer.0.attention.self.query.weight`. A `Layout` describes the names in a
checkpoint. In each layout, all names may have the prefix `module.`, from training on several GPUs.

| layout | tensor of the encoder | tensor of the head |
|---|---|---|
| Hugging Face | `bert.embeddings.LayerNorm.weight`; without `bert.` in a file of the base model | `classifier.bias` |
| TensorFlow-converted | `embeddings.LayerNorm.gamma` | |
| released state dict | `bert.embeddings.LayerNorm.gamma` | `classifier.bias` |
| this package, BertSum | `bert.embeddings.LayerNorm.weight` | `encoder.wo.weight` |
| BertSum (Liu, 2019) | `bert.model.embeddings.LayerNorm.weight` | `encoder.wo.weight` |
| its successor PreSumm | `bert.model.embeddings.LayerNorm.weight` | `ext_layer.wo.weight` |
| an encoder only | `embeddings.LayerNorm.weight`, with any prefix | none |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES, NAMINGS
from qacg_models.errors import CheckpointError

BASE = "bert."
CONTEXTS = "bert.context_embeddings.weight"
WORDS = "bert.embeddings.word_embeddings.weight"
# Pairs (published name, name in this package) of a head module.
BERTSUM_ALIASES = (("ext_layer.", "encoder."),)
_ATTENTION = "attention.self."
_DATA_PARALLEL = "module."
_ANCHOR = re.compile(
    r"^(?P<prefix>.*?)(?:embeddings\.(?:word|position|token_type)_embeddings\.|encoder\.layer\.\d+\.attention\.)"
)
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
# Buffers of old checkpoints, which are computed from the sizes.
_BUFFERS = (f"{BASE}embeddings.position_ids", f"{BASE}embeddings.token_type_ids")
_ROLES = {name: role for role, name in NAMINGS["released"].items()}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Layout:
    """The tensor names in a checkpoint. In this package, those of an encoder have the prefix `base`, others none."""

    encoder: str = BASE  # prefix of the encoder in the checkpoint, such as `module.bert.`, or nothing
    outer: str = ""  # prefix of the other tensors in the checkpoint, such as `module.`
    base: str = BASE
    modules: Collection[str] = ("embeddings", "encoder", "pooler", "context_embeddings")  # of the encoder
    aliases: Collection[tuple[str, str]] = ()  # pairs (published name, name here) of head modules, with a dot
    attention: str = "released"  # the naming of the attention layers, a key of NAMINGS

    @classmethod
    def of_bert(cls, names: Iterable[str]) -> Layout:
        """Returns the layout of a checkpoint with these names; raises CheckpointError unless they are of one BERT."""
        names = list(names)
        prefixes = sorted({match["prefix"] for name in names if (match := _ANCHOR.match(name))})
        if not prefixes:
            first = ", ".join(sorted(names)[:3]) or "none"
            raise CheckpointError(
                f"expected a BERT with tensors of embeddings or encoder.layer.0.attention, got {len(names)} other "
                f"tensors (the first ones: {first})"
            )
        if len(prefixes) > 1:
            found = f"{len(prefixes)}, with the prefixes {', '.join(map(repr, prefixes))}"
            raise CheckpointError(f"expected one encoder, got {found}. Save the tensors of one encoder.")
        compact = f"{_ATTENTION}{NAMINGS['compact']['query']}."
        attention = "compact" if any(compact in name for name in names) else "released"
        return cls(encoder=prefixes[0], outer=prefixes[0].removesuffix(BASE), attention=attention)

    @classmethod
    def of_head(
        cls, names: Iterable[str], encoder_names: Collection[str], base: str, aliases: Collection[tuple[str, str]]
    ) -> Layout:
        """Returns the layout of a checkpoint of a head over any encoder, whose tensors are called `encoder_names`."""
        prefixes: Counter[str] = Counter()
        for name in names:
            parts = _without_gamma_beta(name).split(".")
            for i in range(len(parts)):
                if ".".join(parts[i:]) in encoder_names:
                    prefixes["".join(f"{part}." for part in parts[:i])] += 1
        encoder = prefixes.most_common(1)[0][0] if prefixes else base
        outer = _DATA_PARALLEL if encoder.startswith(_DATA_PARALLEL) else ""
        return cls(encoder, outer, base, {name.split(".")[0] for name in encoder_names}, aliases)

    def to_ours(self, name: str) -> str | None:
        """Returns the name in this package for a name in the checkpoint; None for a buffer that no model has."""
        name = _without_gamma_beta(name)
        inner = name.removeprefix(self.encoder)
        if name.startswith(self.encoder) and inner.split(".")[0] in self.modules:
            name = self.base + inner
        else:
            name = name.removeprefix(self.outer)
            for theirs, ours in self.aliases:
                if name.startswith(theirs):
                    return ours + name.removeprefix(theirs)
        return None if name in _BUFFERS else _released_attention(name)

    def __str__(self) -> str:
        encoder = f"encoder under {self.encoder!r}" if self.encoder else "encoder without prefix"
        return f"{encoder}, attention Wq/Wk/Wv" if self.attention == "compact" else encoder


def part_of(name: str) -> str:
    """Returns the part of a BERT: "backbone", "pooler", "pooler gate", "context" or "head"."""
    if not name.startswith(BASE):
        return "head"
    inner = name.removeprefix(BASE)
    if inner.startswith("pooler."):
        return "pooler gate" if inner.startswith("pooler.attention_gate.") else "pooler"
    if inner.startswith(("context_embeddings.", "encoder.context_layer.")):
        return "context"
    return "context" if role_of(name) in (*CONTEXT_ROLES, *GATE_ROLES) else "backbone"


def role_of(name: str) -> str | None:
    """Returns the role, a key of NAMINGS["released"], for a self-attention name in this package; otherwise None."""
    _, found, after = name.partition(f".{_ATTENTION}")
    return _ROLES.get(after.partition(".")[0]) if found else None


def _without_gamma_beta(name: str) -> str:
    """Returns a name with gamma and beta of a LayerNorm renamed to weight and bias."""
    module, _, kind = name.rpartition(".")
    return f"{module}.{_LAYER_NORM.get(kind, kind)}" if module.endswith("LayerNorm") else name


def _released_attention(name: str) -> str:
    """Returns a name with an attention layer of the compact naming renamed as in the released code."""
    before, found, after = name.partition(_ATTENTION)
    layer, _, kind = after.partition(".")
    for role, compact in NAMINGS["compact"].items():
        if found and layer == compact:
            return f"{before}{_ATTENTION}{NAMINGS['released'][role]}.{kind}"
    return name


@dataclass
class Report:
    """The report about one checkpoint. Tensors have their names in this package unless stated otherwise."""

    source: str  # the file or index
    layout: str  # description of the tensor names in the source
    model: str  # name of the model's class
    loaded: list[str] = field(default_factory=list)  # tensors with values from the source
    missing: list[str] = field(default_factory=list)  # tensors of the model without values from the source
    unexpected: list[str] = field(default_factory=list)  # names in the source of tensors that the model does not have
    unused: list[str] = field(default_factory=list)  # names in the source of tensors that the model does not require
    notes: list[str] = field(default_factory=list)  # other decisions, one sentence each

    @property
    def clean(self) -> bool:
        """Whether every tensor of the model was loaded, and the source has no unexpected tensor."""
        return not (self.missing or self.unexpected)

    def __str__(self) -> str:
        lines = [
            f"{self.source} ({self.layout}) for {self.model}",
            f"loaded      {len(self.loaded)} of {len(self.loaded) + len(self.missing)} tensors",
        ]
        for title in ("missing", "unexpected", "unused"):
            if names := getattr(self, title):
                lines += [f"{title:<12}{len(names)}", *(f"    {name}" for name in _collapsed(names))]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _collapsed(names: Iterable[str]) -> list[str]:
    """Returns the names; those that differ only in their first number are merged, as `layer.{0-11}.weight`."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBER.search(name)
        pattern = name[: match.start()] + "{}" + name[match.end() :] if match else name
        numbers.setdefault(pattern, []).extend([int(match[0])] if match else [])
    return [pattern.replace("{}", _range(sorted(found))) if found else pattern for pattern, found in numbers.items()]


def _range(numbers: list[int]) -> str:
    """Formats sorted numbers as `3`, `{0-11}` or `{0,2,5}`."""
    if len(numbers) == 1:
        return str(numbers[0])
    first, last = numbers[0], numbers[-1]
    whole = len(numbers) == last - first + 1
    return "{" + (f"{first}-{last}" if whole else ",".join(map(str, numbers))) + "}"


def some(names: list[str]) -> str:
    """Returns the first three names, and the number of the others, as text."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Source:
    """The content of a checkpoint."""

    path: Path  # the file of weights, or the index of its shards
    layout: Layout
    tensors: dict[str, Tensor]  # by their names in this package
    names: dict[str, str]  # for each name in this package the name in the checkpoint, for messages
    unused: list[str]  # names in the checkpoint of buffers, which no model has
    fields: dict[str, object] | None = None  # content of the configuration file, if there is one
    fields_path: Path | None = None

    def called(self, name: str) -> str:
        """Returns the name of a tensor in the file, for messages."""
        return self.names.get(name, name)


def named(
    weights: Path,
    found: Mapping[str, Tensor],
    layout: Layout,
    fields: dict[str, object] | None = None,
    fields_path: Path | None = None,
) -> Source:
    """Returns a source with the tensors `found` by their names in this package, of which no two may be equal."""
    source = Source(weights, layout, {}, {}, [], fields, fields_path)
    for name, tensor in found.items():
        ours = layout.to_ours(name)
        if ours is None:
            source.unused.append(name)
        elif ours in source.tensors:
            raise CheckpointError(f"{weights}: expected one tensor for {ours}, got {source.names[ours]} and {name}")
        else:
            source.tensors[ours], source.names[ours] = tensor, name
    return source


@dataclass(frozen=True)
class Permissions:
    """What loading may do to a checkpoint that does not fit; nothing by default."""

    # Initialise at random the missing tensors of the encoder, and of parts that the checkpoint contains incompletely.
    # Parts that it does not contain at all need no permission.
    initialize_missing: bool = False
    ignore_mismatched_sizes: bool = False  # initialise the head at random if the checkpoint's head has another size
    drop_unplaced: bool = False  # drop tensors that the format of a conversion cannot store, such as contexts


NOTHING = Permissions()


def asking_for(permission: str) -> str:
    """Returns a permission with its flag: `drop_unplaced (qacg convert --allow drop-unplaced)`."""
    return f"{permission} (qacg convert --allow {permission.replace('_', '-')})"


def fit(
    source: Source,
    expected: Mapping[str, torch.Size],
    *,
    model: str,
    permissions: Permissions,
    part: Callable[[str], str] = part_of,
    required: str = "backbone",
    not_needed: str | None = None,
    buffers: Collection[str] = (),
) -> tuple[dict[str, Tensor], Report]:
    """Returns the tensors of a checkpoint that a model loads, and the report about every tensor.

    Args:
        expected: shapes of the tensors of the model by their names in this package.
        part: returns the part of the model for the name of a tensor. One of the parts is "head".
        required: the part that the checkpoint must contain; of other parts, all tensors or none.
        not_needed: regular expression for the names of tensors that the model does not use.
        buffers: names of tensors that the model computes, which the checkpoint may lack.
    """
    report = Report(str(source.path), str(source.layout), model, unused=list(source.unused))
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        tensor, place = source.tensors.get(name), f"{source.path}: {source.called(name)}"
        in_head = part(name) == "head"
        if tensor is None or (tensor.shape != shape and in_head and permissions.ignore_mismatched_sizes):
            report.missing.append(name)
            continue
        if not tensor.is_floating_point() and name not in buffers:
            raise CheckpointError(f"{place}: expected a floating-point dtype, got {tensor.dtype}")
        if tensor.shape != shape:
            hint = f". Set {asking_for('ignore_mismatched_sizes')} to initialise it at random." if in_head else ""
            if name == CONTEXTS and tensor.shape[1:] == shape[1:]:
                hint = f". The checkpoint was trained with {tensor.shape[0]} contexts. Set contexts to their names."
            raise CheckpointError(f"{place}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{place}: expected finite values, got NaN or infinity")
        state[name] = tensor
        report.loaded.append(name)
    wrong = []
    # Without a part of the contexts, a model would compute other values.
    complete = {required, "context"} & {part(name) for name in expected}
    for name in [name for name in source.tensors if name not in expected]:
        unused = part(name) == "pooler gate" or (not_needed is not None and re.search(not_needed, name))
        (report.unused if unused else report.unexpected).append(source.called(name))
        if not unused and part(name) in complete:
            wrong.append(source.called(name))
    if wrong:
        raise CheckpointError(
            f"{source.path}: expected only encoder tensors that the model has, got {some(wrong)}. Use the model class "
            "and the fields of the checkpoint."
        )
    if not permissions.initialize_missing:
        missing = [name for name in report.missing if name not in buffers]
        _check_missing(report, missing, permissions, part, required)
    return state, report


def _check_missing(
    report: Report, missing: list[str], permissions: Permissions, part: Callable[[str], str], required: str
) -> None:
    """Raises CheckpointError for missing tensors of the required part, or some but not all of another part."""
    loaded = Counter(part(name) for name in report.loaded)
    for kind in dict.fromkeys(part(name) for name in missing):
        new_head = kind == "head" and permissions.ignore_mismatched_sizes
        if kind == required or (loaded[kind] and not new_head):
            names = [name for name in missing if part(name) == kind]
            raise CheckpointError(
                f"{report.source}: expected {loaded[kind] + len(names)} {kind} tensors of {report.model}, got "
                f"{loaded[kind]}, without {some(names)}. Set {asking_for('initialize_missing')} to initialise them at "
                "random."
            )
