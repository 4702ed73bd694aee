"""Reading the tensors of a checkpoint: one file or shards, safetensors or torch, damaged or whole.

No pickled code is ever run: torch files are read with `weights_only`. Of objects beside the tensors, which programs
that save their options and optimizers leave there, nothing is imported: empty ones stand in for them.
"""

from __future__ import annotations

import pickle
import re
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
# Where training loops put the model's tensors when they save more than these.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_INDEX = ".index.json"
_MOST_NAMED = 3
_MOST_CLASSES = 16  # that a checkpoint may have objects of beside its tensors
_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors format


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint file, or of the shards that an index file names, on the CPU.

    Raises:
        CheckpointError: naming the file, and the tensor where one is at fault.
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
        f"{path}: is none of the kinds of file that can be read ({known}, .index.json); the variables of a "
        "TensorFlow checkpoint can be saved as safetensors under the names that they have"
    )


def weights_file(folder: Path, *, safetensors: bool | None = None, variant: str | None = None) -> Path:
    """The file with the weights, or the index of its shards, in a folder.

    Args:
        folder: an existing folder.
        safetensors: True or False to take only safetensors or only torch files; None prefers the former.
        variant: as in transformers, the word in `model.fp16.safetensors`.

    Raises:
        CheckpointError: there is none, or there are several and no usual name tells which is meant.
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
    # Trainer writes its arguments beside the model as a pickle of a class: no weights.
    others = sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.name != "training_args.bin")
    if len(others) == 1 and not variant:
        return others[0]
    wanted = " or ".join(name for kind in kinds for name in usual[kind])
    if others:
        names = ", ".join(path.name for path in others)
        raise CheckpointError(f"{folder}: has no {wanted}, and more than one other file of weights: {names}")
    raise CheckpointError(f"{folder}: has no weights; wanted {wanted}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    content = read_json(index)
    shard_of = content.get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise CheckpointError(f"{index}: has no weight_map from tensors to files")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: names the shard {shard!r}, wanted a file of the same folder")
        if shard.endswith(_INDEX):  # even itself
            raise CheckpointError(f"{index}: names the shard {shard!r}, which is an index; wanted a file of weights")
        found = read_tensors(index.parent / shard)
        listed = {name for name, where in shard_of.items() if where == shard}
        if absent := sorted(listed - found.keys()):
            raise CheckpointError(f"{index.parent / shard}: lacks {some(absent)}, which {index.name} puts there")
        if twice := sorted(tensors.keys() & found.keys()):
            raise CheckpointError(f"{index.parent / shard}: has {some(twice)}, which another shard has too")
        tensors |= found
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    _check_length(path)
    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is not a dict
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from None


def _check_length(path: Path) -> None:
    """Refuse a file that ends too early, by the first tensor that is cut off; safetensors names none."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, _LONGEST_HEADER):
            raise CheckpointError(f"{path}: is damaged: its {size} bytes do not hold the header that they announce")
        try:
            header = parse_json(opened.read(length).decode())
            ends = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
            whole = 8 + length + max(ends.values(), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise CheckpointError(f"{path}: is damaged: its header cannot be read ({error})") from None
    if size < whole:
        cut = sorted((end, name) for name, end in ends.items() if 8 + length + end > size)
        names = [name for _, name in cut]
        raise CheckpointError(f"{path}: is cut off after {size} of {whole} bytes, within {some(names)}")


def _read_torch(path: Path) -> dict[str, Tensor]:
    # Files of torch before 1.6 are not zip archives and cannot be mapped into memory.
    archive = zipfile.is_zipfile(path)
    stood_in_for: dict[str, Callable] = {}
    while True:
        try:
            with torch.serialization.safe_globals([(inert, name) for name, inert in stood_in_for.items()]):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
            break
        except pickle.UnpicklingError as error:
            name = _refused(error)
            if name is None or name in stood_in_for or len(stood_in_for) == _MOST_CLASSES:
                raise CheckpointError(
                    f"{path}: is damaged or holds more than tensors ({name or 'an unreadable pickle'}); pickled code "
                    "is never run, so save model.state_dict() alone, or as safetensors"
                ) from None
            stood_in_for[name] = _stand_in(name)
        except Exception as error:  # a damaged pickle can raise anything at all
            reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"{path}: is damaged or no torch file ({reason})") from None
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, wanted a dictionary of tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: has {type(value).__name__} under {name!r}, wanted tensors under names")
    return {name: value.detach() for name, value in content.items()}


class _Inert:
    """Stands in for a class that a checkpoint has objects of, such as the options of a training program beside the
    tensors: takes whatever they are made from and does nothing. The class itself is never imported."""

    def __init__(self, *_):
        pass

    def __setstate__(self, _):
        pass


def _stand_in(name: str) -> Callable:
    """What is called in the place of the class or function `name`."""
    if name == "collections.defaultdict":  # the state of every optimizer; torch fills nothing but dictionaries
        return lambda *_: {}
    return type(name.rpartition(".")[2], (_Inert,), {})


def _refused(error: pickle.UnpicklingError) -> str | None:
    """What was refused, out of torch's explanation, which goes on to advise running the pickle anyway."""
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    if match is None:
        return None
    return match[1] if "." in match[1] else f"builtins.{match[1]}"


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        CheckpointError: no such file, or no JSON object in it.
    """
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, wanted a JSON object")
    return content


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
