"""Triton's dQ by atomic additions, which no shipped table asks for, and the rule that chooses it."""

from dataclasses import replace

import pytest
import torch
from judging import compare, judged_by

from qacg_kernels.backends.triton import configurations
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

CASES = (
    Case("atomic: row gate, causal", batch=1, heads=2, queries=40, head_dim=20, gate="shared", is_causal=True),
    Case("atomic: lambda, mask", batch=1, heads=1, queries=40, keys=35, head_dim=16, mask="boolean_empty_rows"),
    Case("atomic: packed, dropout", heads=2, sequences=(40, 0, 19), head_dim=16, gate="per_head", dropout_p=0.2),
)


@pytest.fixture
def atomic_table(kernel, device):
    """The device's own table, with atomic additions wherever a call lets them, and no row of 17 keys taken whole."""
    if kernel != "triton":
        pytest.skip("this backend has no such form")
    table = configurations.table_for(torch.device(device))
    forced = {"key_gradients": dict(atomic=True), "whole_row_backward": dict(block_n=16)}
    rows = (replace(row, **forced.get(row.kernel, {})) for row in table.rows)
    with configurations.trial(replace(table, rows=tuple(rows))):
        yield


def launched(monkeypatch, deterministic, inputs):
    """Names of the kernels that a forward and backward launch, and the results."""
    from qacg_kernels.backends.triton import launch

    names = []

    def note(kernel, *rest):
        names.append(kernel.fn.__name__)
        launch.run(kernel, *rest)

    torch.use_deterministic_algorithms(deterministic)
    with launch.through(note):
        results = evaluate(inputs, through_backend("triton"))
    return names, results


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_atomic_sums_keep_the_error_rule(case, kernel, atomic_table, dtype, device, monkeypatch):
    judges = judged_by(case, dtype, device)
    names, results = launched(monkeypatch, False, judges[0])
    assert "finish_queries_kernel" in names
    compare(results, judges, f"{case.name}, atomic")


def test_deterministic_algorithms_and_column_gates_take_no_atomics(kernel, atomic_table, device, monkeypatch):
    row_gate = make_inputs(CASES[0], torch.float32, device)
    names, _ = launched(monkeypatch, True, row_gate)
    assert "finish_queries_kernel" not in names and "query_blocks_kernel" in names
    column = Case("atomic: column gate", batch=1, heads=1, queries=40, gate="shared", form="column")
    names, _ = launched(monkeypatch, False, make_inputs(column, torch.float32, device))
    assert "finish_queries_kernel" not in names and "query_blocks_kernel" in names
