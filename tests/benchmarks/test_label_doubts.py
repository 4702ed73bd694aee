"""The benchmark of doubtful labels: which labels it replaces, its table, and its errors."""

import shutil

import pytest
from errors import raises
from qacg_models.data import DataOptions, load_data, sample_directory
from qacg_models.metrics.doubts import Doubt

from benchmarks import label_doubts
from benchmarks.label_doubts import flip


@pytest.fixture
def rows():
    return list(load_data(sample_directory(), ("train",), DataOptions(format="sentihood-tsv")).splits["train"])


@pytest.fixture
def data(tmp_path):
    """A folder with 92 rows of the sample, 23 groups of four aspects."""
    lines = (sample_directory() / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "train.tsv").write_text("".join(lines[:93]), encoding="utf-8")
    shutil.copy(sample_directory() / "dev.tsv", tmp_path)  # otherwise dev is a part of train
    return tmp_path


def test_flip_replaces_the_given_share_of_labels(rows):
    noisy, flipped = flip(rows, 0.05, 3, seed=4)
    assert len(flipped) == round(0.05 * len(rows))
    assert {number for number, (one, other) in enumerate(zip(rows, noisy)) if one.label != other.label} == flipped
    assert {row.label for row in noisy} <= {0, 1, 2}
    assert [row.sentence for row in noisy] == [row.sentence for row in rows]


def test_flip_repeats_with_the_seed(rows):
    assert flip(rows, 0.1, 3, seed=4) == flip(rows, 0.1, 3, seed=4)
    assert flip(rows, 0.1, 3, seed=4)[1] != flip(rows, 0.1, 3, seed=5)[1]


def test_flip_of_a_small_share_replaces_one_label(rows):
    assert len(flip(rows, 1e-9, 3, seed=0)[1]) == 1


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_flip_share_out_of_range_raises(rows, share):
    with raises(f"ValueError: share: expected a number above 0 and at most 1, got {share}"):
        flip(rows, share, 3, seed=0)


def test_label_doubts_prints_precision_and_recall(data, capsys, monkeypatch):
    half = []

    def doubted(rows, task):
        """Doubts half of the replaced labels, and as many others."""
        original = load_data(data, ("train",), DataOptions(format="sentihood-tsv")).splits["train"]
        flipped = [number for number, row in enumerate(rows) if row.label != original[number].label]
        others = [number for number in range(len(rows)) if number not in flipped]
        half.append(len(flipped))
        found = flipped[: len(flipped) // 2] + others[: len(flipped) // 2]
        return [Doubt(number, 0, 0.9, 0.1) for number in found]

    monkeypatch.setattr(label_doubts, "baseline_doubts", doubted)
    assert label_doubts.main(["--data", str(data), "--share", "0.2", "--seeds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert half == [18]
    assert lines[2].startswith("| 3 | 18 | 50.0% | 50.0% | 50.0% | 50.0% | 50.0% | ")
    assert len(lines) == 3


def test_label_doubts_without_doubts_has_no_precision(data, capsys, monkeypatch):
    monkeypatch.setattr(label_doubts, "baseline_doubts", lambda rows, task: [])
    assert label_doubts.main(["--data", str(data), "--seeds", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| 3 | 0 | nan% | 0.0% | nan% |")


@pytest.mark.parametrize("share", ["0", "-0.1", "1.5", "nan"])
def test_label_doubts_share_out_of_range_exits(data, share, capsys):
    with pytest.raises(SystemExit):
        label_doubts.main(["--data", str(data), f"--share={share}"])
    assert "--share: expected a number above 0 and at most 1, got " in capsys.readouterr().err


def test_label_doubts_missing_data_prints_one_line(data, capsys):
    shutil.rmtree(data)
    assert label_doubts.main(["--data", str(data)]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"{data}: no such folder or file\n"
    assert captured.out == ""
