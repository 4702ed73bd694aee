"""Export of a classifier to an ONNX file: the graph, int8 linear layers, and the comparison with the model.

Int8 linear layers have the arithmetic of the precision int8 (`sentiment/trained_model.py`). Weights have one scale
per output channel. Inputs have one scale per token, so a prediction does not depend on the rest of its batch. A scale
is the largest absolute value, divided by 127.5. Scaled values are rounded and clamped to [-128, 127].

Inputs and weights are stored as unsigned numbers with the zero point 128. On processors without VNNI, sums of products
of unsigned and signed numbers saturate. Sums of products of unsigned numbers are exact on every processor.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch.export import Dim

from qacg_models.errors import InputError
from qacg_models.layers.context import fold_context, has_context_layers
from qacg_models.sentiment.dataset import file_digest, load_data, load_file, sample_directory
from qacg_models.sentiment.encoding import PaddingCollator, has_token_types
from qacg_models.sentiment.example import SENTIHOOD, Example
from qacg_models.sentiment.predictor import examples_of
from qacg_models.sentiment.record import RUN_NAME, read_run_file
from qacg_models.sentiment.trained_model import TrainedModel, probabilities_of
from qacg_models.utils.files import explain_write_errors, staged_file
from qacg_models.utils.machine import cpu_threads, quiet
from qacg_models.utils.text import counted

OUTPUT = "logits"
RUNTIME = f"onnxruntime {onnxruntime.__version__}"
LARGEST_BATCH = 32  # maximum number of examples in a batch of the comparison
# Maximum size of the float32 weights: a protobuf message, with the graph, has at most 2 GiB.
MOST_BYTES = 2**31 - 2**26


class Limits(NamedTuple):
    """The allowed differences between a file and its model."""

    probability: float  # maximum difference of a probability
    labels: float  # minimum share of examples for which file and model predict the same label, from 0 to 1


EXACT = Limits(probability=1e-5, labels=1.0)
# Int8 changes labels with almost equal probabilities. For MiniLM on SentiHood, 1 % of the labels changed; probabilities
# differed by 0.006 on average and by at most 0.41, in 400 examples.
INT8 = Limits(probability=0.5, labels=0.97)


@dataclass(frozen=True)
class Check:
    """The comparison of a file with its model on `rows` examples."""

    rows: int
    lengths: tuple[int, int]  # the smallest and the largest number of tokens of an example
    largest: float  # the largest difference of a probability
    equal: int  # number of examples for which file and model predict the same label
    limits: Limits = EXACT

    @property
    def passed(self) -> bool:
        """Whether labels and probabilities are within the limits; False if a probability is NaN."""
        return self.equal >= self.limits.labels * self.rows and self.largest <= self.limits.probability

    def __str__(self) -> str:
        required = f"{self.limits.labels:.0%}" if self.limits.labels < 1 else "all"
        return (
            f"run by {RUNTIME}: {counted(self.rows, 'example')} of {self.lengths[0]} to {self.lengths[1]} tokens, "
            f"in batches of at most {LARGEST_BATCH}\n"
            f"largest difference of a probability: {self.largest:.2g}, allowed {self.limits.probability:g}\n"
            f"equal labels: {self.equal:,} of {self.rows:,}, required {required}"
        )


def export(
    trained: TrainedModel,
    output: Path,
    rows: Sequence[Example],
    *,
    int8: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Check:
    """Exports a model to one ONNX file, which appears as `output`, or replaces it, only if the comparison passes.

    File and model are compared on `rows`, at least one, and on an example of the maximum length. With `int8`, the
    context path of `trained` is folded in place, as for the precision int8. `say` is called before each step.
    """
    if trained.precision != "float32":
        raise InputError(f"trained: expected a model in float32, got one in {trained.precision}. Load it in float32.")
    if trained.model.dtype != torch.float32:
        raise InputError(f"trained: expected a model in float32, got {trained.model.dtype}. Call trained.model.float()")
    with cpu_threads(trained.record.options.threads), staged_file(output) as made:
        if int8 and has_context_layers(trained.model):
            fold_context(trained.model)
        say("tracing the model")
        graph = trace(trained).model_proto
        # The exporter stores wrong shapes for constants that it has transposed, which other programs reject.
        del graph.graph.value_info[:]
        say(f"writing onnx{' in int8' if int8 else ''}")
        with explain_write_errors(output.absolute().parent):
            onnx.save(to_int8(graph) if int8 else graph, made)
        checked = with_longest(rows, trained.record.max_length)
        say(f"comparing the file with the model on {counted(len(checked), 'example')}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        limits = INT8 if int8 else EXACT
        found = compare(trained, checked, lambda inputs: session.run([OUTPUT], dict(inputs))[0], limits)
        if not found.passed:
            made.unlink()
    return found


def compare(
    trained: TrainedModel,
    rows: Sequence[Example],
    run: Callable[[Mapping[str, np.ndarray]], np.ndarray],
    limits: Limits = EXACT,
) -> Check:
    """Compares a file with its model on at least one example, whose labels are ignored.

    `run` runs the file: it takes input arrays by name, and returns logits (B, classes).
    """
    rows = [replace(row, label=None) for row in rows]  # a batch has labels for all examples or for none
    features = trained.features(rows)
    pad = PaddingCollator(trained.tokenizer.pad_token_id)
    logits = []
    # Batches of 1, 2, 4, 8, 16, 32, 32, ... examples, which are not sorted by length, so that there is padding.
    for start, end in pairwise([0, 1, 3, 7, 15, *range(31, len(rows), LARGEST_BATCH), len(rows)]):
        if start < min(end, len(rows)):
            batch = pad(features[start:end])
            logits.append(run({name: values.numpy() for name, values in batch.items()}))
    expected = trained.probabilities(rows)
    found = probabilities_of(np.concatenate(logits), trained.calibration.temperatures)
    lengths = [len(feature["input_ids"]) for feature in features]
    return Check(
        len(rows),
        (min(lengths), max(lengths)),
        float(np.abs(found - expected).max()),
        int((found.argmax(-1) == expected.argmax(-1)).sum()),
        limits,
    )


def rows_at_hand(trained: TrainedModel, folder: Path, most: int) -> tuple[list[Example], str]:
    """Returns at most `most` evenly spaced examples to check a file on, and a description of their source.

    The examples are the dev and test rows of the training data, whose paths are in run.yaml of the model's folder, if
    the files are unchanged since training. Otherwise they are the sentences of the bundled sample with each context.
    """
    record = trained.record
    rows: list[Example] = []
    try:
        paths = read_run_file(folder / RUN_NAME)["data"]
        data = load_data(paths, ("dev", "test"), record.data_options, optional=("dev", "test"), task=record.task)
        splits = [split for split in data.files if split in record.data]
        splits = [split for split in splits if file_digest(*data.files[split]) == record.data[split].sha256]
        rows = [row for split in splits for row in data.splits[split] if row.context in trained.contexts]
        source = f"{' and '.join(splits)} of {', '.join(paths)}"
    except (InputError, KeyError, OSError):
        pass  # the files were moved or changed
    if not rows:
        sentences = dict.fromkeys(row.sentence for row in load_file(sample_directory() / "test.tsv", SENTIHOOD))
        targets = record.targets if record.task.has_targets else None
        rows, source = examples_of(trained, [*sentences], targets=targets), "sentences of the bundled sample"
    if len(rows) > most:
        rows = [rows[index * len(rows) // most] for index in range(most)]
    return rows, source


def with_longest(rows: Sequence[Example], max_length: int) -> list[Example]:
    """Returns `rows`, which must not be empty, and one more example, whose text has at least `max_length` tokens."""
    text = " ".join(row.sentence for row in rows[:max_length])
    words = text.split()
    return [*rows, replace(rows[0], sentence=" ".join(words * (max_length // len(words) + 1)), label=None)]


def trace(trained: TrainedModel) -> torch.onnx.ONNXProgram:
    """Traces a copy of a trained model with eager attention, which needs no operators of this package.

    The graph maps int64 input_ids, attention_mask and, if the model has several token types, token_type_ids, (B, L)
    each, and, if the model has contexts, int64 context_ids (B,), to float32 logits (B, classes).
    """
    size = sum(tensor.nbytes for tensor in trained.model.state_dict().values())
    if size > MOST_BYTES:
        raise InputError(
            f"model: expected weights of at most {MOST_BYTES / 2**30:.2f} GiB for one ONNX file, got"
            f" {size / 2**30:.2f} GiB. Train a smaller model."
        )
    model, config = copy.deepcopy(trained.model).eval(), trained.model.config
    model.set_attn_implementation("eager")
    batch, length = Dim("batch", min=1), Dim("length", min=1, max=config.max_position_embeddings)
    tokens = torch.ones(2, min(7, config.max_position_embeddings), dtype=torch.long)
    inputs = {name: tokens.clone() for name in ("input_ids", "attention_mask")}
    if has_token_types(config):
        inputs["token_type_ids"] = torch.zeros_like(tokens)
    dimensions: dict[str, dict[int, Dim]] = {name: {0: batch, 1: length} for name in inputs}
    if hasattr(config, "contexts"):
        inputs["context_ids"], dimensions["context_ids"] = torch.zeros(2, dtype=torch.long), {0: batch}
    options = {"output_names": [OUTPUT], "dynamo": True, "verbose": False}
    with torch.no_grad(), quiet("torch.onnx"):
        made = torch.onnx.export(model, (), kwargs=inputs, dynamic_shapes=dimensions, **options)
    assert made is not None
    made.model.metadata_props.update(metadata_of(trained))
    return made


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
    return {name: json.dumps(value, ensure_ascii=False) for name, value in trained.input_facts().items()}


# Metadata key in which torch's exporter stores the module of a node, and the path of the encoder layers in it.
SCOPES, IN_A_LAYER = "pkg.torch.onnx.name_scopes", ".encoder.layer."
_IN_A_GATE = ".lambda_"  # in the names of gate layers in both namings
_HALF = np.float32(127.5)
_EPSILON = np.finfo(np.float32).eps  # smallest scale, as in torchao
_DOMAIN = "qacg"
_HEAD = f'<domain: "{_DOMAIN}", opset_import: ["" : OPSET]>'
# A scale for each token, and the scaled values with the zero point 128.
_QUANTIZE = """
Quantize (values) => (steps, scale) {
    half = Constant <value_float = 127.5> ()
    epsilon = Constant <value_float = 1.1920928955078125e-07> ()
    lowest = Constant <value_float = -128.0> ()
    highest = Constant <value_float = 127.0> ()
    shift = Constant <value_float = 128.0> ()
    last = Constant <value_ints = [-1]> ()
    magnitude = Abs (values)
    largest = ReduceMax <keepdims = 1> (magnitude, last)
    unbounded = Div (largest, half)
    scale = Max (unbounded, epsilon)
    inverse = Reciprocal (scale)
    scaled = Mul (values, inverse)
    rounded = Round (scaled)
    clipped = Clip (rounded, lowest, highest)
    shifted = Add (clipped, shift)
    steps = Cast <to = 2> (shifted)
}
"""
_MULTIPLY = """
Multiply (steps, scale, weight, weight_scale) => (output) {
    zero = Constant <value = uint8 {128}> ()
    sums = MatMulInteger (steps, weight, zero, zero)
    products = Cast <to = 1> (sums)
    per_token = Mul (products, scale)
    output = Mul (per_token, weight_scale)
}
"""


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with int8 instead of float matrix products in the encoder layers; the argument is changed too.

    Products of gates, pooler and classifier stay in float. The graph is one of torch's exporter, of a model whose
    context path, if it has one, was folded (`fold_context`).
    """
    graph = model.graph
    weights = {constant.name: constant for constant in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    quantized: set[str] = set()  # several layers can share an input
    for node in graph.node:
        if not _multiplies_tokens(node, weights):
            nodes.append(node)
            continue
        values, weight = node.input
        parts = [f"{values}_int8", f"{values}_scale"]
        if values not in quantized:
            nodes.append(helper.make_node("Quantize", [values], parts, domain=_DOMAIN))
            quantized.add(values)
        names = [f"{weight}_int8", f"{weight}_scale"]
        graph.initializer.extend(map(numpy_helper.from_array, _quantized(weights[weight]), names))
        nodes.append(helper.make_node("Multiply", [*parts, *names], node.output, domain=_DOMAIN))
    assert quantized, "torch's exporter has changed the names of modules"
    used = {name for node in nodes for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    for field, entries in ((graph.node, nodes), (graph.initializer, kept)):
        del field[:]
        field.extend(entries)
    head = _HEAD.replace("OPSET", str(next(one.version for one in model.opset_import if not one.domain)))
    model.functions.extend(onnx.parser.parse_function(head + body) for body in (_QUANTIZE, _MULTIPLY))
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return onnx.inliner.inline_local_functions(model)


def _multiplies_tokens(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> bool:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    if node.op_type != "MatMul" or IN_A_LAYER not in scopes or _IN_A_GATE in scopes or node.input[1] not in weights:
        return False
    shape = weights[node.input[1]].dims
    return len(shape) == 2 and shape[1] > 1


def _quantized(constant: onnx.TensorProto) -> tuple[np.ndarray, np.ndarray]:
    """Returns an (in, out) weight as uint8 with the zero point 128, and its scales (out)."""
    weight = numpy_helper.to_array(constant)
    scale = np.maximum(np.abs(weight).max(0) / _HALF, _EPSILON).astype(np.float32)
    steps = np.rint(weight * (np.float32(1) / scale)).clip(-128, 127)
    return (steps + 128).astype(np.uint8), scale
