"""Speed and agreement of a trained model in float32, bfloat16 and int8 on this CPU.

Runs examples of a labelled file with `AspectSentiment` in float32, bfloat16 (autocast) and int8, and with the exported
ONNX file in float32 and int8. All runs are interleaved. A record has the examples per second, the share of labels that
are equal to float32's, and the largest difference of a probability. With one thread, seconds are CPU time, which other
processes do not lengthen. `--table` only prints the stored records.

    python -m benchmarks.precisions MODEL ... --data FOLDER/test_NLI_M.tsv --out DIR
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from qacg_models import AspectSentiment
from qacg_models.data import Example, load_file
from qacg_models.data.collators import PaddingCollator, by_length
from qacg_models.errors import InputError
from qacg_models.export import onnx_file
from qacg_models.export.check_rows import spread
from qacg_models.export.traced import trace
from qacg_models.inference.int8 import in_int8
from qacg_models.inference.trained_model import TrainedModel, load_trained, probabilities_of
from qacg_models.utils.cells import counted, markdown_table
from qacg_models.utils.provenance import now, origin

from benchmarks.command import exit_status
from benchmarks.measure.timing import CpuContention

FILE = "precisions.jsonl"
BATCH = 64
Answer = Callable[[Sequence[Example]], np.ndarray]


def answers(folder: Path, work: Path) -> dict[str, Answer]:
    """Returns, by precision, a function from examples to probabilities; writes exported files to `work`."""
    trained = load_trained(folder)
    found = {"ONNX float32": _of_file(trained, work / "float32.onnx", onnx_file.write)}
    found["ONNX int8"] = _of_file(trained, work / "int8.onnx", onnx_file.write_int8)
    ask = AspectSentiment(copy.deepcopy(trained))
    found["float32"] = _of_model(ask)
    found["bfloat16"] = _of_model(ask, torch.bfloat16)
    found["int8"] = _of_model(AspectSentiment(in_int8(trained)))
    return {name: found[name] for name in ("float32", "bfloat16", "int8", "ONNX float32", "ONNX int8")}


def _of_model(ask: AspectSentiment, autocast: torch.dtype | None = None) -> Answer:
    def answer(examples: Sequence[Example]) -> np.ndarray:
        with nullcontext() if autocast is None else torch.autocast("cpu", autocast):
            found = ask.predict_rows(examples, BATCH)
        return np.array([list(one.probabilities.values()) for one in found])

    return answer


def _of_file(trained: TrainedModel, path: Path, write: Callable) -> Answer:
    write(trace(trained), path)
    run, pad = onnx_file.load(path), PaddingCollator(trained.tokenizer.pad_token_id)

    def answer(examples: Sequence[Example]) -> np.ndarray:
        features = trained.features(examples)
        order = by_length([len(feature["input_ids"]) for feature in features])
        logits = np.empty((len(examples), trained.model.config.num_labels))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            batch = pad([features[index] for index in chosen])
            logits[chosen] = run({name: values.numpy() for name, values in batch.items()})
        return probabilities_of(logits, trained.calibration.temperatures)

    return answer


def measure(folder: Path, examples: Sequence[Example], repeats: int) -> list[dict]:
    """Measures each precision after one warm-up round and returns the records.

    Args:
        folder: folder of the trained model.
        examples: the examples.
        repeats: number of measured rounds.
    """
    with tempfile.TemporaryDirectory() as work:
        found = answers(folder, Path(work))
        given = {name: answer(examples) for name, answer in found.items()}
        seconds: dict[str, list[float]] = {name: [] for name in found}
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        contention = CpuContention()
        for _ in range(repeats):
            for name, answer in found.items():
                begun = clock()
                answer(examples)
                seconds[name].append(clock() - begun)
        contended = contention.share()
    trained = load_trained(folder)
    config = trained.model.config
    about = {
        "model": trained.title,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "examples": len(examples),
        "batch": BATCH,
        "repeats": repeats,
        "cpu_contention": None if contended is None else round(contended, 3),
    }
    float32 = given["float32"]
    return [
        about
        | {
            "precision": name,
            "examples_per_second": len(examples) / statistics.median(seconds[name]),
            "equal_labels": float((given[name].argmax(-1) == float32.argmax(-1)).mean()),
            "largest_difference": float(np.abs(given[name] - float32).max()),
        }
        | origin()
        | {"written": now()}
        for name in found
    ]


def table(records: Sequence[dict]) -> str:
    """A Markdown table of the newest record of each model, thread count and precision."""
    newest = {(*_model(one), one["precision"]): one for one in records}
    header = ["model", "computed in", "examples/s", "equal labels, %", "largest difference of a probability"]
    lines = []
    for (title, layers, hidden, threads, precision), one in newest.items():
        base = newest[title, layers, hidden, threads, "float32"]["examples_per_second"]
        name = f"{title}, {counted(layers, 'layer')} of {hidden}, {counted(threads, 'thread')}"
        speed = f"{one['examples_per_second']:,.0f} ({one['examples_per_second'] / base:.1f}x)"
        off = ["", ""]
        if precision != "float32":
            off = [f"{100 * one['equal_labels']:.1f}", f"{one['largest_difference']:.2g}"]
        lines.append([name, precision, speed, *off])
    return markdown_table(header, lines, texts=2)


def _model(record: dict) -> tuple[str, int, int, int]:
    return record["model"], record["layers"], record["hidden"], record["machine"]["threads"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precisions",
        description="Measures speed and agreement of trained models in float32, bfloat16 and int8.",
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="folders that qacg train wrote")
    parser.add_argument("--data", type=Path, metavar="FILE", help="labelled file, such as test_NLI_M.tsv")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the records file, {FILE}")
    parser.add_argument(
        "--examples",
        type=int,
        default=2000,
        metavar="N",
        help="number of examples, evenly spaced in the file (default: 2000)",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="repeats after a warm-up (default: 3)")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads of torch and onnxruntime (default: 1)"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of the stored records")
    options = parser.parse_args(arguments)
    if not options.table and (not options.models or options.data is None):
        parser.error("MODEL and --data FILE: expected both, or --table instead, got neither or only one")
    torch.set_num_threads(options.threads)
    return exit_status(lambda: _run(options), "--out has the records so far")


def _run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / FILE
    if not options.table:
        for folder in options.models:
            trained = load_trained(folder)
            if trained.record.options.threads not in (0, options.threads):
                raise InputError(
                    f"--threads: expected {trained.record.options.threads}, as in the training of {folder}, "
                    f"got {options.threads}"
                )
            examples = spread(
                [replace(row, label=None) for row in load_file(options.data, trained.task)], options.examples
            )
            with path.open("a", encoding="utf-8") as handle:
                for record in measure(folder, examples, options.repeats):
                    handle.write(json.dumps(record, allow_nan=False) + "\n")
    if path.is_file():
        print(table([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
