"""The ONNX file of a classifier: tracing, writing, int8 linear layers, and running the file.

Int8 linear layers have the arithmetic of `qacg predict --int8` (`sentiment/trained_model.py`). Weights have one scale
per output channel. Inputs have one scale per token, so a prediction does not depend on the rest of its batch. A scale
is the largest absolute value, divided by 127.5. Scaled values are rounded and clamped to [-128, 127].

Inputs and weights are stored as unsigned numbers with the zero point 128. On processors without VNNI, sums of products
of unsigned and signed numbers saturate. Sums of products of unsigned numbers are exact on every processor.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from qacg_models.errors import InputError
from qacg_models.sentiment.trained_model import TrainedModel
from qacg_models.utils.machine import quiet

OUTPUT = "logits"
RUNTIME = f"onnxruntime {onnxruntime.__version__}"
# Maximum size of the float32 weights: a protobuf message, with the graph, has at most 2 GiB.
MOST_BYTES = 2**31 - 2**26
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


Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class TracedModel:
    """The content of an exported file.

    Attributes:
        program: maps int64 input_ids, attention_mask and token_type_ids, (B, L) each, and, if the model has contexts,
            int64 context_ids (B,), to float32 logits (B, classes).
        example: the inputs of the trace, by name.
        dimensions: dynamic dimensions of the inputs, by name of the input and index of the dimension.
        metadata: labels, contexts and other values that a server needs, each as JSON; see `metadata_of`.
    """

    program: ExportedProgram
    example: dict[str, Tensor]
    dimensions: dict[str, dict[int, Dim]]
    metadata: dict[str, str]


class _Logits(nn.Module):
    """A classifier with the inputs of an exported file, and only the logits as output."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        context_ids: Tensor | None = None,
    ) -> Tensor:
        context = {} if context_ids is None else {"context_ids": context_ids}
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(**inputs, **context, return_dict=True).logits


def trace(trained: TrainedModel) -> TracedModel:
    """Traces a copy of a trained model with eager attention, which needs no operators of this package."""
    model, config = copy.deepcopy(trained.model).eval(), trained.model.config
    model.set_attn_implementation("eager")
    batch, length = Dim("batch", min=1), Dim("length", min=1, max=config.max_position_embeddings)
    tokens = torch.ones(2, min(7, config.max_position_embeddings), dtype=torch.long)
    example = {name: tokens.clone() for name in ("input_ids", "attention_mask")}
    example["token_type_ids"] = torch.zeros_like(tokens)
    dimensions: dict[str, dict[int, Dim]] = {name: {0: batch, 1: length} for name in example}
    if hasattr(config, "contexts"):
        example["context_ids"], dimensions["context_ids"] = torch.zeros(2, dtype=torch.long), {0: batch}
    with torch.no_grad(), quiet("torch.onnx"):
        program = torch.export.export(_Logits(model), (), kwargs=example, dynamic_shapes=dimensions, strict=False)
    return TracedModel(program, example, dimensions, metadata_of(trained))


def metadata_of(trained: TrainedModel) -> dict[str, str]:
    """Returns the metadata of an exported file, each value as JSON.

    - labels: in the order of the logits.
    - contexts: in the order of their ids.
    - context_standalone: true if the model gets a context by its id only; false if the second segment of the input is
      the name of the context.
    - max_length: maximum number of tokens of an input.
    - pad_token_id: token id of padding.
    - temperatures: divisors of the logits before the softmax. Either one for all rows, or one per label: the logits of
      a row are divided by the temperature of the label with the highest logit.
    """
    facts = {
        "labels": trained.task.labels,
        "contexts": trained.contexts,
        "context_standalone": getattr(trained.model.config, "context_standalone", False),
        "max_length": trained.record.max_length,
        "pad_token_id": trained.tokenizer.pad_token_id,
        "temperatures": trained.calibration.temperatures,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


def write(traced: TracedModel, path: Path) -> None:
    """Writes a traced model to the file `path`.

    Raises:
        InputError: the weights are larger than MOST_BYTES.
    """
    _graph(traced).save(path, external_data=False)


def write_int8(traced: TracedModel, path: Path) -> None:
    """Writes a traced model to the file `path`, with int8 linear layers in the encoder (`to_int8`).

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
            f"model: expected weights of at most {MOST_BYTES / 2**30:.2f} GiB for one ONNX file, got"
            f" {size / 2**30:.2f} GiB. Train a smaller model."
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
