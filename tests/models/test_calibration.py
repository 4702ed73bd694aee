"""Calibration: temperatures compared with an independent fit, degenerate cases, and where they are used."""

import json
import math
import re
import textwrap

import numpy as np
import pytest
from errors import raises
from model_sizes import SMALL_FLAGS
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.errors import ModelFolderError
from qacg_models.sentiment import calibration
from qacg_models.sentiment.calibration import (
    BINS,
    CALIBRATION_NAME,
    LEAST,
    MOST,
    PRIOR,
    Calibration,
    Fit,
    accuracy_by_coverage,
    calibrate,
    fit_temperature,
    fit_temperatures,
    probabilities_of,
    read_calibration,
    reliability,
    write_calibration,
)
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.predictor import examples_of
from qacg_models.sentiment.report.analysis import example_maps
from qacg_models.sentiment.report.evaluation import Confidence
from qacg_models.sentiment.trained_model import load_trained
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from untrained import TEXTS, write_model

FITTED = Calibration((1.75, 0.5, 3.0), Fit("dev", 200, 0.08, 0.01, 40, 10, ()))


def overconfident(rows, temperature, classes=3, seed=0):
    """Labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = 4 * rng.standard_normal((rows, classes))
    shares = probabilities_of(logits, [temperature])
    return np.array([rng.choice(classes, p=share) for share in shares]), logits


def by_scipy(gold, logits, mode=1.0):
    """Returns the temperature by the formulas of the module, found with another minimiser."""

    def loss(inverse):
        scaled = inverse * logits
        likelihood = (logsumexp(scaled, axis=1) - scaled[np.arange(len(gold)), gold]).sum()
        return likelihood + PRIOR * (mode * inverse - math.log(inverse))

    return 1 / minimize_scalar(loss, bounds=(1 / MOST, 1 / LEAST), method="bounded", options={"xatol": 1e-10}).x


@pytest.mark.parametrize("rows", [1, 2, 7, 60, 4000])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_fit_temperature_matches_another_minimiser(rows, temperature):
    gold, logits = overconfident(rows, temperature, seed=rows)
    found = fit_temperature(gold, logits)
    assert found == pytest.approx(by_scipy(gold, logits), rel=1e-6)
    # A constant added to all logits of a row and the order of the rows have no effect.
    assert fit_temperature(gold[::-1], (logits + 100 * np.arange(rows)[:, None])[::-1]) == pytest.approx(found)
    if rows == 4000:
        assert found == pytest.approx(temperature, rel=0.07)


@pytest.mark.parametrize("gap", [1e-6, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 3000])
def test_fit_temperature_prior_keeps_the_fit_finite(gap, right, rows):
    """If all rows are right, or all are wrong, the likelihood alone has its maximum at 0 or infinity."""
    gold = np.arange(rows) % 2
    logits = gap * np.eye(3)[gold if right else 1 - gold]
    found = fit_temperature(gold, logits)
    assert LEAST <= found <= MOST
    if not right and gap >= 1:
        assert found > 1
    if right and gap == 1 and rows == 3000:
        assert found < 0.5
    if rows == 1 and gap <= 1:
        assert found == pytest.approx(1, abs=0.2), "one row must not move the temperature far"


def test_fit_temperatures_uses_rows_of_each_label():
    gold, logits = overconfident(3000, 1.0, classes=2)
    logits = np.column_stack([logits, np.full(3000, -20.0)])
    logits[logits.argmax(1) == 1] *= 3  # overconfident in the second label
    logits[:2, 2] = logits[:2].max(1) + 1  # the third label is predicted on two rows
    found, common = fit_temperatures(gold, logits), fit_temperature(gold, logits)
    winners = logits.argmax(1)
    assert [int((winners == label).sum()) for label in range(3)][2] == 2
    for label in range(3):
        rows = winners == label
        assert found[label] == pytest.approx(by_scipy(gold[rows], logits[rows], common), rel=1e-6)
    assert found[1] == pytest.approx(3, rel=0.15) and found[0] == pytest.approx(1, rel=0.15)
    assert found[2] == pytest.approx(common, rel=0.5), "two rows stay close to the common temperature"
    none = np.delete(logits, 2, axis=1)
    none[:, 0] += 1e3
    assert fit_temperatures(np.zeros(3000, int), none)[1] == fit_temperature(np.zeros(3000, int), none), (
        "a label that is never predicted"
    )


def test_temperatures_keep_predicted_labels():
    logits = np.random.default_rng(0).standard_normal((500, 3)) * 3
    found = probabilities_of(logits, (0.5, 1.0, 4.0))
    np.testing.assert_array_equal(found.argmax(1), logits.argmax(1))
    for label, temperature in enumerate((0.5, 1.0, 4.0)):
        rows = logits.argmax(1) == label
        scaled = logits[rows] / temperature
        np.testing.assert_allclose(found[rows], np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True)), rtol=1e-12)


def test_fit_temperature_bad_logits_raise():
    with raises("ValueError: logits: expected finite numbers, got [nan, 0.0] in row 1"):
        fit_temperature([0, 1], np.array([[0.0, 1.0], [math.nan, 0.0]]))


@pytest.mark.parametrize(
    ("protocol", "gold", "logits", "reason"),
    [
        ("dev", [0, 1, 2, 0], np.eye(3)[[0, 1, 2, 1]], "have a single sentence"),
        ("released", [0, 1], np.eye(2), "because the protocol is that of the released code"),
        ("dev", [], None, "there are no rows of dev"),
        ("dev", [2] * 50, np.ones((50, 3)), "have a single label"),
        ("dev", [0, 1], np.array([[0.0, math.inf], [0.0, 1.0]]), "not finite on dev"),
    ],
)
def test_calibrate_without_usable_rows_is_skipped(protocol, gold, logits, reason):
    found = calibrate(protocol, gold, logits, texts(len(gold), each=4 if "sentence" in reason else 1))
    assert (found.temperatures, found.fit) == ((1,), None)
    assert reason in found.describe()


def texts(rows, each=1):
    """Sentences of `rows` rows; each sentence has `each` rows."""
    return [f"sentence {row // each}" for row in range(rows)]


def test_fit_temperature_reduces_overconfidence():
    found = calibrate("dev", *overconfident(4000, 3.0), texts(4000, 4))
    assert found.skipped is None
    assert found.fit.error_before > 0.15
    assert found.fit.error_after < 0.025
    gold, logits = overconfident(4000, 3.0, seed=1)
    assert reliability(gold, probabilities_of(logits, found.temperatures)).error < 0.025, "on other rows, too"


def test_calibrate_keeps_no_useless_temperatures(monkeypatch):
    """For well-calibrated logits, the margin rejects most temperatures that lower the log loss by chance."""

    def kept():
        found = [calibrate("dev", *overconfident(60, 1.0, seed=seed), texts(60, 5)) for seed in range(30)]
        return sum(one.skipped is None for one in found)

    assert kept() <= 4
    monkeypatch.setattr(calibration, "MARGIN", 0.0)
    assert kept() >= 8


def test_calibrate_few_sentences_get_one_temperature():
    gold, logits = overconfident(145, 3.0)
    few = calibrate("dev", gold, logits, texts(145, 5))
    assert few.temperatures == (fit_temperature(gold, logits),)
    assert [one.name for one in few.fit.candidates] == ["none", "one"]
    assert [one.name for one in calibrate("dev", gold, logits, texts(145)).fit.candidates][2:] == ["per label"]


def test_cross_validation_holds_out_whole_sentences():
    """The expected values use one fold per sentence; the log loss is that of rows left out of the fit."""
    gold, logits = overconfident(9, 3.0, seed=3)
    sentences = np.array(["b", "a", "c", "a", "b", "c", "c", "a", "b"])
    fit = calibrate("dev", gold, logits, sentences.tolist()).fit
    losses = np.empty((2, 9))
    for text in "abc":
        held = sentences == text
        for row, temperature in enumerate((1.0, by_scipy(gold[~held], logits[~held]))):
            scaled = logits[held] / temperature
            losses[row, held] = logsumexp(scaled, axis=1) - scaled[np.arange(held.sum()), gold[held]]
    gains = [(losses[0] - losses[1])[sentences == text].sum() for text in "abc"]
    none, one = fit.candidates
    assert (fit.rows, fit.sentences, fit.folds) == (9, 3, 3)
    assert (none.log_loss, none.gain, none.gain_error) == (pytest.approx(losses[0].mean()), 0, 0)
    assert one.log_loss == pytest.approx(losses[1].mean(), rel=1e-6)
    assert one.gain == pytest.approx(sum(gains) / 9, rel=1e-5)
    assert one.gain_error == pytest.approx(np.std(gains, ddof=1) * math.sqrt(3) / 9, rel=1e-5)


def test_calibration_file_has_the_candidates(tmp_path):
    for scale in (1.0, 3.0):
        found = calibrate("dev", *overconfident(200, scale, seed=1), texts(200, 5))
        write_calibration(tmp_path, found)
        assert read_calibration(tmp_path) == found
        assert [one.name for one in found.fit.candidates] == ["none", "one", "per label"]
        assert (found.fit.folds, found.fit.sentences) == (10, 40)


def test_reliability_matches_a_worked_example():
    # Confidence 0.9 and 0.92 fall into the 14th bin of 15, one of two right; 0.6 into the 9th; 1 into the last.
    probabilities = np.array([[0.9, 0.1], [0.08, 0.92], [0.6, 0.4], [0.0, 1.0]])
    found = reliability([0, 0, 0, 1], probabilities)
    assert found.error == pytest.approx((abs(2 * 0.5 - 1.82) + 0.4 + 0) / 4)
    filled = {round(one.high * BINS): one for one in found.bins if one.rows}
    assert {place: one.rows for place, one in filled.items()} == {14: 2, 9: 1, 15: 1}
    assert filled[14].confidence == pytest.approx(0.91) and filled[14].accuracy == 0.5
    assert math.isnan(found.bins[0].accuracy)
    kept = accuracy_by_coverage([0, 0, 0, 1], probabilities, (0.0, 0.9, 0.95))
    assert [(one.rows, one.coverage, one.accuracy) for one in kept] == [(4, 1, 0.75), (3, 0.75, 2 / 3), (1, 0.25, 1)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model without a calibration file, and the same model with one."""
    base = tmp_path_factory.mktemp("calibrated")
    plain, fitted = write_model(base / "plain", layers=1), write_model(base / "fitted", layers=1)
    write_calibration(fitted, FITTED)
    return plain, fitted


def test_all_predictions_use_the_temperatures(folders, tmp_path, capsys):
    plain, fitted = map(load_trained, folders)
    assert plain.calibration.temperatures == (1,) and fitted.calibration == FITTED
    rows = examples_of(plain, [TEXTS[0]])
    cooled = fitted.probabilities(rows)
    np.testing.assert_array_equal(cooled, probabilities_of(plain.logits(rows), FITTED.temperatures))
    assert np.abs(cooled - plain.probabilities(rows)).max() > 0.02
    np.testing.assert_allclose(example_maps(fitted, rows[0]).probabilities, cooled[0], atol=1e-5)
    answers = AspectSentiment.from_pretrained(folders[1])(TEXTS[0])
    np.testing.assert_allclose([list(one.probabilities.values()) for one in answers], cooled, atol=1e-5)
    (tmp_path / "in.txt").write_text(TEXTS[0] + "\n")
    assert main(["predict", str(folders[1]), "--input", str(tmp_path / "in.txt")]) == 0
    written = [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([list(one.values()) for one in written], cooled, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperatures": [1, -1.0, 1]}, r"temperatures\[1\]: expected a number from 0.05 to 20, got -1.0"),
        ({"temperatures": ["warm"]}, r"temperatures\[0\]: expected a number, got 'warm'"),
        ({"temperatures": []}, r"temperatures: expected one for each label, or one for all labels, got none"),
        ({"fit": {"split": "dev"}}, r"fit lacks the fields rows, error_before, .*, folds, candidates"),
        ({"colour": "red"}, r"has colour, which this version does not support"),
    ],
)
def test_read_calibration_damaged_file_raises(tmp_path, change, message):
    write_calibration(tmp_path, FITTED)
    assert read_calibration(tmp_path) == FITTED
    path = tmp_path / CALIBRATION_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFolderError, match=message) as caught:
        read_calibration(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    path.write_text("{")
    with raises("ModelFolderError: is not JSON"):
        read_calibration(tmp_path)


def test_read_calibration_of_other_labels_raises(folders, tmp_path):
    path = folders[0] / CALIBRATION_NAME
    write_calibration(folders[0], Calibration((1.75,), FITTED.fit))
    try:
        trained = load_trained(folders[0])
        assert trained.calibration == Calibration((1.75,), FITTED.fit)
        rows = examples_of(trained, [TEXTS[0]])
        np.testing.assert_array_equal(trained.probabilities(rows), probabilities_of(trained.logits(rows), [1.75] * 3))
        write_calibration(folders[0], Calibration((1.75, 2.0), FITTED.fit))
        with raises("ModelFolderError: expected 1 temperature, or 3 (one for each label), got 2"):
            load_trained(folders[0])
    finally:
        path.unlink()


SIZES = [*SMALL_FLAGS, "--epochs=2", "--batch-size=16"]


def test_train_fits_temperatures_and_evaluate_prints_them(small_data, tmp_path, capsys):
    folder = tmp_path / "model"
    assert main(["train", "--data", str(small_data), "--output", str(folder), *SIZES]) == 0
    output = capsys.readouterr().out
    trained, dev = load_trained(folder), load_data(small_data).splits["dev"]
    gold, logits = [row.label for row in dev], trained.logits(dev)
    assert trained.calibration == calibrate("dev", gold, logits, [row.sentence for row in dev])
    assert trained.calibration.fit.rows == 80 and trained.calibration.describe() in output

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert trained.calibration.describe()[1:] in card and "| majority |" in card
    capsys.readouterr()
    exec(snippet(card).replace("FOLDER", repr(str(folder))), {})
    target, aspect = trained.task.split_context(trained.contexts[0])
    (answer,) = AspectSentiment.from_pretrained(folder)("the bill was a shock", aspects=[aspect], targets=[target])
    by_class, by_pipeline = capsys.readouterr().out.splitlines()
    assert by_class == f"{aspect} {answer.label} {answer.probabilities}"
    assert f"'aspect': {trained.contexts[0]!r}, 'label': {answer.label!r}" in by_pipeline

    flags = ["--data", str(small_data), "--split", "test", "--precision", "float32"]
    assert main(["evaluate", str(folder), *flags, "--report", str(tmp_path / "page")]) == 0
    output = capsys.readouterr().out
    assert "metrics are identical to those that training stored" in output
    assert main(["evaluate", str(folder), *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["calibration"]
    test = load_data(small_data).splits["test"]
    gold, logits = [row.label for row in test], trained.logits(test)
    for name, temperatures in (("before", (1.0,)), ("after", trained.calibration.temperatures)):
        assert found[f"error_{name}"] == reliability(gold, probabilities_of(logits, temperatures)).error
        assert f"{100 * found[f'error_{name}']:.1f}" in output.partition("expected calibration error: ")[2]
    line = next(line.split() for line in output.splitlines() if line.split()[:1] == ["0.50"])
    assert int(line[1]) == (trained.probabilities(test).max(1) >= 0.5).sum()
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "expected calibration error" in page and "<svg" in page
    for place in (output, page, card):
        assert "On other text (another domain" in place


def snippet(card):
    """The program of a model card."""
    block = re.search(r"((?:^(?:    .*)?\n)+)", card.partition("parameters,")[2].partition("\n\n")[2], re.MULTILINE)
    return textwrap.dedent(block[1])


def test_confidence_plots_show_the_accuracies(folders):
    class Row:
        def __init__(self, label):
            self.label = label

    gold, logits = overconfident(300, 3.0)
    for folder, panels in zip(folders, (1, 2)):
        found = Confidence.of(load_trained(folder), [Row(label) for label in gold], logits)
        plots = found.plots()
        assert plots.count("<svg") == panels
        last = plots[plots.rindex("<svg") :]
        heights = [float(height) for height in re.findall(r'class="fill"[^>]* height="([\d.]+)"', last)]
        expected = [one.accuracy for one in found.after.bins if one.rows]
        assert np.array(heights) / 170 == pytest.approx(expected, abs=0.001)
        assert (found.temperatures is None) == ("no temperature" in found.note())
        assert (panels == 1) == ("no temperature" in found.note())
