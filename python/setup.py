"""Version and dependencies of qacg-models; pyproject.toml has the other metadata. The version is qacg-kernels' own."""

import re
from pathlib import Path

from setuptools import setup

FOLDER = Path(__file__).resolve().parent
SDIST, CHECKOUT = FOLDER / "PKG-INFO", FOLDER.parent / "qacg_kernels/__init__.py"


def version() -> str:
    """Returns the version: from PKG-INFO in an unpacked sdist, otherwise from `qacg_kernels` in the same checkout."""
    path, pattern = (SDIST, r"^Version: (.+)$") if SDIST.is_file() else (CHECKOUT, r'^__version__ = "(.+)"$')
    return re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)[1]


setup(
    version=version(),
    install_requires=[
        f"qacg-kernels=={version()}",
        "transformers>=5.12,<6",
        "safetensors>=0.4.3",
        "tokenizers>=0.22",
        "accelerate>=1.3",
        "scikit-learn>=1.5",
        "threadpoolctl>=3.1",
        "tqdm>=4.66",
        "pandas>=2.2",
        "pyarrow>=17",
        "pyyaml>=6",
        "filelock>=3.20.3",
        "lazy-loader>=0.4",
    ],
)
