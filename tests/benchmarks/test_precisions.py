"""Precisions side by side: what is said of each is from its own answers, and the table from the newest rows."""

import numpy as np
import pytest
from untrained import write_model

from benchmarks import precisions


@pytest.fixture
def measured(tmp_path, monkeypatch):
    float32 = np.array([[0.9, 0.1], [0.4, 0.6], [0.52, 0.48], [0.2, 0.8]])
    int8 = float32 + np.array([[-0.1, 0.1], [0, 0], [-0.04, 0.04], [0, 0]])  # one label of four turns over
    given = {"float32": lambda rows: float32, "int8": lambda rows: int8}
    monkeypatch.setattr(precisions, "answers", lambda folder, work: given)
    folder = write_model(tmp_path / "model", layers=1)
    return precisions.measure(folder, [None] * 4, repeats=2)


def test_agreement_is_with_float32(measured):
    first, second = measured
    assert (first["equal_labels"], first["largest_difference"]) == (1, 0)
    assert second["equal_labels"] == 0.75 and second["largest_difference"] == pytest.approx(0.1)
    assert (second["model"], second["layers"], second["hidden"], second["rows"]) == ("QACG-BERT", 1, 16, 4)


def test_the_table_is_of_the_newest_rows(measured):
    first, second = ({**row, "machine": {"threads": 1}} for row in measured)
    rows = [
        {**first, "rows_per_second": 100.0},
        {**second, "rows_per_second": 7.0},
        {**second, "rows_per_second": 250.0},
    ]
    lines = precisions.table(rows).splitlines()
    assert lines[2:] == [
        "| QACG-BERT, 1 layer of 16, 1 thread | float32 | 100 (1.0x) |  |  |",
        "| QACG-BERT, 1 layer of 16, 1 thread | int8 | 250 (2.5x) | 75.0 | 0.1 |",
    ]
