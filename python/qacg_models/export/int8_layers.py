"""Int8 linear layers of an ONNX graph, with the same arithmetic as `qacg predict --int8` (`inference/int8.py`).

Weights have one scale per output channel. Inputs have one scale per token, so a prediction does not depend on the rest
of its batch. A scale is the largest absolute value, divided by 127.5. Scaled values are rounded and clamped to
[-128, 127].

Inputs and weights are stored as unsigned numbers with the zero point 128. On processors without VNNI, sums of products
of unsigned and signed numbers saturate. Sums of products of unsigned numbers are exact on every processor.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Metadata key in which torch's exporter stores the module of a node, and the path of the encoder layers in it.
SCOPES, IN_A_LAYER = "pkg.torch.onnx.name_scopes", ".encoder.layer."
_IN_A_GATE = ".lambda_"  # in the names of gate layers in both namings
_HALF = 127.5
_EPSILON = float(np.finfo(np.float32).eps)  # smallest scale, as in torchao
_CONSTANTS = {
    "int8_half": np.array(_HALF, np.float32),
    "int8_epsilon": np.array(_EPSILON, np.float32),
    "int8_lowest": np.array(-128, np.float32),
    "int8_highest": np.array(127, np.float32),
    "int8_shift": np.array(128, np.float32),
    "int8_zero": np.array(128, np.uint8),
    "int8_last": np.array([-1], np.int64),
}


def to_int8(graph: onnx.GraphProto) -> int:
    """Replaces float matrix products of the encoder layers by int8 ones, in place; returns the number of replacements.

    Products of gates, pooler and classifier stay in float.

    Args:
        graph: graph from torch's exporter, of a model whose context path, if it has one, was folded (`fold_context`).
    """
    weights = {constant.name: constant for constant in graph.initializer}
    chosen = [node for node in graph.node if _multiplies_tokens(node, weights)]
    assert chosen, "torch's exporter has changed the names of modules"
    replaced = {id(node) for node in chosen}
    quantized: set[str] = set()  # inputs that already have quantizing nodes; several layers can share an input
    nodes = []
    for node in graph.node:
        if id(node) not in replaced:
            nodes.append(node)
            continue
        values, weight = node.input
        if values not in quantized:
            quantized.add(values)
            nodes += _quantize(values)
        scale, matrix = _quantized_weight(numpy_helper.to_array(weights[weight]))
        graph.initializer.append(numpy_helper.from_array(matrix, f"{weight}_int8"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{weight}_scale"))
        nodes += _multiply(values, weight, node.output[0])
    used = {name for node in nodes for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    kept += [numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items()]
    for field, entries in ((graph.node, nodes), (graph.initializer, kept)):
        entries = list(entries)
        del field[:]
        field.extend(entries)
    del graph.value_info[:]  # the exporter stores wrong shapes for constants that it has transposed
    return len(chosen)


def _multiplies_tokens(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> bool:
    scopes = _scopes(node)
    if node.op_type != "MatMul" or IN_A_LAYER not in scopes or _IN_A_GATE in scopes or node.input[1] not in weights:
        return False
    shape = weights[node.input[1]].dims
    return len(shape) == 2 and shape[1] > 1


def _scopes(node: onnx.NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")


def _quantized_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scales (out), and the matrix (in, out) as uint8 with the zero point 128."""
    scale = np.maximum(np.abs(weight).max(0) / np.float32(_HALF), np.float32(_EPSILON)).astype(np.float32)
    steps = np.rint(weight * (np.float32(1) / scale)).clip(-128, 127)
    return scale, (steps + 128).astype(np.uint8)


def _quantize(values: str) -> list[onnx.NodeProto]:
    """Returns nodes that quantize float values, with one scale per token."""
    steps = [
        ("Abs", [values], "magnitude", {}),
        ("ReduceMax", ["magnitude", "int8_last"], "largest", {"keepdims": 1}),
        ("Div", ["largest", "int8_half"], "unbounded", {}),
        ("Max", ["unbounded", "int8_epsilon"], "scale", {}),
        ("Reciprocal", ["scale"], "inverse", {}),
        ("Mul", [values, "inverse"], "scaled", {}),
        ("Round", ["scaled"], "rounded", {}),
        ("Clip", ["rounded", "int8_lowest", "int8_highest"], "clipped", {}),
        ("Add", ["clipped", "int8_shift"], "shifted", {}),
        ("Cast", ["shifted"], "int8", {"to": onnx.TensorProto.UINT8}),
    ]
    return _chain(values, {values, *_CONSTANTS}, steps)


def _multiply(values: str, weight: str, output: str) -> list[onnx.NodeProto]:
    """Returns nodes that multiply quantized values by a quantized weight."""
    given = {f"{values}_int8", f"{values}_scale", f"{weight}_int8", f"{weight}_scale", "int8_zero", output}
    steps = [
        ("MatMulInteger", [f"{values}_int8", f"{weight}_int8", "int8_zero", "int8_zero"], "sums", {}),
        ("Cast", ["sums"], "products", {"to": onnx.TensorProto.FLOAT}),
        ("Mul", ["products", f"{values}_scale"], "per_token", {}),
        ("Mul", ["per_token", f"{weight}_scale"], output, {}),
    ]
    return _chain(output, given, steps)


def _chain(prefix: str, given: set[str], steps: list) -> list[onnx.NodeProto]:
    """Returns an ONNX node for each step (operator, inputs, output, attributes).

    Names of tensors become f"{prefix}_{name}", except the names in `given`.
    """

    def named(name: str) -> str:
        return name if name in given else f"{prefix}_{name}"

    return [
        helper.make_node(kind, [named(one) for one in inputs], [named(output)], name=f"{named(output)}_node", **more)
        for kind, inputs, output, more in steps
    ]
