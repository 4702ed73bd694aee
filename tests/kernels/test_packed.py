"""A padded batch gives the results of its packed form."""

import pytest
import torch
from judging import compare, judged_by

import qacg_kernels as qk
from qacg_kernels.testing import evaluate
from qacg_kernels.testing.inputs import WIDE, Case, make_inputs

CASES = (
    Case("packed: gate", sequences=(5, 0, 17, 1), gate="per_head", bias="shared"),
    Case("packed: lambda, dropout", sequences=(30, 64, 7), dropout_p=0.2, quasi_scale=0.5, scale=0.2),
    Case("packed: causal", sequences=(12, 33), gate="shared", is_causal=True),
    Case("packed: column", sequences=(12, 33, 2), gate="shared", form="column", bias="per_head"),
    Case("packed: tiled", sequences=(530, 3, 111), heads=2, gate="shared", dropout_p=0.1),
)


def padded(t, lengths):
    """Converts packed (T, H, ...) to padded (N, H, longest, ...), with zeros in the padding."""
    rows = t.new_zeros(len(lengths), t.shape[1], max(lengths), *t.shape[2:])
    for n, part in enumerate(t.split(lengths)):
        rows[n, :, : lengths[n]] = part.transpose(0, 1)
    return rows


def packed(t, lengths):
    return torch.cat([t[n, :, :length].transpose(0, 1) for n, length in enumerate(lengths)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_padded_batch_equals_packed_sequences(case, backend, dtype, device):
    lengths = list(case.sequences)
    inputs = make_inputs(case, dtype, device)

    def through_padding(inputs, tensors):
        dense = {name: t if name.startswith("gate.") else padded(t, lengths) for name, t in tensors.items()}
        out = qk.quasi_attention(
            *(dense[name] for name in WIDE),
            inputs.gate(dense),
            key_lengths=torch.tensor(lengths, device=device),
            backend=backend,
            **{name: value for name, value in inputs.options.items() if name not in ("cu_seqlens", "max_seqlen")},
        )
        return packed(out, lengths), None

    compare(evaluate(inputs, through_padding), judged_by(case, dtype, device), f"{case.name}, {backend}")
