"""Precisions: agreement with float32, and the table of the newest records."""

import numpy as np
import pytest
from untrained import write_model

from benchmarks import precisions


@pytest.fixture
def measured(tmp_path, monkeypatch):
    float32 = np.array([[0.9, 0.1], [0.4, 0.6], [0.52, 0.48], [0.2, 0.8]])
    int8 = float32 + np.array([[-0.1, 0.1], [0, 0], [-0.04, 0.04], [0, 0]])  # changes one label of four
    given = {"float32": lambda examples: float32, "int8": lambda examples: int8}
    monkeypatch.setattr(precisions, "answers", lambda folder, work: given)
    folder = write_model(tmp_path / "model", layers=1)
    return precisions.measure(folder, [None] * 4, repeats=2)


def test_agreement_is_with_float32(measured):
    first, second = measured
    assert (first["equal_labels"], first["largest_difference"]) == (1, 0)
    assert second["equal_labels"] == 0.75
    assert second["largest_difference"] == pytest.approx(0.1)
    assert (second["model"], second["layers"], second["hidden"], second["examples"]) == ("QACG-BERT", 1, 16, 4)


def test_table_has_the_newest_records(measured):
    first, second = ({**one, "machine": {"threads": 1}} for one in measured)
    records = [
        {**first, "examples_per_second": 100.0},
        {**second, "examples_per_second": 7.0},
        {**second, "examples_per_second": 250.0},
    ]
    assert precisions.table(records).splitlines()[2:] == [
        "| QACG-BERT, 1 layer of 16, 1 thread | float32 | 100 (1.0x) |  |  |",
        "| QACG-BERT, 1 layer of 16, 1 thread | int8 | 250 (2.5x) | 75.0 | 0.1 |",
    ]
