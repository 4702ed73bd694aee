"""Reading the tensors of a checkpoint: one file or shards, safetensors or torch.

Pickled code never runs: torch files are read with `weights_only`. Objects beside the tensors, such as options of the
training program, become empty objects, and their classes are not imported.
"""

import pickle
import re
import reprlib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qacg_models.errors import CheckpointError
from qacg_models.utils.plain_text import parse_json, read_text

SAFETENSORS = (".safetensors",)
TORCH = (".bin", ".pt", ".pth", ".ckpt")
# Keys under which training programs store the state dict of the model, beside other values.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_INDEX = ".index.json"
_MOST_NAMED = 3
_MOST_CLASSES = 16  # maximum number of classes of the objects beside the tensors
_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors format


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a checkpoint file, or of the shards of an index file, on the CPU.

    Raises:
        CheckpointError: a file is missing, damaged or of an unknown kind; the message names it.
        OSError: a file cannot be read.
    """
    if path.name.endswith(_INDEX):
        return _read_shards(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    if path.suffix in SAFETENSORS:
        return _read_safetensors(path)
    if path.suffix in TORCH:
        return _read_torch(path)
    known = ", ".join((*SAFETENSORS, *TORCH))
    raise CheckpointError(
        f"{path}: expected a file that ends in {known} or .index.json. To load a TensorFlow checkpoint, save "
        "its variables as safetensors, without renaming them."
    )


def weights_file(folder: Path, *, safetensors: bool | None = None, variant: str | None = None) -> Path:
    """Returns the file of weights in a folder, or the index of its shards.

    Args:
        folder: an existing folder.
        safetensors: True for safetensors files only, False for torch files only; None prefers safetensors.
        variant: infix of file names as in transformers, such as "fp16" for `model.fp16.safetensors`; None: no infix.

    Raises:
        CheckpointError: no file has a usual name, such as `model.safetensors`. If `variant` is None and the folder has
            only one file of weights, this file may have any name.
    """
    infix = f".{variant}" if variant else ""
    usual = {
        True: (f"model{infix}.safetensors", f"model.safetensors.index{infix}.json"),
        False: (f"pytorch_model{infix}.bin", f"pytorch_model.bin.index{infix}.json"),
    }
    kinds = (True, False) if safetensors is None else (safetensors,)
    for kind in kinds:
        for name in usual[kind]:
            if (folder / name).is_file():
                return folder / name
    suffixes = sum(((SAFETENSORS if kind else TORCH) for kind in kinds), ())
    # Trainer saves its arguments, which are not weights, as training_args.bin.
    others = sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.name != "training_args.bin")
    if len(others) == 1 and not variant:
        return others[0]
    expected = " or ".join(name for kind in kinds for name in usual[kind])
    if others:
        names = ", ".join(path.name for path in others)
        alternative = "" if variant else ", or one other file of weights"
        raise CheckpointError(f"{folder}: expected {expected}{alternative}, got {names}")
    raise CheckpointError(f"{folder}: expected {expected}, got no file of weights that ends in {' or '.join(suffixes)}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    content = read_json(index)
    shard_of = content.get("weight_map")
    if not isinstance(shard_of, dict):
        got = reprlib.repr(shard_of) if "weight_map" in content else "none"
        raise CheckpointError(f"{index}: weight_map: expected an object with the file of each tensor, got {got}")
    for name, shard in shard_of.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{index}: weight_map: {name}: expected a file name, got {reprlib.repr(shard)}")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: expected shards in the same folder, got {shard!r}")
        if shard.endswith(_INDEX):  # the index may list itself
            raise CheckpointError(f"{index}: expected files of weights as shards, got the index {shard!r}")
        found = read_tensors(index.parent / shard)
        listed = {name for name, where in shard_of.items() if where == shard}
        if absent := sorted(listed - found.keys()):
            raise CheckpointError(
                f"{index.parent / shard}: expected {some(absent)} as in {index.name}, got no such tensors. Copy or "
                "download all files of the checkpoint again."
            )
        if twice := sorted(tensors.keys() & found.keys()):
            raise CheckpointError(
                f"{index.parent / shard}: expected each tensor in only one shard, got {some(twice)} in another "
                "shard too. Copy or download all files of the checkpoint again."
            )
        tensors |= found
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    _check_length(path)
    try:
        with safe_open(path, framework="pt") as opened:
            # Copies, since the tensors lie in the mapped file, and safetensors 0.4 overwrites a file in place. Saving a
            # model to the file that it was loaded from would change its weights.
            return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118, it is not a dict
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is damaged ({error}). Copy or download the file again.") from None


def _check_length(path: Path) -> None:
    """Raises CheckpointError if the header is damaged or the file is truncated.

    The message names the missing tensors of a truncated file, which errors of safetensors do not.
    """
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, _LONGEST_HEADER):
            raise CheckpointError(
                f"{path}: is damaged: its {size} bytes begin with no valid header. Copy or download the file again."
            )
        try:
            header = parse_json(opened.read(length).decode())
            ends = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
            whole = 8 + length + max(ends.values(), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: is damaged: its header cannot be read ({error}). Copy or download the file again."
            ) from None
    if size < whole:
        cut = sorted((end, name) for name, end in ends.items() if 8 + length + end > size)
        names = [name for _, name in cut]
        raise CheckpointError(
            f"{path}: is truncated after {size} of {whole} bytes; data are missing for {some(names)}. Copy or download "
            "the file again."
        )


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
            replaced[name] = _replacement(name)
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


def _replacement(name: str) -> Callable:
    """Returns the callable with which the unpickler replaces the class or function `name`."""
    if name == "collections.defaultdict":  # the state of optimizers; torch requires a dictionary
        return lambda *_: {}
    return type(name.rpartition(".")[2], (_Inert,), {})


def _refused_class(error: pickle.UnpicklingError) -> str | None:
    """Returns the class that torch did not load, from torch's error; None if the error names none.

    The error itself is not shown, because it advises to load the file with `weights_only=False`.
    """
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    if match is None:
        return None
    return match[1] if "." in match[1] else f"builtins.{match[1]}"


def read_json(path: Path) -> dict:
    """Returns the object in a JSON file.

    Raises:
        CheckpointError: the file is missing or does not contain a JSON object.
        OSError: the file cannot be read, or is larger than MOST_FILE_BYTES.
    """
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, got other text ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def some(names: Sequence[str]) -> str:
    """Returns the first three names, and the number of the others, as text."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
