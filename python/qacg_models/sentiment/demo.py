"""`qacg demo`: checks the operator, trains a model, writes a report, and answers typed sentences, in 1 to 3 minutes."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from qacg_models.checkpoints.files import is_installed
from qacg_models.errors import InputError
from qacg_models.sentiment.dataset import describe, load_data, sample_reviews
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.predictor import AspectPrediction, Predictor, as_predictions, examples_of
from qacg_models.sentiment.report import Cells
from qacg_models.sentiment.report.tables import (
    MAJORITY,
    metric_cells,
    row_title,
    selection_note,
    show,
    stored_results,
    text_table,
    undefined_notes,
    weaker_than_tfidf,
)

MARGIN = 0.15  # minimum lead of the model's strict accuracy over that of the majority baseline on test
TEXT, ASPECTS = "The food was great, but the waiter was rude", ["food", "service"]  # the analysed sentence
INTRO = f"Type a sentence about a restaurant or an app. For example: {TEXT}"
STEPS = ("machine", "agreement with the reference", "speed", "training", "evaluation", "report")
SHAPES = ((8, 12, 128, 64), (2, 12, 512, 64))  # (B, H, L, D) of the speed table
METHOD = "Float32, no mask, median of the runs of torch.utils.benchmark."
CERTAIN = 0.7  # answers of the prompt with a lower probability are marked as uncertain
PROMPT = "> "


def training_options() -> TrainingOptions:
    """Returns the training options of the demo: 38 to 51 seconds on two cores with bfloat16 instructions.

    If MiniLM is installed, its first two layers are not trained. Otherwise a model with random weights is trained for 8
    epochs.
    """
    if not is_installed("minilm"):
        return TrainingOptions(epochs=8)
    return TrainingOptions(max_steps=300, batch_size=192, learning_rate=5e-4, dropout=0.0, frozen_layers=2)


def run(report: Path | str, output: Path | str, options: TrainingOptions) -> int:
    """Runs the steps of the demo, and prints their results; in a terminal, then starts a prompt for sentences.

    The report, an HTML page, and the model are written to the folders `report` and `output`, in place of earlier ones.
    Returns 1 if an output or gradient of the operator exceeds its error budget, or if the model's strict accuracy on
    test is less than MARGIN above that of the majority baseline; else 0.
    """
    from qacg_models.sentiment.report import Report, framed, loss_plot, page_file
    from qacg_models.sentiment.report.analysis import VIEWER, add_sentence
    from qacg_models.sentiment.trained_model import check_output
    from qacg_models.sentiment.training import train

    start = time.perf_counter()
    lead = "Written by qacg demo; nothing on this page is loaded from elsewhere."
    page = Report(report, "QACG-BERT on this machine", lead, **VIEWER)
    check_output(output, overwrite=True)
    dataset = load_data(sample_reviews(), options=DataOptions(wide=True))
    test, lines = dataset.splits["test"], describe(dataset)
    # The page has the sections in this order. The steps below fill them in another order.
    titles = ("Results on the sample", "Confidence", "A sentence", "How to read the sentence", "Training", "Speed")
    results, confidence, sentence, reading, training, speed = map(page.section, titles)
    agreement, machine = page.section("Agreement with the reference"), page.section("Machine")

    _announce(1)
    _machine(machine)
    _announce(2)
    agrees = _agreement(agreement)
    _announce(3)
    _speed(speed)

    _announce(4)
    print("\n".join(["bundled reviews, written for this project", *lines]))
    trained = train(dataset, output, options, overwrite=True)

    _announce(5)
    beats = _evaluation(results, trained, lines)
    _confidence(confidence, trained, test)

    _announce(6)
    add_sentence(sentence, "maps", trained, examples_of(trained, [TEXT], ASPECTS))
    reading.parts.append(page_file("reading.html"))
    if loss := trained.record.loss:
        training.picture(framed(loss_plot(loss), "training loss", role="img"), "Cross-entropy on the training rows")
    path = page.write()
    print(f"report in {path} (open it in a browser); model in {output}")
    for line in weaker_than_tfidf(trained.record):
        print(line)
    print(f"total {time.perf_counter() - start:.0f} s")
    print("\n".join(["\nCommands to try next:", *next_commands(Path(output))]), flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        right = stored_results(trained.record, "test")[row_title(trained.record, "test")].strict_accuracy
        count = len(dataset.task.aspects)
        note = f"This model predicts all {count} aspects correctly for {right:.0%} of the test reviews."
        answer_sentences(Predictor(trained), f"{INTRO}\n{note}")
    return 0 if agrees and beats else 1


def next_commands(output: Path) -> list[str]:
    """Returns three lines, each with a command that uses the trained model in `output`, and a comment."""
    model, text, sample = (shlex.quote(one) for one in (str(output), TEXT, _shown(sample_reviews())))
    page = shlex.quote(f"{output}-page")
    return [
        f"  {program()} predict {model} --text {text}    # labels and probabilities",
        f"  {program()} analyze {model} --text {text} --output {page}    # the words that decide, as a page",
        f"  {program()} evaluate {model} --data {sample} --wide --split test"
        "    # metrics with intervals, and the worst errors",
    ]


def program() -> str:
    """Returns the shell command that starts `qacg` with this interpreter from the working directory."""
    script = Path(sys.executable).with_name("qacg")
    if script.is_file():
        return "qacg" if shutil.which("qacg") == str(script) else shlex.quote(_shown(script))
    return f"{shlex.quote(_shown(Path(sys.executable)))} -m qacg_models.cli"


def _shown(path: Path) -> str:
    """Returns the path relative to the working directory if it is in that folder, otherwise unchanged."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _announce(step: int) -> None:
    print(f"\n[{step}/{len(STEPS)}] {STEPS[step - 1]}", flush=True)


def _machine(section) -> None:
    from qacg_kernels import info

    text = info.render(info.collect())
    print(text)
    section.add("pre", text)


def _agreement(section) -> bool:
    from qacg_kernels.testing import ParityRow, parity_report

    rows = parity_report()
    worst: dict[tuple[str, str, str], ParityRow] = {}  # the tensor closest to its budget
    for row in sorted(rows, key=lambda row: row.error / row.budget):
        worst[row.case, row.dtype, row.backend] = row
    within = {True: "yes", False: "NO"}
    cells = (
        ["case", "backend", "dtype", "closest to its budget", "error", "budget", "within"],
        [
            [row.case, row.backend, row.dtype, row.tensor, f"{row.error:.2e}", f"{row.budget:.2e}", within[row.ok]]
            for _, row in sorted(worst.items())
        ],
    )
    failed = sum(not row.ok for row in rows)
    note = (
        f"Outputs and gradients compared with float64: {len(rows)} tensors, {failed} outside the budget. For each"
        " case, backend and dtype, the table has the tensor closest to its budget."
    )
    _show_table(section, "agreement", cells, note)
    return not failed


def _show_table(section, name: str, cells: Cells, note: str) -> None:
    """Prints a table and a note, and adds them to a section."""
    section.table(name, cells)
    section.add("p", note, "note")
    print(f"{text_table(*cells)}\n{note}")


def _speed(section, shapes: Sequence[tuple[int, int, int, int]] = SHAPES, seconds: float = 0.3) -> None:
    """Measures eager and fused attention for each (B, H, L, D), each for `seconds` forward and with its backward."""
    import torch
    from torch.utils.benchmark import Timer

    rows = []
    for shape in shapes:
        for direction, backward in (("forward", False), ("forward + backward", True)):
            eager, fused = (
                Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
                .blocked_autorange(min_run_time=seconds)
                .median
                for call in attention_calls(shape, backward).values()
            )
            rows.append([str(shape), direction, f"{1e3 * eager:.2f}", f"{1e3 * fused:.2f}", f"{eager / fused:.1f}"])
    header = ["(B, H, L, D)", "direction", "eager ms", "fused ms", "times faster"]
    _show_table(section, "speed", (header, rows), METHOD)


def attention_calls(shape: tuple[int, int, int, int], backward: bool) -> dict[str, Callable[[], object]]:
    """Returns functions that compute the same attention of shape (B, H, L, D), in plain PyTorch and in the operator.

    With `backward` they return gradients, otherwise the output.
    """
    import torch

    from qacg_kernels import GateParameters, quasi_attention
    from qacg_models.layers.attention import eager_quasi_attention

    generator = torch.Generator().manual_seed(0)
    tensors = tuple(torch.randn(shape, generator=generator, requires_grad=backward) for _ in range(5))
    vectors = [torch.randn(shape[-1], generator=generator, requires_grad=backward) for _ in range(4)]
    gate, weight = GateParameters(*vectors, None, None), torch.randn(shape, generator=generator)

    def call(attend: Callable) -> object:
        with torch.set_grad_enabled(backward):
            out = attend()
            return torch.autograd.grad(out, (*tensors, *vectors), weight) if backward else out

    return {
        "eager": lambda: call(lambda: eager_quasi_attention(tensors, gate, None, 0.0, 1.0)[0]),
        "fused": lambda: call(lambda: quasi_attention(*tensors, gate)),
    }


def _evaluation(section, trained, lines: Sequence[str]) -> bool:
    for split in ("test", "dev"):
        results = stored_results(trained.record, split)
        print(f"{split}\n{show(results)}\n")
        section.add("h3", split)
        section.table(split, metric_cells(results))
        for line in undefined_notes(results):
            section.add("p", line, "note")
    note = selection_note(trained.record) + "; test was evaluated once, after the selection"
    results = stored_results(trained.record, "test")
    margin = results[row_title(trained.record, "test")].strict_accuracy - results[MAJORITY].strict_accuracy
    beats = "beats" if margin >= MARGIN else "DOES NOT BEAT"
    points = f"at least {100 * MARGIN:.0f} points (lead: {100 * margin:.1f})"
    print(f"{note}\nstrict accuracy on test {beats} that of the majority baseline by {points}")
    purpose = "The reviews were written for this project: the metrics show that training works, not how models compare."
    for line in (note, *lines, purpose):
        section.add("p", line, "note")
    return margin >= MARGIN


def _confidence(section, trained, rows: Sequence[Example]) -> None:
    from qacg_models.sentiment.report.evaluation import Confidence, add_confidence

    found = Confidence.of(trained, rows, trained.logits(rows))
    for line in (trained.calibration.describe(), f"on test: {found.note()}"):
        print(line)
    section.add("p", trained.calibration.describe(), "note")
    add_confidence(section, found)


def answer_sentences(predictor: Predictor, intro: str, read: Callable[[str], str] = input) -> None:
    """Prints predictions for each line that `read` returns, until an empty line, the end of input or Ctrl-C."""
    with suppress(ImportError):
        import readline  # noqa: F401 -- `input` then has arrow keys and a history

    print(f"\n{intro} An empty line ends the prompt.", flush=True)
    while True:
        try:
            text = read(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not text:
            return
        try:
            found = predictor.predict(pd.DataFrame({"text": [text]}, dtype=object))
            print("\n".join(answer_lines(as_predictions(found), predictor.trained.task.labels[0])), flush=True)
        except InputError as error:
            print(f"  {error}", flush=True)


def answer_lines(answers: Sequence[AspectPrediction], absent: str) -> list[str]:
    """Returns a line for each aspect of a text with an opinion, and a line with the aspects with the label `absent`."""
    width, lines, others = max(len(answer.aspect) for answer in answers), [], []
    for answer in answers:
        share = answer.probabilities[answer.label]
        if answer.label == absent:
            others.append(answer.aspect)
        else:
            mark = "" if share >= CERTAIN else "  (uncertain)"
            lines.append(f"  {answer.aspect:<{width}}  {answer.label} {share:.0%}{mark}")
    return [*lines, *([f"  no opinion on {', '.join(others)}"] if others else [])]
