"""What the user permits when a checkpoint does not fit, and how messages name each permission."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Permissions:
    """What loading may do to a checkpoint that does not fit; nothing by default.

    Attributes:
        initialize_missing: initialise at random the missing tensors of the backbone, and of parts that the checkpoint
            contains incompletely. (Parts that it does not contain at all need no permission.)
        truncate_positions: drop the last position embeddings.
        truncate_contexts: drop the last context embeddings.
        resize_vocabulary: drop the last word embeddings, or add new ones.
        ignore_mismatched_sizes: initialise the head at random if the checkpoint's head has another size.
    """

    initialize_missing: bool = False
    truncate_positions: bool = False
    truncate_contexts: bool = False
    resize_vocabulary: bool = False
    ignore_mismatched_sizes: bool = False

    def fields(self) -> frozenset[str]:
        """Returns the configuration fields that may differ from the sizes of the tensors."""
        allowed = {
            "max_position_embeddings": self.truncate_positions,
            "num_contexts": self.truncate_contexts,
            "vocab_size": self.resize_vocabulary,
            "num_labels": self.ignore_mismatched_sizes,
        }
        return frozenset(field for field, granted in allowed.items() if granted)


NOTHING = Permissions()


def asking_for(permission: str) -> str:
    """Returns a permission with its flag: `truncate_contexts (qacg convert --allow truncate-contexts)`."""
    return f"{permission} (qacg convert --allow {permission.replace('_', '-')})"
