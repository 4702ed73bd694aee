"""Export to ONNX, one file with the weights inside, for onnxruntime; optionally with int8 linear layers.

int8 uses onnxruntime's dynamic quantization: weights have one scale per output channel, inputs of a layer one scale per
call, so the result of an example depends slightly on the rest of its batch. As in `inference/int8.py` it applies to the
linear layers that process every token.
"""

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
# A protobuf message has at most 2 GiB, including the graph.
MOST_BYTES = 2**31 - 2**26
# Metadata key in which torch's exporter stores the module of a node, and the path of the encoder layers in it.
SCOPES, IN_A_LAYER = "pkg.torch.onnx.name_scopes", ".encoder.layer."


def write(traced: TracedModel, path: Path) -> None:
    """Writes the file.

    Raises:
        InputError: the weights do not fit into one file.
    """
    _graph(traced).save(path, external_data=False)


def write_int8(traced: TracedModel, path: Path) -> None:
    """Writes the file with int8 linear layers in the encoder; errors as for `write`."""
    save_in_int8(_graph(traced).model_proto, path)


def _graph(traced: TracedModel) -> torch.onnx.ONNXProgram:
    size = sum(tensor.nbytes for tensor in traced.program.state_dict.values())
    if size > MOST_BYTES:
        raise InputError(
            f"to: expected weights of less than 2 GiB for one ONNX file, got {size / 2**30:.1f} GiB. "
            "Use --to torch-export."
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
    """Writes a graph of torch's exporter in int8; changes `model`."""
    chosen, own = _token_layers(model.graph), {one.key for one in model.metadata_props}
    # The exporter stores wrong shapes for constants that it has transposed, and onnx raises an error for them.
    del model.graph.value_info[:]
    with quiet("root"):  # hides advice to simplify the graph, which the exporter has done
        quantize_dynamic(
            model,
            path,
            nodes_to_quantize=chosen,
            per_channel=True,
            # 7 bits: on CPUs without VNNI sums of two 8-bit products saturate.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    # Remove the entry of onnxruntime, whose value is not JSON as those of this package.
    written = onnx.load(path)
    for one in [one for one in written.metadata_props if one.key not in own]:
        written.metadata_props.remove(one)
    onnx.save(written, path)


def _token_layers(graph: onnx.GraphProto) -> list[str]:
    """Returns the nodes that multiply every token by a constant matrix of a layer; gates have vectors."""
    shapes = {constant.name: tuple(constant.dims) for constant in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type != "MatMul" or IN_A_LAYER not in _scopes(node):
            continue
        shape = shapes.get(node.input[1], ())
        if len(shape) == 2 and shape[1] > 1:
            found.append(node.name)
    assert found, "torch's exporter has changed the names of modules"
    return found


def _scopes(node: onnx.NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")


def load(path: Path) -> Run:
    """Returns the file as a function from inputs by name to logits, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return session.run([OUTPUT], dict(inputs))[0]

    return run
