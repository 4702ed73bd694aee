"""A checkpoint as it was found: its tensors under our names, and the configuration beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from qacg_models.checkpoints.files import read_json, read_tensors, weights_file
from qacg_models.checkpoints.tensor_names import Layout
from qacg_models.errors import CheckpointError

CONFIG_NAMES = ("config.json", "bert_config.json")


@dataclass(frozen=True)
class Source:
    """What a checkpoint holds.

    Attributes:
        path: the file of weights, or the index of its shards.
        layout: how it names its tensors.
        tensors: its tensors by our names, each as our modules have it (not transposed).
        names: the checkpoint's own name by our name, for messages.
        unused: its names of what belongs to no model: optimizer state, buffers computed from the sizes.
        fields: the content of its configuration file; None if there is none.
        fields_path: that file.
    """

    path: Path
    layout: Layout
    tensors: dict[str, Tensor]
    names: dict[str, str]
    unused: list[str]
    fields: dict[str, object] | None
    fields_path: Path | None

    def called(self, name: str) -> str:
        """A tensor in a message: the name that the user can find in the file."""
        return self.names.get(name, name)


def open_source(
    path: Path | str,
    *,
    config: Path | str | None = None,
    safetensors: bool | None = None,
    variant: str | None = None,
) -> Source:
    """Reads a checkpoint.

    Args:
        path: a folder, a file of weights, or the index of shards.
        config: the configuration file or its folder; None looks for CONFIG_NAMES beside the weights.
        safetensors, variant: which file of a folder, as for `weights_file`.

    Raises:
        CheckpointError: a file is missing, damaged or no checkpoint of a BERT; two of its tensors are one.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    weights = weights_file(path, safetensors=safetensors, variant=variant) if path.is_dir() else path
    found = read_tensors(weights)
    try:
        layout = Layout.of(found)
    except CheckpointError as error:
        raise CheckpointError(f"{weights}: {error}") from None
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    unused = []
    for name, tensor in found.items():
        named = layout.to_ours(name)
        if named is None:
            unused.append(name)
            continue
        ours, transposed = named
        if ours in tensors:
            raise CheckpointError(f"{weights}: {names[ours]} and {name} are names of one tensor, {ours}")
        if transposed and tensor.dim() != 2:
            raise CheckpointError(f"{weights}: {name} has shape {tuple(tensor.shape)}, wanted two dimensions")
        # Contiguous: a view would be the model's own weight for good, with other roundings in its products.
        tensors[ours] = tensor.T.contiguous() if transposed else tensor
        names[ours] = name
    fields_path = config_file(weights, config)
    fields = None if fields_path is None else _fields(fields_path)
    return Source(weights, layout, tensors, names, unused, fields, fields_path)


def _fields(path: Path) -> dict[str, object]:
    """The content of a configuration file, as far as it is read before a configuration class checks it."""
    fields = read_json(path)
    kind, classes = fields.get("model_type"), fields.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise CheckpointError(f"{path}: model_type: got {kind!r}, wanted a name")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise CheckpointError(f"{path}: architectures: got {classes!r}, wanted a list of names")
    return fields


def config_file(weights: Path, config: Path | str | None) -> Path | None:
    """The configuration of a file of weights: `config`, a file or a folder with one; None: the one beside it, if any.

    Raises:
        CheckpointError: `config` is a folder without one.
    """
    if config is not None and not Path(config).is_dir():
        return Path(config)
    folder = weights.parent if config is None else Path(config)
    found = next((folder / name for name in CONFIG_NAMES if (folder / name).is_file()), None)
    if found is None and config is not None:
        raise CheckpointError(f"{folder}: has no {' or '.join(CONFIG_NAMES)}")
    return found
