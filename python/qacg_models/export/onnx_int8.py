"""An ONNX graph whose linear layers multiply in int8, by onnxruntime's dynamic quantization.

Weights are rounded once, each output channel with a scale of its own, and what comes in at every call, all of a batch
with one scale; so an answer depends a little on what else is in the batch. As in `inference/int8.py`, those layers are
meant that every token goes through.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from qacg_models.utils.quiet import quiet

# Where torch's exporter writes the module that a node comes from, and what stands there for a layer of the encoder.
SCOPES, IN_A_LAYER = "pkg.torch.onnx.name_scopes", ".encoder.layer."


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
