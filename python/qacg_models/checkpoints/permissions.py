"""What loading and conversion may do to a checkpoint, and what messages call each permission."""

from __future__ import annotations

from dataclasses import dataclass

_FLAGS = {"ignore_mismatched_sizes": "--new-head"}  # the others have the name of their argument


@dataclass(frozen=True)
class Permissions:
    """What may happen to a checkpoint because somebody asked for it; the default is nothing.

    Attributes:
        initialize_missing: tensors of the backbone may be missing, and so may single tensors of another part.
        truncate_positions: the position table may lose its last rows.
        truncate_contexts: the context table may lose its last rows.
        resize_vocabulary: the word table may lose its last rows, or get new ones.
        ignore_mismatched_sizes: a head of another size counts as missing.
    """

    initialize_missing: bool = False
    truncate_positions: bool = False
    truncate_contexts: bool = False
    resize_vocabulary: bool = False
    ignore_mismatched_sizes: bool = False

    def fields(self) -> frozenset[str]:
        """The configuration fields that may differ from the sizes of the tensors."""
        allowed = {
            "max_position_embeddings": self.truncate_positions,
            "num_contexts": self.truncate_contexts,
            "vocab_size": self.resize_vocabulary,
            "num_labels": self.ignore_mismatched_sizes,
        }
        return frozenset(field for field, granted in allowed.items() if granted)


NOTHING = Permissions()


def asking_for(permission: str) -> str:
    """An argument with its flag: `truncate_contexts (qacg convert --truncate-contexts)`."""
    flag = _FLAGS.get(permission, "--" + permission.replace("_", "-"))
    return f"{permission} (qacg convert {flag})"
