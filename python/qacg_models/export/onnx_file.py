"""Export to one ONNX file that contains the weights, for onnxruntime; optionally with int8 linear layers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from qacg_models.errors import InputError
from qacg_models.export.check import Run
from qacg_models.export.int8_layers import to_int8
from qacg_models.export.traced import OUTPUT, TracedModel
from qacg_models.utils.quiet import quiet

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
# Maximum size of the float32 weights: a protobuf message, with the graph, has at most 2 GiB.
MOST_BYTES = 2**31 - 2**26


def write(traced: TracedModel, path: Path) -> None:
    """Writes a traced model to the file `path`.

    Raises:
        InputError: the weights are larger than MOST_BYTES.
    """
    _graph(traced).save(path, external_data=False)


def write_int8(traced: TracedModel, path: Path) -> None:
    """Writes a traced model to the file `path`, with int8 linear layers in the encoder (`int8_layers.py`).

    Raises:
        InputError: the float32 weights are larger than MOST_BYTES.
    """
    model = _graph(traced).model_proto
    to_int8(model.graph)
    onnx.save(model, path)


def _graph(traced: TracedModel) -> torch.onnx.ONNXProgram:
    size = sum(tensor.nbytes for tensor in traced.program.state_dict.values())
    if size > MOST_BYTES:
        raise InputError(
            f"to: expected weights of at most {MOST_BYTES / 2**30:.2f} GiB for one ONNX file, "
            f"got {size / 2**30:.2f} GiB. Use --to torch-export."
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
    """Returns a function that runs the file on the CPU: it takes input arrays by name, and returns logits."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return session.run([OUTPUT], dict(inputs))[0]

    return run
