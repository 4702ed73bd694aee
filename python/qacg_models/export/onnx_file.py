"""ONNX: one file with the weights inside, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from qacg_models.errors import InputError
from qacg_models.export.check import Run
from qacg_models.export.onnx_int8 import save_in_int8
from qacg_models.export.traced import OUTPUT, TracedModel
from qacg_models.utils.quiet import quiet

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
# A protobuf message ends at 2 GiB; the graph takes some of it.
MOST_BYTES = 2**31 - 2**26


def write(traced: TracedModel, path: Path) -> None:
    """Writes the file.

    Raises:
        InputError: the weights do not fit one file.
    """
    _graph(traced).save(path, external_data=False)


def write_int8(traced: TracedModel, path: Path) -> None:
    """Writes the file with the linear layers of the encoder in int8; errors as for `write`."""
    save_in_int8(_graph(traced).model_proto, path)


def _graph(traced: TracedModel) -> torch.onnx.ONNXProgram:
    size = sum(tensor.nbytes for tensor in traced.program.state_dict.values())
    if size > MOST_BYTES:
        raise InputError(
            f"to: the weights take {size / 2**30:.1f} GiB, and one ONNX file holds less than 2; "
            "--to torch-export has no such limit"
        )
    with quiet("torch.onnx"):
        made = torch.onnx.export(
            traced.program,
            (),
            kwargs=traced.example,
            dynamic_shapes=traced.dimensions,
            output_names=[OUTPUT],
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props.update(traced.metadata)
    return made


def load(path: Path) -> Run:
    """The file as a function of inputs by name to logits, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return session.run([OUTPUT], dict(inputs))[0]

    return run
