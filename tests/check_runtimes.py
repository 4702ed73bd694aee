"""`make check-runtimes`: the exported demo model in runtimes of ONNX files, whose table is in docs/how-to/export.md.

Each runtime is installed, with its dependencies, into a folder of its own, and runs in a process without this package
and torch. The folders are kept between calls. Node's runtimes need node and npm.
"""

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from qacg_models.sentiment.example import Example
    from qacg_models.sentiment.export import Check
    from qacg_models.sentiment.trained_model import TrainedModel

FOLDER = Path(__file__).resolve().parent.parent / "build" / "runtimes"
ROWS = 300
Inputs = dict[str, np.ndarray]
Run = Callable[[Path, list[Inputs]], list[np.ndarray]]  # runs a file on batches, and returns the logits of each


class Runtime(NamedTuple):
    """A runtime: its packages of PyPI, or one of npm, with versions, and the function that runs a file."""

    packages: tuple[str, ...]
    run: Run
    npm: bool = False

    @property
    def folder(self) -> Path:
        return FOLDER / "+".join(self.packages)

    def install(self) -> None:
        """Installs the packages, unless they are there; raises OSError or CalledProcessError."""
        if (self.folder / "ready").exists():
            return
        pip = [sys.executable, "-m", "pip", "install", "--upgrade", "--target", self.folder]
        npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", self.folder]
        subprocess.run([*(npm if self.npm else pip), *self.packages], check=True, capture_output=True, text=True)
        (self.folder / "ready").touch()


def onnxruntime(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return [session.run(["logits"], inputs)[0] for inputs in batches]


def quantized(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(file, made := file.with_name("quantized.onnx"))
    return onnxruntime(made, batches)


def openvino(file: Path, batches: list[Inputs], **settings: str) -> list[np.ndarray]:
    import openvino

    model = openvino.Core().compile_model(file, "CPU", settings)
    return [model(inputs)[0] for inputs in batches]


def openvino_in_float32(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    return openvino(file, batches, INFERENCE_PRECISION_HINT="f32")


def tract(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    import tract

    model = tract.onnx().load(file).into_model().into_runnable()
    return [model.run([*inputs.values()])[0].to_numpy() for inputs in batches]


def iree(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    import iree.compiler.tools.import_onnx.__main__ as importer
    from iree import compiler, runtime

    importer.main(importer.parse_arguments([str(file), "-o", str(graph := file.with_suffix(".mlir"))]))
    options = ["--iree-llvmcpu-target-cpu=host"]
    code = compiler.compile_file(str(graph), input_type="onnx", target_backends=["llvm-cpu"], extra_args=options)
    module = runtime.load_vm_flatbuffer(code, driver="local-task")
    function = next(getattr(module, name) for name in module.vm_module.function_names if "$" not in name)
    return [function(*inputs.values()).to_host() for inputs in batches]


def reference(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(str(file))
    return [session.run(["logits"], inputs)[0] for inputs in batches]


def mnn(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    import MNN

    made = file.with_suffix(".mnn")
    command = [sys.executable, "-m", "MNN.tools.mnnconvert", "-f", "ONNX", "--modelFile", file, "--MNNModel", made]
    subprocess.run([*command, "--bizCode", "qacg"], check=True)
    module = MNN.nn.load_module_from_file(str(made), list(batches[0]), ["logits"])

    def run(inputs: Inputs) -> np.ndarray:
        given = []
        for array in inputs.values():
            given.append(MNN.expr.placeholder(list(array.shape), MNN.expr.NCHW, MNN.expr.int))
            given[-1].write(array.astype(np.int32).ravel().tolist())
        return np.array(module.forward(given)[0].read())

    return [run(inputs) for inputs in batches]


def tvm(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    module = tvm.compile(from_onnx(onnx.load(file)), "llvm")
    machine = tvm.relax.VirtualMachine(module, tvm.cpu())
    return [machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy() for inputs in batches]


_NODE = """
const { readFileSync, writeFileSync } = require("node:fs");
const [folder, name, file, given, output] = process.argv.slice(2);
const { InferenceSession, Tensor } = require("node:module").createRequire(folder + "/")(name);
(async () => {
  const session = await InferenceSession.create(readFileSync(file)), found = [];
  for (const inputs of JSON.parse(readFileSync(given, "utf-8"))) {
    const tensor = ({ shape, values }) => new Tensor("int64", BigInt64Array.from(values, BigInt), shape);
    const { logits } = await session.run(
      Object.fromEntries(Object.entries(inputs).map(([key, one]) => [key, tensor(one)])),
    );
    found.push(Array.from({ length: logits.dims[0] }, (_, row) => Array.from(logits.data).slice(
      row * logits.dims[1], (row + 1) * logits.dims[1])));
  }
  writeFileSync(output, JSON.stringify(found));
})();
"""


def in_node(package: str) -> Run:
    def run(file: Path, batches: list[Inputs]) -> list[np.ndarray]:
        script, given, output = (file.with_name(name) for name in ("run.cjs", "inputs.json", "logits.json"))
        script.write_text(_NODE)
        content = [
            {name: {"shape": array.shape, "values": array.ravel().tolist()} for name, array in inputs.items()}
            for inputs in batches
        ]
        given.write_text(json.dumps(content))
        folder = os.environ["PYTHONPATH"]
        subprocess.run(["node", script, folder, package, file, given, output], check=True)
        return [np.array(rows, dtype=np.float32) for rows in json.loads(output.read_text())]

    return run


# Packages with versions. The oldest ONNX Runtime is the oldest that reads the file's IR version and opset.
RUNTIMES = {
    "ONNX Runtime, oldest": Runtime(("onnxruntime==1.20.1",), onnxruntime),
    "ONNX Runtime, newest": Runtime(("onnxruntime==1.32.0",), onnxruntime),
    "ONNX Runtime, quantize_dynamic": Runtime(("onnxruntime==1.32.0", "onnx==1.23.2"), quantized),
    "ONNX Runtime for Node": Runtime(("onnxruntime-node@1.30.0",), in_node("onnxruntime-node"), npm=True),
    "ONNX Runtime Web, in Node": Runtime(("onnxruntime-web@1.30.0",), in_node("onnxruntime-web"), npm=True),
    "OpenVINO": Runtime(("openvino==2026.4.1",), openvino),
    "OpenVINO, f32": Runtime(("openvino==2026.4.1",), openvino_in_float32),
    "tract": Runtime(("tract==0.23.9",), tract),
    "IREE": Runtime(("iree-base-runtime==3.13.0", "iree-base-compiler==3.13.0", "onnx==1.23.2"), iree),
    "onnx, reference": Runtime(("onnx==1.23.2",), reference),
    "MNN": Runtime(("MNN==3.6.1",), mnn),
    "TVM": Runtime(("apache-tvm==0.27.0.post1", "onnx==1.23.2"), tvm),
}


class Found(NamedTuple):
    """What a runtime computed: the comparison with the model, and the largest difference between two batches."""

    check: "Check"
    batches: float

    @property
    def cells(self) -> list[str]:
        check = self.check
        precision = "float32" if check.largest <= check.limits.probability else "lower"
        return [f"{check.largest:.1e}", f"{check.rows - check.equal} of {check.rows}", f"{self.batches:.1e}", precision]


def outcome(runtime: Runtime, trained: "TrainedModel", file: Path, rows: Sequence["Example"]) -> Found:
    """Runs an exported file of a model in an installed runtime, on examples in batches, and on every eighth alone."""
    import onnx
    from qacg_models.sentiment.export import compare
    from qacg_models.sentiment.trained_model import probabilities_of

    names = [one.name for one in onnx.load(file).graph.input]  # some runtimes take inputs in their order
    batches: list[Inputs] = []

    def record(inputs: Inputs) -> np.ndarray:
        batches.append({name: inputs[name] for name in names})
        return np.zeros((len(inputs["input_ids"]), len(trained.task.labels)))

    compare(trained, rows, record)
    alone = []
    for inputs in batches:
        for row in range(0, len(inputs["input_ids"]), 8):
            length = int(inputs["attention_mask"][row].sum())
            alone.append({name: array[row : row + 1, ...][..., :length] for name, array in inputs.items()})
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(file, folder)
        given, output = Path(folder, "inputs.pickle"), Path(folder, "logits.pickle")
        given.write_bytes(pickle.dumps(batches + alone))
        name = next(name for name, one in RUNTIMES.items() if one == runtime)
        command = [sys.executable, __file__, "--run", name, copy, given, output]
        environment = {**os.environ, "PYTHONPATH": str(runtime.folder)}
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        logits = pickle.loads(output.read_bytes())
    in_batches, single = logits[: len(batches)], np.concatenate(logits[len(batches) :])
    same = np.concatenate([found[::8] for found in in_batches])
    one, other = (probabilities_of(found, trained.calibration.temperatures) for found in (single, same))
    left = iter(in_batches)
    return Found(compare(trained, rows, lambda inputs: next(left)), float(np.abs(one - other).max()))


def last_line(error: Exception) -> str:
    """Returns the line of a failed command that names the error."""
    output = f"{error.stdout}\n{error.stderr}" if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("runs/demo"), help="trained model (default: %(default)s)")
    parser.add_argument("--only", choices=RUNTIMES, action="append", help="a runtime, may be repeated (default: all)")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, file, given, output = arguments.run
        found = RUNTIMES[name].run(Path(file), pickle.loads(Path(given).read_bytes()))
        Path(output).write_bytes(pickle.dumps(found))
        return

    from qacg_models.sentiment.export import export, rows_at_hand, with_longest
    from qacg_models.sentiment.trained_model import load_trained

    trained = load_trained(arguments.model)
    rows, _ = rows_at_hand(trained, arguments.model, ROWS)
    rows = with_longest(rows, trained.record.max_length)
    FOLDER.mkdir(parents=True, exist_ok=True)
    export(trained, file := FOLDER / "model.onnx", rows)
    columns = ("runtime", "packages", "largest difference", "labels changed", "dependence on the batch", "precision")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in arguments.only or RUNTIMES:
        runtime = RUNTIMES[name]
        try:
            runtime.install()
            cells = outcome(runtime, trained, file, rows).cells
        except (OSError, subprocess.CalledProcessError) as error:
            cells = [last_line(error)]
        print(f"| {' | '.join([name, ', '.join(runtime.packages), *cells])} |", flush=True)


if __name__ == "__main__":
    main()
