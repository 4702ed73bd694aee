"""Results have the same bits with any number of threads and in every call."""

import pytest
from judging import assert_same_bits

from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

CASES = (
    Case("threads: short", batch=5, queries=70, head_dim=32, gate="per_head", bias="shared", dropout_p=0.1),
    Case("threads: one head", batch=1, heads=1, queries=300, head_dim=16, gate="shared", is_causal=True),
    Case("threads: long", batch=1, heads=2, queries=600, head_dim=16, gate="shared", bias="per_head"),
    Case("threads: long, few rows", batch=1, heads=1, queries=33, keys=1030, head_dim=40, mask="boolean"),
    Case("threads: lengths", batch=4, queries=90, key_lengths=(90, 3, 0, 41), layout="heads_inside"),
    Case("threads: column gate", batch=1, queries=40, keys=530, gate="shared", form="column"),
    Case("threads: packed", sequences=(64, 2, 0, 131, 17), gate="shared", dropout_p=0.3),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bits_do_not_depend_on_threads(case, kernel, dtype, device, set_threads):
    """The reference is left out, because PyTorch splits products by the number of threads."""
    inputs = make_inputs(case, dtype, device)
    set_threads(1)
    expected = evaluate(inputs, through_backend(kernel))
    for threads in (1, 2, 3, 5):
        set_threads(threads)
        assert_same_bits(evaluate(inputs, through_backend(kernel)), expected)
