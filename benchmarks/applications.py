"""Times the prediction of aspects: `python -m benchmarks.applications --model runs/demo --out DIR`.

A row is one of 120 bundled reviews of the test split with an aspect. The implementations are `Predictor` in its
precisions, the exported file in other runtimes, and the pipeline of transformers that classifies pairs of text and
aspect with a BERT of MiniLM's size. They run interleaved in one process. `Predictor` makes its own batches, the others
get batches of 64 rows that are sorted by length. An implementation whose library is missing is left out.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from qacg_models.errors import InputError
from qacg_models.utils.machine import load_libraries, quiet

from benchmarks import records
from benchmarks.command import add_common_options, exit_status
from benchmarks.measure import timing
from benchmarks.table import markdown
from benchmarks.targets.kinds import print_results
from benchmarks.targets.performance import TARGETS

BATCH = 64
PRECISIONS = ("float32", "bfloat16", "int8")
INSTALL = "pip install onnx onnxruntime onnxscript openvino"
# Predicts all rows and returns their labels; and the library, its version and precision.
Application = tuple[Callable[[], object], str]


class Work:
    """The model, the rows, and what the implementations share."""

    def __init__(self, model: Path, texts: int, threads: int, folder: str) -> None:
        from qacg_models.sentiment.dataset import load_data, sample_reviews
        from qacg_models.sentiment.options import DataOptions
        from qacg_models.sentiment.predictor import examples_of
        from qacg_models.sentiment.trained_model import load_trained

        self.load = partial(load_trained, model, threads=threads)
        self.trained, self.threads, self.folder = self.load(), threads, Path(folder)
        reviews = load_data(sample_reviews(), ("test",), DataOptions(wide=True)).splits["test"]
        self.texts = [*dict.fromkeys(row.sentence for row in reviews)][:texts]
        self.rows = examples_of(self.trained, self.texts)

    def in_package(self, precision: str) -> Application:
        from qacg_models.sentiment.predictor import Predictor

        predictor, frame = Predictor(self.load(precision=precision)), pd.DataFrame({"text": self.texts})

        def run() -> np.ndarray:
            return predictor.predict(frame)["label"].to_numpy()

        return run, f"torch {torch.__version__}, {precision}"

    def exported(self, precision: str) -> Path:
        """Path of the exported file; the first call for a precision writes it."""
        from qacg_models.sentiment.export import export

        file = self.folder / f"{precision}.onnx"
        if not file.exists():
            export(self.load(), file, self.rows[:1], int8=precision == "int8")
        return file

    def _of_file(self, infer: Callable, ran: str) -> Application:
        """`infer` maps the inputs of a batch to logits."""
        from qacg_models.sentiment.encoding import PaddingCollator

        pad, names = PaddingCollator(self.trained.tokenizer.pad_token_id), np.array(self.trained.task.labels)

        def run() -> np.ndarray:
            features, found = self.trained.features(self.rows), np.empty(len(self.rows), dtype=int)
            order = np.argsort([len(one["input_ids"]) for one in features], kind="stable")
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                batch = pad([features[row] for row in chosen])
                found[chosen] = infer({name: values.numpy() for name, values in batch.items()}).argmax(-1)
            return names[found]

        return run, ran

    def in_onnxruntime(self, precision: str) -> Application:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(self.exported(precision), options, providers=["CPUExecutionProvider"])
        ran = f"onnxruntime {onnxruntime.__version__}, {precision}"
        return self._of_file(lambda inputs: session.run(None, inputs)[0], ran)

    def in_openvino(self, precision: str, **hints: str) -> Application:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": self.threads, **hints}
        compiled = openvino.Core().compile_model(self.exported(precision), "CPU", settings)
        computes = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        ran = f"openvino {openvino.__version__.partition('-')[0]}, {computes}"
        return self._of_file(lambda inputs: compiled(inputs)[0], f"{ran} and int8" if precision == "int8" else ran)

    def in_pipeline(self, dtype: str) -> Application:
        """Pairs of text and aspect. The classifier on top is not trained, which does not change the time."""
        import transformers
        from qacg_models.checkpoints.files import located

        options = {"num_labels": len(self.trained.task.labels), "dtype": dtype}
        with quiet("transformers"):
            model = transformers.BertForSequenceClassification.from_pretrained(located("minilm"), **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(located("minilm"))
        classify = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
        ids = tokenizer([row.sentence for row in self.rows], [row.aspect for row in self.rows])["input_ids"]
        pairs = [
            {"text": self.rows[n].sentence, "text_pair": self.rows[n].aspect} for n in np.argsort([*map(len, ids)])
        ]
        run = partial(classify, pairs, batch_size=BATCH, truncation=True, max_length=self.trained.record.max_length)
        return run, f"transformers {transformers.__version__}, {dtype}"

    def builders(self) -> dict[str, Callable[[], Application]]:
        """Functions that make the implementations, by name. The first is the one whose labels are expected."""
        found = {f"{records.OWN} {name}": partial(self.in_package, name) for name in PRECISIONS}
        for name in ("float32", "int8"):
            found[f"{records.ONNX_RUNTIME} {name}"] = partial(self.in_onnxruntime, name)
            found[f"{records.OPENVINO} {name}"] = partial(self.in_openvino, name)
            in_f32 = partial(self.in_openvino, name, INFERENCE_PRECISION_HINT="f32")
            found[f"{records.OPENVINO} {name}, hint f32"] = in_f32
        return found | {f"{records.PIPELINE} {name}": partial(self.in_pipeline, name) for name in PRECISIONS[:2]}


def measure(
    ready: dict[str, Application], source: records.Origin, effort: timing.Effort
) -> list[records.ApplicationRecord]:
    """Times the implementations, interleaved, and compares their labels with those of the first."""
    labels: dict[str, object] = {}

    def step(name: str, _turn: int) -> float:
        start = time.perf_counter()
        labels[name] = ready[name][0]()
        return time.perf_counter() - start

    contention = timing.CpuContention()
    seconds, rates = timing.interleave_in_one_state({name: partial(step, name) for name in ready}, effort)
    share, expected, found = contention.share(), labels[next(iter(ready))], []
    for name, own in seconds.items():
        times, comparable = records.Quartiles.of([1e3 * s for s in own]), isinstance(labels[name], np.ndarray)
        found.append(
            records.ApplicationRecord(
                origin=source,
                implementation=name,
                ran=ready[name][1],
                rows=len(expected),
                **times.in_ms(),
                repeats=len(own),
                cpu_contention=share,
                rows_per_second=records.rounded(1e3 * len(expected) / times.median),
                equal_labels=records.rounded((labels[name] == expected).mean()) if comparable else None,
                product_gflops=rates,
            )
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    description = "Times the prediction of aspects, by this package, other runtimes and a pipeline of transformers."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.applications", description=description)
    add_common_options(parser)
    parser.add_argument(
        "--model", type=Path, default=Path("runs/demo"), help="folder of a model (%(default)s, which qacg demo writes)"
    )
    options = parser.parse_args(arguments)
    return exit_status(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    load_libraries()
    torch.set_num_threads(options.threads)
    source = records.origin()
    print(source, flush=True)
    texts, rounds = (20, 2) if options.quick else (120, 7)
    effort, ready = timing.Effort(seconds=0, fewest_rounds=rounds, most_rounds=rounds, warmup_rounds=1), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in Work(options.model, texts, options.threads, folder).builders().items():
            try:
                ready[name] = build()
            except (ImportError, InputError) as error:
                install = f"; run {INSTALL}" if isinstance(error, ImportError) else ""
                print(f"{name}: left out: {error}{install}", flush=True)
        measured = measure(ready, source, effort)
    name = "applications-quick" if options.quick else "applications"
    records.Writer(options.out, name, source).add(measured)
    print(markdown(measured))
    if source.has_amx:
        print_results([target.judge(records.OWN, measured) for target in TARGETS["applications"]], measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
