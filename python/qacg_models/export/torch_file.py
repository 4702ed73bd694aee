"""torch.export: one file of ATen operators, run by torch without this package."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from qacg_models.export.check import Run
from qacg_models.export.traced import TracedModel

RUNTIME = f"torch {torch.__version__}"


def write(traced: TracedModel, path: Path) -> None:
    """Writes the file; the metadata are files in it, for `extra_files` of torch.export.load."""
    # Through memory: torch's writer of files ends the process where a disk is full.
    content = io.BytesIO()
    torch.export.save(traced.program, content, extra_files=traced.metadata)
    path.write_bytes(content.getbuffer())


def load(path: Path) -> Run:
    """The file as a function of inputs by name to logits, on the CPU."""
    module = torch.export.load(path).module()

    @torch.inference_mode()
    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return module(**{name: torch.from_numpy(values) for name, values in inputs.items()}).numpy()

    return run
