"""A checkpoint that has been read: tensors by their names in this package, and its configuration."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from qacg_models.checkpoints.files import read_json, read_tensors, weights_file
from qacg_models.checkpoints.tensor_names import Layout
from qacg_models.errors import CheckpointError

CONFIG_NAMES = ("config.json", "bert_config.json")


@dataclass(frozen=True)
class Source:
    """The content of a checkpoint.

    Attributes:
        path: the file of weights, or the index of its shards.
        layout: description of the tensor names in the file.
        tensors: the tensors by their names in this package; transposed tensors of TensorFlow are transposed back.
        names: for each name in this package the name in the checkpoint, for messages.
        unused: names in the checkpoint of tensors that no model has: optimizer state, computed buffers.
        fields: content of the configuration file; None if there is none.
        fields_path: path of the configuration file; None if there is none.
    """

    path: Path
    layout: Layout
    tensors: dict[str, Tensor]
    names: dict[str, str]
    unused: list[str]
    fields: dict[str, object] | None
    fields_path: Path | None

    def called(self, name: str) -> str:
        """Returns the name of a tensor in the file, for messages."""
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
        config: the configuration file or its folder; None: one of CONFIG_NAMES beside the weights.
        safetensors: True for safetensors files only, False for torch files only; None prefers safetensors.
        variant: infix of file names as in transformers, such as "fp16" for `model.fp16.safetensors`; None: no infix.

    Raises:
        CheckpointError: a file is missing, damaged, invalid or not a checkpoint of a BERT; the message names it.
        OSError: a file cannot be read.
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
            raise CheckpointError(f"{weights}: expected one tensor for {ours}, got {names[ours]} and {name}")
        if transposed and tensor.dim() != 2:
            raise CheckpointError(f"{weights}: {name}: expected two dimensions, got shape {tuple(tensor.shape)}")
        # Without `contiguous`, the model's weights would stay transposed views, whose products round differently.
        tensors[ours] = tensor.T.contiguous() if transposed else tensor
        names[ours] = name
    fields_path = config_file(weights, config)
    fields = None if fields_path is None else _fields(fields_path)
    return Source(weights, layout, tensors, names, unused, fields, fields_path)


def _fields(path: Path) -> dict[str, object]:
    """Returns the content of a configuration file.

    Raises:
        CheckpointError: the file is missing or no JSON object, or `model_type` or `architectures` has another type.
    """
    fields = read_json(path)
    kind, classes = fields.get("model_type"), fields.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise CheckpointError(f"{path}: model_type: expected a name, got {kind!r}")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise CheckpointError(f"{path}: architectures: expected a list of names, got {classes!r}")
    return fields


def config_file(weights: Path, config: Path | str | None) -> Path | None:
    """Returns the path of the configuration file; None if `config` is None and there is none beside the weights.

    A `config` that is not a folder is returned without checking that it exists.

    Args:
        weights: the file of weights.
        config: the configuration file, or its folder; None: one of CONFIG_NAMES beside the weights.

    Raises:
        CheckpointError: `config` is a folder without a configuration file.
    """
    if config is not None and not Path(config).is_dir():
        return Path(config)
    folder = weights.parent if config is None else Path(config)
    found = next((folder / name for name in CONFIG_NAMES if (folder / name).is_file()), None)
    if found is None and config is not None:
        raise CheckpointError(f"{folder}: expected {' or '.join(CONFIG_NAMES)}, got neither")
    return found
