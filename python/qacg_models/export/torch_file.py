"""Export with torch.export: one file of ATen operators, which torch runs without this package."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from qacg_models.export.check import Run
from qacg_models.export.traced import TracedModel

RUNTIME = f"torch {torch.__version__}"


def write(traced: TracedModel, path: Path) -> None:
    """Writes a traced model to the file `path`; torch.export.load reads the metadata with `extra_files`."""
    # The content is made in memory, since torch's file writer aborts the process if the disk is full.
    content = io.BytesIO()
    torch.export.save(traced.program, content, extra_files=traced.metadata)
    path.write_bytes(content.getbuffer())


def load(path: Path) -> Run:
    """Returns a function that runs the file on the CPU: it takes input arrays by name, and returns logits."""
    module = torch.export.load(path).module()

    @torch.inference_mode()
    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return module(**{name: torch.from_numpy(values) for name, values in inputs.items()}).numpy()

    return run
