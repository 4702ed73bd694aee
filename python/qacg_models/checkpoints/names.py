"""Tensor names in checkpoints of other programs, and their names in this package.

The names in this package are those of a model with a head, such as `classifier.bias`. The attention layers are named
as in the released code: `bert.encoder.layer.0.attention.self.query.weight`. A `Layout` describes the names in a
checkpoint of a BERT, a `HeadLayout` those in a checkpoint of a head over any encoder. In each layout, all names may
have the prefix `module.`, from training on several GPUs.

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
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES, NAMINGS
from qacg_models.errors import CheckpointError

BASE = "bert."
CONTEXTS = "bert.context_embeddings.weight"
WORDS = "bert.embeddings.word_embeddings.weight"
# Pairs (published name, name in this package) of a head module.
BERTSUM_ALIASES = (("ext_layer.", "encoder."),)
_ATTENTION = "attention.self."
_DATA_PARALLEL = "module."
# First components of backbone names, which distinguish them from heads without a prefix.
_BACKBONE_MODULES = ("embeddings", "encoder", "pooler", "context_embeddings")
_ANCHOR = re.compile(
    r"^(?P<prefix>.*?)(?:embeddings\.(?:word|position|token_type)_embeddings\.|encoder\.layer\.\d+\.attention\.)"
)
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
# Buffers of old checkpoints, which are computed from the sizes.
_BUFFERS = (f"{BASE}embeddings.position_ids", f"{BASE}embeddings.token_type_ids")
_ROLES = {name: role for role, name in NAMINGS["released"].items()}


@dataclass(frozen=True)
class Layout:
    """The tensor names in a checkpoint of a BERT.

    Attributes:
        outer: prefix of all names, including heads, such as `module.`.
        base: prefix of backbone names after `outer`: `bert.`, or nothing.
        gamma_beta: whether LayerNorm has gamma and beta instead of weight and bias.
        attention: the naming of the attention layers, a key of `qacg_kernels.attention_layers.NAMINGS`.
    """

    outer: str = ""
    base: str = BASE
    gamma_beta: bool = False
    attention: str = "released"

    @classmethod
    def of(cls, names: Iterable[str]) -> Layout:
        """Returns the layout of a checkpoint with these names.

        Raises:
            CheckpointError: the names are not those of a BERT, or there are several encoders.
        """
        names = list(names)
        prefixes = sorted({match["prefix"] for name in names if (match := _ANCHOR.match(name))})
        if not prefixes:
            some = ", ".join(sorted(names)[:3]) or "none"
            raise CheckpointError(
                f"expected a BERT with tensors of embeddings or encoder.layer.0.attention, got {len(names)} other "
                f"tensors (the first ones: {some})"
            )
        if len(prefixes) > 1:
            found = ", ".join(map(repr, prefixes))
            raise CheckpointError(
                f"expected one encoder, got {len(prefixes)}, with the prefixes {found}. Save the tensors of "
                "one encoder."
            )
        base = BASE if prefixes[0].endswith(BASE) else ""
        compact = f"{_ATTENTION}{NAMINGS['compact']['query']}."
        return cls(
            outer=prefixes[0].removesuffix(base),
            base=base,
            gamma_beta=any(name.endswith("LayerNorm.gamma") for name in names),
            attention="compact" if any(compact in name for name in names) else "released",
        )

    def to_ours(self, name: str) -> str | None:
        """Returns the name in this package for a name in the checkpoint; None for a buffer that no model has.

        Both namings of attention and of LayerNorm are accepted, whatever the layout.
        """
        name = name.removeprefix(self.outer)
        if not self.base and name.split(".")[0] in _BACKBONE_MODULES:
            name = BASE + name
        return None if name in _BUFFERS else _released_attention(_without_gamma_beta(name))

    def describe(self) -> str:
        """Describes the tensor names for the report of a load: `prefix 'bert.', LayerNorm gamma/beta`."""
        words = [f"prefix {self.outer + self.base!r}" if self.outer + self.base else "no prefix"]
        words.append("LayerNorm gamma/beta" if self.gamma_beta else "LayerNorm weight/bias")
        return ", ".join([*words, "attention Wq/Wk/Wv"] if self.attention == "compact" else words)


@dataclass(frozen=True)
class HeadLayout:
    """The tensor names in a checkpoint of a model with a head over any encoder.

    In this package, tensors of the encoder have the base prefix of the model, and tensors of the head have no prefix.

    Attributes:
        base: prefix of the encoder in this package, such as `bert.`.
        modules: first components of the encoder's names after its prefix.
        encoder: prefix of the encoder in the checkpoint.
        outer: prefix of the head in the checkpoint.
        aliases: pairs (published name, name in this package) of a head module; each name ends with a dot.
        gamma_beta: whether LayerNorm has gamma and beta instead of weight and bias.
    """

    base: str
    modules: frozenset[str]
    encoder: str
    outer: str
    aliases: Collection[tuple[str, str]]
    gamma_beta: bool

    @classmethod
    def of(
        cls, names: Iterable[str], encoder_names: Collection[str], base: str, aliases: Collection[tuple[str, str]] = ()
    ) -> HeadLayout:
        """Returns the layout of a checkpoint with these names; `encoder_names` are those of the encoder, no prefix."""
        names = list(names)
        plain = [_without_gamma_beta(name) for name in names]
        prefixes: Counter[str] = Counter()
        for name in plain:
            parts = name.split(".")
            for i in range(len(parts)):
                if ".".join(parts[i:]) in encoder_names:
                    prefixes["".join(f"{part}." for part in parts[:i])] += 1
        encoder = prefixes.most_common(1)[0][0] if prefixes else base
        outer = _DATA_PARALLEL if encoder.startswith(_DATA_PARALLEL) else ""
        modules = frozenset(name.split(".")[0] for name in encoder_names)
        return cls(base, modules, encoder, outer, aliases, gamma_beta=plain != names)

    def to_ours(self, name: str) -> str:
        """Returns the name in this package for a name in the checkpoint."""
        name = _without_gamma_beta(name)
        # If the names of the encoder have no prefix, tensors outside its modules belong to a head of another program.
        if name.startswith(self.encoder) and (self.encoder or name.split(".")[0] in self.modules):
            return self.base + name.removeprefix(self.encoder)
        name = name.removeprefix(self.outer)
        for theirs, ours in self.aliases:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    def describe(self) -> str:
        """Describes the tensor names for the report of a load: `encoder under 'bert.', LayerNorm gamma/beta`."""
        encoder = f"encoder under {self.encoder!r}" if self.encoder else "encoder without prefix"
        return f"{encoder}, LayerNorm {'gamma/beta' if self.gamma_beta else 'weight/bias'}"


def part_of(name: str) -> str:
    """Returns the part of a BERT: "backbone", "pooler", "pooler gate", "context" or "head".

    Args:
        name: name of a tensor in this package.
    """
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
