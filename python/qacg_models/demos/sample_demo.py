"""`qacg demo`: checks the operator, trains a model and writes a report, in one to three minutes."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from qacg_models.checkpoints.packaged import is_installed
from qacg_models.data import DataOptions, Example, describe, load_data, sample_reviews
from qacg_models.demos.prompt import answer_sentences, is_terminal, program, shown_path
from qacg_models.inference.predictor import Predictor
from qacg_models.reporting.result_tables import (
    MAJORITY,
    baseline_comparison,
    row_title,
    selection_note,
    show,
    stored_results,
)
from qacg_models.reporting.tables import metric_cells, text_table, undefined_notes
from qacg_models.runs.options import TrainingOptions

LAMBDA_ROWS = 240  # lambda is averaged over this number of test rows, the first ones: those of 40 reviews
MARGIN = 0.15  # minimum lead of the model's strict accuracy over that of the majority baseline on test
POSITIVE, NEGATIVE = "positive", "negative"
TEXT = "The food was great, but the waiter was rude"
INTRO = f"Type a sentence about a restaurant or an app. For example: {TEXT}"
STEPS = ("machine", "agreement with the reference", "speed and memory", "training", "evaluation", "report")


def training_options(seed: int = 0) -> TrainingOptions:
    """Returns the training options of the demo.

    With these options, training took 38 to 51 seconds on two cores with bfloat16 instructions.

    If MiniLM is installed, the last of its six layers reads the aspect, and the first two are not trained. Otherwise a
    model with random weights is trained for 8 epochs.
    """
    if not is_installed("minilm"):
        return TrainingOptions(seed=seed, epochs=8)
    return TrainingOptions(
        seed=seed,
        max_steps=300,
        batch_size=192,
        learning_rate=5e-4,
        dropout=0.0,
        context_standalone=True,
        context_from_layer=5,
        frozen_layers=2,
    )


def run(report: Path | str, output: Path | str, options: TrainingOptions | None = None) -> int:
    """Runs the steps of the demo, and prints their results; in a terminal, then starts a prompt for sentences.

    Args:
        report: folder for the report, an HTML page with figures; an earlier report there is replaced.
        output: folder for the trained model; an earlier model there is replaced.
        options: options of training; None: those that `training_options` returns.

    Returns:
        0; or 1 if an output or gradient of the operator exceeds its error budget (`testing.parity_report` of
        qacg_kernels), or if the model's strict accuracy on test is less than MARGIN above that of the majority
        baseline.

    Raises:
        InputError, OSError: `report` or `output` cannot be replaced or written, or the training fails.
    """
    from qacg_models.reporting import captions
    from qacg_models.reporting.heatmaps import loss_figure
    from qacg_models.reporting.html_report import Report
    from qacg_models.training import check_output, train

    start = time.perf_counter()
    page = Report(
        report,
        "QACG-BERT on this machine",
        "Written by qacg demo; nothing on this page is loaded from elsewhere.",
    )
    check_output(output, overwrite=True)
    # The page has the sections in this order. The steps below fill them in another order.
    results, confidence, maps, gate, training, speed, agreement, machine = (
        page.section(title)
        for title in (
            "Results on the sample",
            "Confidence",
            "Attention maps",
            "Lambda",
            "Training",
            "Speed and memory",
            "Agreement with the reference",
            "Machine",
        )
    )

    _announce(1)
    _machine(machine)

    _announce(2)
    agrees = _agreement(agreement)

    _announce(3)
    _speed(speed)

    _announce(4)
    dataset = load_data(sample_reviews(), options=DataOptions(wide=True))
    lines = describe(dataset)
    print("\n".join(["bundled reviews, written for this project", *lines]))
    trained = train(dataset, output, options or training_options(), overwrite=True)

    _announce(5)
    beats = _evaluation(results, trained, lines)
    _confidence(page, confidence, trained, dataset.splits["test"])

    _announce(6)
    test = dataset.splits["test"]
    _attention(page, maps, trained, pick_rows(test, dataset.task.labels))
    _gate(page, gate, trained, test)
    loss = trained.record.loss
    reading = "Cross-entropy on the training rows; each point is the mean over the steps since the previous point."
    page.figure(training, "loss", loss_figure(loss), captions.loss_caption(loss), reading)
    path = page.write()
    print(f"report in {path} (open it in a browser), with its figures beside it as SVG and PNG; model in {output}")
    print(baseline_comparison(trained.record, "test"))
    print(f"total {time.perf_counter() - start:.0f} s")
    print("\n".join(["\nCommands to try next:", *next_commands(Path(output))]), flush=True)
    if is_terminal():
        right = stored_results(trained.record, "test")[row_title(trained.record, "test")].strict_accuracy
        count = len(dataset.task.aspects)
        note = f"This model predicts all {count} aspects correctly for {right:.0%} of the test reviews."
        answer_sentences(Predictor(trained), f"{INTRO}\n{note}")
    return 0 if agrees and beats else 1


def next_commands(output: Path) -> list[str]:
    """Returns three lines, each with a command that uses the trained model and a comment.

    Args:
        output: folder of the model.
    """
    model, text, sample = (shlex.quote(one) for one in (str(output), TEXT, shown_path(sample_reviews())))
    page = shlex.quote(f"{output}-page")
    return [
        f"  {program()} {arguments}"
        for arguments in (
            f"predict {model} --text {text}    # labels and probabilities",
            f"analyze {model} --text {text} --output {page}    # the words that decide, as a page",
            f"evaluate {model} --data {sample} --wide --split test    # metrics with intervals, and the worst errors",
        )
    ]


def pick_rows(rows: Sequence[Example], labels: Sequence[str]) -> list[Example]:
    """Returns up to four rows to show, chosen by text and true labels, so that they are the same for every model.

    Candidates are the texts with a positive and a negative row. At most two of them are used: the shortest, and the
    shortest of the others with more than eight words. The result has the first positive and the first negative
    row of each.
    """
    by_sentence: dict[str, list[Example]] = {}
    for row in rows:
        by_sentence.setdefault(row.sentence, []).append(row)
    pairs = []
    for _, group in sorted(by_sentence.items(), key=lambda item: (len(item[0]), item[0])):
        given = [labels[row.label] for row in group]
        if POSITIVE in given and NEGATIVE in given:
            pairs.append([group[given.index(POSITIVE)], group[given.index(NEGATIVE)]])
    long = [pair for pair in pairs[1:] if len(pair[0].sentence.split()) > 8]
    return [row for pair in (*pairs[:1], *long[:1]) for row in pair]


def _announce(step: int) -> None:
    print(f"\n[{step}/{len(STEPS)}] {STEPS[step - 1]}", flush=True)


def _machine(section) -> None:
    from qacg_kernels import info

    text = info.render(info.collect())
    print(text)
    section.preformatted(text)


def _agreement(section) -> bool:
    from qacg_kernels.testing import ParityRow, parity_report

    rows = parity_report()
    worst: dict[tuple[str, str, str], ParityRow] = {}
    for row in rows:
        key = (row.case, row.backend, row.dtype)
        if key not in worst or row.error / row.budget > worst[key].error / worst[key].budget:
            worst[key] = row
    shown = sorted(worst.values(), key=lambda row: (row.case, row.dtype, row.backend))

    def figures(row: ParityRow) -> list[str]:
        return [f"{row.error:.2e}", f"{row.budget:.2e}", "yes" if row.ok else "NO"]

    cells = (
        ["case", "backend", "dtype", "closest to its budget", "error", "budget", "within"],
        [[row.case, row.backend, row.dtype, row.tensor, *figures(row)] for row in shown],
    )
    failed = sum(not row.ok for row in rows)
    note = (
        f"Outputs and gradients compared with float64: {len(rows)} tensors, {failed} outside the budget. For each"
        " case, backend and dtype, the table has the tensor closest to its budget."
    )
    section.table("agreement", cells)
    section.text(note, "note")
    print(text_table(*cells))
    print(note)
    return not failed


def _speed(section) -> None:
    from qacg_models.demos.speed import METHOD, speed_cells, speed_table

    cells = speed_cells(speed_table())
    section.table("speed", cells)
    section.text(METHOD, "note")
    print(text_table(*cells))
    print(METHOD)


def _evaluation(section, trained, lines: Sequence[str]) -> bool:
    for split in ("test", "dev"):
        results = stored_results(trained.record, split)
        print(f"{split}\n{show(results)}\n")
        section.heading(split)
        section.table(split, metric_cells(results))
        for line in undefined_notes(results):
            section.text(line, "note")
    note = selection_note(trained.record) + "; test was evaluated once, after the selection"
    print(note)
    section.text(baseline_comparison(trained.record, "test"), "note")
    results = stored_results(trained.record, "test")
    margin = results[row_title(trained.record, "test")].strict_accuracy - results[MAJORITY].strict_accuracy
    beats = "beats" if margin >= MARGIN else "DOES NOT BEAT"
    points = f"at least {100 * MARGIN:.0f} points (lead: {100 * margin:.1f})"
    print(f"strict accuracy on test {beats} that of the majority baseline by {points}")
    for line in (
        note,
        *lines,
        "The reviews were written for this project: the metrics show that training works, not how models compare.",
    ):
        section.text(line, "note")
    return margin >= MARGIN


def _confidence(page, section, trained, rows: Sequence[Example]) -> None:
    from qacg_models.reporting.confidence import Confidence
    from qacg_models.reporting.evaluation_page import add_confidence

    found = Confidence.of(trained, rows, trained.logits(rows))
    for line in (trained.calibration.describe(), f"on test: {found.note()}"):
        print(line)
    section.text(trained.calibration.describe(), "note")
    add_confidence(page, section, found)


def _attention(page, section, trained, rows: Sequence[Example]) -> None:
    from qacg_models.reporting import captions
    from qacg_models.reporting.attention_maps import example_maps
    from qacg_models.reporting.heatmaps import layer_figure

    labels, first = trained.task.labels, getattr(trained.model.config, "context_from_layer", 0)
    section.text(
        "The maps of the last layer: queries are rows, keys are columns. Positive weights are blue, negative ones"
        " orange, and 0 has the colour of the page. The upper maps show softmax attention P, on a scale from 0 to 1."
        " The middle maps show λ·G, the quasi-attention map G of the aspect, weighted by λ. The lower maps show"
        " A = P + λ·G, which the model uses."
    )
    if trained.model.config.context_standalone:
        section.text(
            f"This model receives the aspect by its context id only; layer {first + 1} is the first that reads it."
        )
    reading = "Queries are rows, keys are columns; each line of panels has its own scale."
    for number, row in enumerate(rows, 1):
        maps = example_maps(trained, row)
        predicted = int(maps.probabilities.argmax())
        shares = ", ".join(f"{label} {share:.0%}" for label, share in zip(labels, maps.probabilities))
        section.heading(f"{number}. {row.context}: {labels[row.label]}")
        section.quote(row.sentence)
        result = "correct" if predicted == row.label else "wrong"
        section.text(f"Prediction: {labels[predicted]}, {result} ({shares}).", "note")
        last = len(maps.softmax) - 1
        name = f"row-{number}-layer-{last + 1}"
        page.figure(section, name, layer_figure(maps, last), captions.layer_caption(maps, last), reading)


def _gate(page, section, trained, rows: Sequence[Example]) -> None:
    from qacg_models.reporting.analysis_page import lambda_table
    from qacg_models.reporting.attention_maps import mean_lambda

    section.text(
        "λ weights the quasi-attention map of the aspect: above 0 it adds attention to keys, below 0 it subtracts some."
    )
    first = getattr(trained.model.config, "context_from_layer", 0)
    lambda_table(page, section, "lambda", mean_lambda(trained, rows[:LAMBDA_ROWS]), first=first)
    section.text(
        f"λ by layer and head: the mean over all tokens of the first {LAMBDA_ROWS} test rows. The gate computes λ for"
        " each token and head. At λ = 0, attention is plain softmax.",
        "note",
    )
