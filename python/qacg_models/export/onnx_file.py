"""ONNX: one file with the weights inside, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from qacg_models.errors import InputError
from qacg_models.export.check import Run
from qacg_models.export.traced import OUTPUT, TracedModel
from qacg_models.utils.quiet import quiet

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
# A protobuf message ends at 2 GiB; the graph takes some of it.
MOST_BYTES = 2**31 - 2**26
# Where torch's exporter writes the module that a node comes from, and what stands there for a layer of the encoder.
SCOPES, IN_A_LAYER = "pkg.torch.onnx.name_scopes", ".encoder.layer."


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


def save_in_int8(model: onnx.ModelProto, path: Path) -> None:
    """Writes a graph of torch's exporter in int8; `model` may be changed."""
    chosen, own = _token_layers(model.graph), {one.key for one in model.metadata_props}
    # The exporter's shapes of constants that it has transposed are those from before, over which onnx stumbles.
    del model.graph.value_info[:]
    with quiet("root"):  # which recommends a simplification that the exporter has done
        quantize_dynamic(
            model,
            path,
            nodes_to_quantize=chosen,
            per_channel=True,
            # 7 bits, without which CPUs that lack VNNI cut sums of two products, wherever the file is run.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    # onnxruntime adds an entry of its own, which is not JSON as all of ours are.
    written = onnx.load(path)
    for one in [one for one in written.metadata_props if one.key not in own]:
        written.metadata_props.remove(one)
    onnx.save(written, path)


def _token_layers(graph: onnx.GraphProto) -> list[str]:
    """The nodes that multiply every token by a constant matrix of a layer; gates have vectors."""
    shapes = {constant.name: tuple(constant.dims) for constant in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type != "MatMul" or IN_A_LAYER not in _scopes(node):
            continue
        shape = shapes.get(node.input[1], ())
        if len(shape) == 2 and shape[1] > 1:
            found.append(node.name)
    assert found, "torch's exporter has other names for the layers"
    return found


def _scopes(node: onnx.NodeProto) -> str:
    return next((told.value for told in node.metadata_props if told.key == SCOPES), "")


def load(path: Path) -> Run:
    """The file as a function of inputs by name to logits, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return session.run([OUTPUT], dict(inputs))[0]

    return run
