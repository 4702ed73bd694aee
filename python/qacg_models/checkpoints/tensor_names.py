"""Tensor names in checkpoints of other programs, and their conversion in both directions.

The "names in this package" are those of a model with a head, such as `classifier.bias`. The attention layers are named
as in the released code: `bert.encoder.layer.0.attention.self.query.weight`. A `Layout` describes the names in a file.
`to_ours` converts a name of the file to one of this package, and `from_ours` converts it back.

| layout | name of the same tensor |
|---|---|
| Hugging Face | `bert.embeddings.LayerNorm.weight` with any head, without `bert.` in a file of the base model |
| TensorFlow-converted | `embeddings.LayerNorm.gamma` |
| released state dict | `bert.embeddings.LayerNorm.gamma`, with the prefix `module.` after training on several GPUs |
| TensorFlow | `bert/embeddings/LayerNorm/gamma`; dense weights are called `kernel` and are transposed |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES, NAMINGS
from qacg_models.errors import CheckpointError

BASE = "bert."
ATTENTION = "attention.self."
# First components of backbone names, which distinguish them from heads without a prefix.
_BACKBONE_MODULES = ("embeddings", "encoder", "pooler", "context_embeddings")
_ANCHOR = re.compile(
    r"^(?P<prefix>.*?)(?:embeddings\.(?:word|position|token_type)_embeddings\.|encoder\.layer\.\d+\.attention\.)"
)
_NUMBERED = re.compile(r"(.+)_(\d+)$")
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
_GAMMA_BETA = {ours: theirs for theirs, ours in _LAYER_NORM.items()}
_OPTIMIZER_STATE = ("adam_m", "adam_v", "global_step")
# Heads with irregular names in TensorFlow's BERT. Their weights are (labels, hidden), not transposed.
_TENSORFLOW_HEADS = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
_OWN_HEADS = {ours: theirs for theirs, ours in _TENSORFLOW_HEADS.items()}

PARTS = ("backbone", "pooler", "pooler gate", "context", "head")
_CONTEXT_ROLES = (*CONTEXT_ROLES, *GATE_ROLES)
_ROLES = {name: role for role, name in NAMINGS["released"].items()}


@dataclass(frozen=True)
class Layout:
    """The tensor names of a checkpoint.

    Attributes:
        outer: prefix of all names, including heads, such as `module.`.
        base: prefix of backbone names after `outer`: `bert.`, or nothing.
        gamma_beta: whether LayerNorm has gamma and beta instead of weight and bias; ignored with `tensorflow`.
        attention: the naming of the attention layers, a key of `qacg_kernels.attention_layers.NAMINGS`.
        tensorflow: whether the names are paths with slashes.
    """

    outer: str = ""
    base: str = BASE
    gamma_beta: bool = False
    attention: str = "released"
    tensorflow: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Layout:
        """Returns the layout of a checkpoint with these names.

        Raises:
            CheckpointError: the names are not those of a BERT, or there are several encoders.
        """
        names = list(names)
        tensorflow = any("/" in name for name in names)
        dotted = [_from_path(name)[0] or "" if tensorflow else name for name in names]
        prefixes = sorted({match["prefix"] for name in dotted if (match := _ANCHOR.match(name))})
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
        compact = NAMINGS["compact"]["query"]
        return cls(
            outer=prefixes[0].removesuffix(base),
            base=base,
            gamma_beta=any(name.endswith("LayerNorm.gamma") for name in names),
            attention="compact" if any(f"{ATTENTION}{compact}." in name for name in dotted) else "released",
            tensorflow=tensorflow,
        )

    def to_ours(self, name: str) -> tuple[str, bool] | None:
        """Returns the name in this package for a name in the checkpoint, and whether its tensor is transposed.

        Returns None for tensors that no model has: optimizer state, and buffers that are computed from the sizes. Both
        namings of attention and of LayerNorm are accepted, whatever the layout.
        """
        transposed = False
        if self.tensorflow:
            name, transposed = _from_path(name)
            if name is None:
                return None
        name = name.removeprefix(self.outer)
        if not self.base and name.split(".")[0] in _BACKBONE_MODULES:
            name = BASE + name
        if name in (f"{BASE}embeddings.position_ids", f"{BASE}embeddings.token_type_ids"):
            return None
        return _rename_attention(norm_from_gamma_beta(name), "compact", "released"), transposed

    def from_ours(self, name: str) -> tuple[str, bool]:
        """Returns the name in the checkpoint for a name in this package, and whether its tensor is transposed."""
        if self.attention != "released":
            name = _rename_attention(name, "released", self.attention)
        if name.startswith(BASE):
            name = self.base + name.removeprefix(BASE)
        if self.tensorflow:
            return _to_path(self.outer + name)
        return self.outer + (norm_to_gamma_beta(name) if self.gamma_beta else name), False

    def describe(self) -> str:
        """Describes the tensor names for the report of a load: `prefix 'bert.', LayerNorm gamma/beta`."""
        if self.tensorflow:
            words = ["TensorFlow names"]
        else:
            words = [f"prefix {self.outer + self.base!r}" if self.outer + self.base else "no prefix"]
            words.append("LayerNorm gamma/beta" if self.gamma_beta else "LayerNorm weight/bias")
        if self.attention == "compact":
            words.append("attention Wq/Wk/Wv")
        return ", ".join(words)


def norm_from_gamma_beta(name: str) -> str:
    """Returns a name with gamma and beta of a LayerNorm renamed to weight and bias."""
    module, _, kind = name.rpartition(".")
    return f"{module}.{_LAYER_NORM.get(kind, kind)}" if module.endswith("LayerNorm") else name


def norm_to_gamma_beta(name: str) -> str:
    """Returns a name with weight and bias of a LayerNorm renamed to gamma and beta."""
    module, _, kind = name.rpartition(".")
    return f"{module}.{_GAMMA_BETA[kind]}" if module.endswith("LayerNorm") else name


def part_of(name: str) -> str:
    """Returns the part of the model, one of PARTS, for a name in this package."""
    if not name.startswith(BASE):
        return "head"
    inner = name.removeprefix(BASE)
    if inner.startswith("pooler."):
        return "pooler gate" if inner.startswith("pooler.attention_gate.") else "pooler"
    if inner.startswith(("context_embeddings.", "encoder.context_layer.")) or role_of(name) in _CONTEXT_ROLES:
        return "context"
    return "backbone"


def role_of(name: str) -> str | None:
    """Returns the role, a key of NAMINGS["released"], for a self-attention name in this package; otherwise None."""
    _, found, after = name.partition(f".{ATTENTION}")
    return _ROLES.get(after.partition(".")[0]) if found else None


def layer_number(name: str) -> int | None:
    """Returns the index of the encoder layer for a name in this package; None for other tensors."""
    match = re.match(r"bert\.encoder\.layer\.(\d+)\.", name)
    return int(match[1]) if match else None


def _rename_attention(name: str, from_naming: str, to_naming: str) -> str:
    before, found, after = name.partition(ATTENTION)
    layer, _, kind = after.partition(".")
    for role, theirs in NAMINGS[from_naming].items():
        if found and layer == theirs:
            return f"{before}{ATTENTION}{NAMINGS[to_naming][role]}.{kind}"
    return name


def _from_path(path: str) -> tuple[str | None, bool]:
    """Returns the dotted name of a TensorFlow variable (None for optimizer state), and whether it is transposed."""
    path = path.removesuffix(":0")
    *modules, last = path.split("/")
    if last in _OPTIMIZER_STATE:
        return None, False
    if path in _TENSORFLOW_HEADS:
        return _TENSORFLOW_HEADS[path], False
    if last.endswith("_embeddings"):
        modules, last = [*modules, last], "weight"
    dotted = ".".join(_NUMBERED.sub(r"\1.\2", module) for module in modules)
    last = {"kernel": "weight", **_LAYER_NORM}.get(last, last) if modules else last
    return (f"{dotted}.{last}" if dotted else last), path.endswith("/kernel")


def _to_path(name: str) -> tuple[str, bool]:
    """Returns the TensorFlow variable for a dotted name, and whether it is transposed; inverse of `_from_path`."""
    if name in _OWN_HEADS:
        return _OWN_HEADS[name], False
    module, _, kind = name.rpartition(".")
    path = re.sub(r"\.(\d+)(?=\.|$)", r"_\1", module).replace(".", "/")
    if module.endswith("LayerNorm"):
        return f"{path}/{_GAMMA_BETA[kind]}", False
    if module.endswith("_embeddings"):
        return path, False
    return (f"{path}/kernel", True) if kind == "weight" else (f"{path}/{kind}", False)


HUGGING_FACE = Layout()
RELEASED = Layout(gamma_beta=True)
TENSORFLOW = Layout(tensorflow=True)
