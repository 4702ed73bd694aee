"""int8 inference: predictions near float32, which layers are quantized, and unsupported machines."""

import importlib.metadata
import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from errors import error_cases, raises
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.layers.context import fold_context
from qacg_models.sentiment import export as exporting, trained_model as int8
from qacg_models.sentiment.export import metadata_of, to_int8, trace
from qacg_models.sentiment.trained_model import load_trained
from test_export import SERVER
from torch import nn
from untrained import OWN, TEXTS, write_model

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # Width 32, because with 16 the rounding errors do not average out.
    return write_model(tmp_path_factory.mktemp("int8") / "model", layers=1, heads=4)


@needs_torchao
@pytest.mark.parametrize("kind", ["qacg-bert", "bert"])
def test_pickled_int8_model_predicts_the_same(kind, tmp_path):
    ask = AspectSentiment.from_pretrained(write_model(tmp_path / "model", kind=kind, layers=1), precision="int8")
    again = pickle.loads(pickle.dumps(ask))
    assert of_int8(again.trained.model) == of_int8(ask.trained.model) != set()
    assert again(list(TEXTS[:3])) == ask(list(TEXTS[:3]))


def probabilities(answers):
    return np.array([list(one.probabilities.values()) for text in answers for one in text])


def of_int8(model):
    """Returns the names of modules with an int8 weight."""
    return {
        name.partition("layer.0.")[2]
        for name, module in model.named_modules()
        if type(getattr(module, "weight", None)).__name__ == "Int8Tensor"
    }


DENSE = {"attention.output.dense", "intermediate.dense", "output.dense"}
WHICH = {
    "qacg-bert": {*DENSE, "fold"},
    "cg-bert": {*DENSE, "fold"},
    "aspect-bert": {*DENSE, *(f"attention.self.{name}" for name in ("query", "key", "value"))},
    "bert": {*DENSE, *(f"attention.self.{name}" for name in ("query", "key", "value"))},
}


@needs_torchao
@pytest.mark.parametrize("kind", WHICH)
def test_int8_predictions_are_near_float32(kind, tmp_path):
    folder = write_model(tmp_path / "model", layers=1, heads=4, kind=kind)
    expected = probabilities(AspectSentiment.from_pretrained(folder)(list(TEXTS[:3])))
    ask = AspectSentiment.from_pretrained(folder, precision="int8")
    assert of_int8(ask.trained.model) == WHICH[kind]
    found = probabilities(ask(list(TEXTS[:3])))
    # Eight bits are precise to half a percent of the largest factor; large random weights double it.
    assert 0 < np.abs(found - expected).max() < 0.1
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-12)


@needs_torchao
def test_int8_layer_matches_its_formula_per_token():
    torch.manual_seed(0)
    layer = nn.Linear(40, 24)
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    tokens = torch.randn(9, 40) * torch.logspace(-3, 3, 9)[:, None]
    int8.load_quantizer()(layer)

    def rounded(x):
        """Rounds each row to multiples of its largest absolute value divided by 127.5."""
        step = x.abs().amax(-1, keepdim=True) / 127.5
        return (x / step).round().clamp(-128, 127) * step

    with torch.inference_mode():
        found = layer(tokens)
        alone = torch.cat([layer(token[None]) for token in tokens])
    torch.testing.assert_close(alone, found, rtol=0, atol=0)
    exact = rounded(tokens.double()) @ rounded(weight).T + bias
    size = tokens.double().norm(dim=-1, keepdim=True)
    error = (found.double() - exact).abs() / size
    # The median, because values between two steps may be rounded to either in float32 and float64.
    assert error.median() < 1e-5 and error.max() < 2e-3, error
    off = (found.double() - (tokens.double() @ weight.T + bias)).abs() / size
    assert off.median() > 1e-4, "a float32 product would pass this test otherwise"


@needs_torchao
def test_int8_flag_is_used_and_reported(model, tmp_path, capsys):
    assert main(["predict", str(model), "--text", TEXTS[0], "--precision=int8"]) == 0
    expected = AspectSentiment.from_pretrained(model, precision="int8")(TEXTS[0])
    output = capsys.readouterr().out
    for answer in expected:
        first = next(iter(answer.probabilities.values()))
        assert re.search(rf"{answer.aspect} +{answer.label} +{first:.3f}", output)
    data = tmp_path / "asked.csv"
    rows = [f'"{text}",{aspect},good\n' for text in TEXTS[:3] for aspect in OWN.aspects]
    data.write_text("text,aspect,label\n" + "".join(rows))
    assert main(["evaluate", str(model), "--data", str(data), "--precision=int8"]) == 0
    assert "predicted in int8\n" in capsys.readouterr().out


@error_cases(
    {
        "InputError: int8: expected the package torchao, got none; run pip install 'torchao>=0.18'": None,
        "InputError: int8: expected torchao 0.18 or newer, got 0.9.1+cpu; run pip install 'torchao>=0.18'": "0.9.1+cpu",
        "InputError: int8: torchao 0.18.0 is incompatible with torch": "0.18.0",
    }
)
def test_int8_without_a_fit_torchao_raises(model, monkeypatch, error, given):
    def version(name):
        if given is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return given

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with raises(error):
        load_trained(model, precision="int8")


def test_int8_on_a_gpu_raises(model):
    with raises("InputError: int8: expected a model on the device cpu, got one on meta"):
        trained = load_trained(model)
        trained.model.to("meta")
        int8.in_int8(trained)


class Saturating(nn.Module):
    """A layer of ones on a CPU that adds two 8-bit products in 16 bits and saturates."""

    def forward(self, x):
        pairs = (x * 127).long().unflatten(-1, (-1, 2)) * 255
        return pairs.sum(-1).clamp(-(2**15), 2**15 - 1).sum(-1, keepdim=True).expand_as(x) / (127 * 255)


def test_int8_saturating_cpu_raises():
    def quantize(layer):
        layer.forward = Saturating().forward

    with raises("InputError: int8: expected a CPU ... 32...instead of 64; use another precision"):
        int8._check_products(quantize)
    int8._check_products(lambda layer: None)


@pytest.mark.full
@needs_torchao
def test_int8_without_vnni_raises(model):
    """The test limits oneDNN to AVX2 on a CPU with VNNI. On other CPUs torch may select exact int8 products."""
    cpu_info = Path("/proc/cpuinfo")
    if not cpu_info.is_file() or "vnni" not in cpu_info.read_text(encoding="utf-8"):
        pytest.skip("this CPU has no VNNI")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") or not torch.backends.mkldnn.is_available():
        pytest.skip("not an x86, or torch is built without oneDNN")
    command = [sys.executable, "-m", "qacg_models.cli", "predict", str(model), "--text", TEXTS[0], "--precision=int8"]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (output.returncode, output.stdout) == (2, "")
    assert "int8: expected a CPU with instructions" in output.stderr and output.stderr.count("\n") == 1


@pytest.mark.full
def test_int8_export_multiplies_in_int8(model, tmp_path, monkeypatch, capsys):
    import onnx

    assert main(["export", str(model), "--output", str(tmp_path / "model.onnx"), "--int8"]) == 0
    output = capsys.readouterr().out
    assert "allowed 0.5\nequal labels: " in output and "required 97%" in output
    assert 1e-3 < float(re.search(r"largest difference of a probability: (\S+),", output)[1]) < 0.25
    graph = onnx.load(tmp_path / "model.onnx").graph
    # The folded projections and the three dense layers; no gate, no classifier.
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 4
    weights = [tuple(constant.dims) for constant in graph.initializer if constant.data_type == onnx.TensorProto.UINT8]
    assert sorted(shape for shape in weights if shape) == sorted([(32, 160), (32, 32), (32, 24), (24, 32)])
    (tmp_path / "mine").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    exec(SERVER, found := {})
    assert found["metadata"].keys() == metadata_of(load_trained(model)).keys(), "no entry that is not JSON"
    ask = AspectSentiment.from_pretrained(model)
    expected = [ask(text, aspects=[aspect])[0] for text, aspect in found["questions"]]
    probabilities = [list(one.probabilities.values()) for one in expected]
    np.testing.assert_allclose(found["probabilities"], probabilities, rtol=0, atol=0.25)


@pytest.mark.full
def test_int8_export_keeps_gates_of_heads_in_float(tmp_path):
    fields = {"lambda_per_head": True}
    trained = load_trained(write_model(tmp_path / "model", kind="cg-bert", layers=1, heads=4, fields=fields))
    fold_context(trained.model)
    nodes = to_int8(trace(trained).model_proto).graph.node
    # The folded projections and the three dense layers; no gate, no classifier.
    assert sum(node.op_type == "MatMulInteger" for node in nodes) == 4


@needs_torchao
def test_int8_node_equals_torchao():
    """The tokens' values have very different magnitudes; those of one token are all 0."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    torch.manual_seed(0)
    layer = nn.Linear(40, 24, bias=False)
    tokens = torch.randn(3, 9, 40) * torch.logspace(-3, 3, 9)[:, None]
    tokens[0, 0] = 0
    weight = numpy_helper.from_array(layer.weight.detach().numpy().T.copy(), "weight")
    inputs, outputs = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 9, size]) for n, size in (("x", 40), ("y", 24))
    )
    node = helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")
    node.metadata_props.add(key=exporting.SCOPES, value=f"model{exporting.IN_A_LAYER}0")
    graph = helper.make_graph([node], "g", [inputs], [outputs], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = to_int8(model)
    assert sum(node.op_type == "MatMulInteger" for node in model.graph.node) == 1
    onnx.checker.check_model(model, full_check=True)
    assert "weight" not in {constant.name for constant in model.graph.initializer}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], {"x": tokens.numpy()})
    int8.load_quantizer()(layer)
    with torch.inference_mode():
        expected = layer(tokens).numpy()
    size = np.abs(expected).max(-1, keepdims=True) + 1e-30
    assert (np.abs(found - expected) / size).max() < 1e-5
