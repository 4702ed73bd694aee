"""Tensor names of models with a head over any encoder, and of published BertSum checkpoints.

In this package, tensors of the encoder have the base prefix of the model, and tensors of the head have no prefix.

| layout | tensor of the encoder, for BertSum | tensor of the head |
|---|---|---|
| this package | `bert.embeddings.LayerNorm.weight` | `encoder.wo.weight` |
| BertSum (Liu, 2019) | `bert.model.embeddings.LayerNorm.weight` | `encoder.wo.weight` |
| its successor PreSumm | `bert.model.embeddings.LayerNorm.weight` | `ext_layer.wo.weight` |
| an encoder only | `embeddings.LayerNorm.weight`, with any prefix | none |

In each layout, all names may have the prefix `module.`, and LayerNorms may have gamma and beta instead of weight and
bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from qacg_models.checkpoints.tensor_names import norm_from_gamma_beta, norm_to_gamma_beta

_DATA_PARALLEL = "module."


@dataclass(frozen=True)
class HeadLayout:
    """The tensor names of a checkpoint.

    Attributes:
        base: prefix of the encoder in this package, such as `bert.`.
        encoder: prefix of the encoder in the checkpoint.
        outer: prefix of the head in the checkpoint.
        head: name in the checkpoint of a head module that has another name in this package; it ends with a dot. Empty
            if there is no such module.
        our_head: name of this module in this package; it ends with a dot. Empty if `head` is empty.
        gamma_beta: whether LayerNorm has gamma and beta instead of weight and bias.
    """

    base: str
    encoder: str
    outer: str = ""
    head: str = ""
    our_head: str = ""
    gamma_beta: bool = False

    @classmethod
    def of(
        cls, names: Iterable[str], encoder_names: Collection[str], base: str, aliases: Collection[tuple[str, str]] = ()
    ) -> HeadLayout:
        """Returns the layout of a checkpoint with these names.

        Args:
            names: tensor names of the checkpoint.
            encoder_names: names of the tensors of the encoder, without a prefix.
            base: prefix of the encoder in this package.
            aliases: pairs (published name, name in this package) of a head module; each name ends with a dot.
        """
        names = list(names)
        plain = [norm_from_gamma_beta(name) for name in names]
        prefixes: Counter[str] = Counter()
        for name in plain:
            parts = name.split(".")
            for i in range(len(parts)):
                if ".".join(parts[i:]) in encoder_names:
                    prefixes["".join(f"{part}." for part in parts[:i])] += 1
        encoder = prefixes.most_common(1)[0][0] if prefixes else base
        outer = _DATA_PARALLEL if encoder.startswith(_DATA_PARALLEL) else ""
        others = [name.removeprefix(outer) for name in plain if not name.startswith(encoder)]
        head, our_head = next((pair for pair in aliases if any(name.startswith(pair[0]) for name in others)), ("", ""))
        return cls(base, encoder, outer, head, our_head, gamma_beta=plain != names)

    def to_ours(self, name: str) -> str:
        """Returns the name in this package for a name in the checkpoint."""
        name = norm_from_gamma_beta(name)
        if name.startswith(self.encoder):
            return self.base + name.removeprefix(self.encoder)
        name = name.removeprefix(self.outer)
        if self.head and name.startswith(self.head):
            return self.our_head + name.removeprefix(self.head)
        return name

    def from_ours(self, name: str) -> str:
        """Returns the name in the checkpoint for a name in this package."""
        if name.startswith(self.base):
            name = self.encoder + name.removeprefix(self.base)
        elif self.head and name.startswith(self.our_head):
            name = self.outer + self.head + name.removeprefix(self.our_head)
        else:
            name = self.outer + name
        return norm_to_gamma_beta(name) if self.gamma_beta else name

    def describe(self) -> str:
        """Describes the tensor names for the report of a load: `encoder under 'bert.', LayerNorm gamma/beta`."""
        words = [f"encoder under {self.encoder!r}" if self.encoder else "encoder without prefix"]
        if self.head:
            words.append(f"head under {self.outer + self.head!r}")
        words.append("LayerNorm gamma/beta" if self.gamma_beta else "LayerNorm weight/bias")
        return ", ".join(words)


BERTSUM_ALIASES = (("ext_layer.", "encoder."),)
BERTSUM = HeadLayout(base="bert.", encoder="bert.model.")
