"""Torch's FlopCounterMode and its nested tensors."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import qacg_kernels as qk
import qacg_kernels.flop_formulas  # registers them


def operands(*sizes, keys=None):
    key_sizes = sizes if keys is None else (*sizes[:-2], keys, sizes[-1])
    five = [torch.randn(s) for s in (sizes, key_sizes, key_sizes, sizes, key_sizes)]
    return [t.requires_grad_() for t in five]


def test_flop_counter_dense_counts_both_passes(backend):
    with FlopCounterMode(display=False) as counter:
        out = qk.quasi_attention(*operands(2, 3, 5, 8, keys=7), torch.rand(2, 3, 5), backend=backend)
        forward = counter.get_total_flops()
        out.sum().backward()
    product = 2 * 3 * 5 * 7 * 8
    assert forward == 6 * product
    assert counter.get_total_flops() == (6 + 16) * product


def test_flop_counter_packed_counts_each_sequence():
    offsets = torch.tensor([0, 3, 3, 8])
    with FlopCounterMode(display=False) as counter:
        qk.quasi_attention_varlen(*operands(8, 2, 4), torch.rand(8, 2), cu_seqlens=offsets, max_seqlen=5)
    assert counter.get_total_flops() == 6 * (3 * 3 + 5 * 5) * 2 * 4


@pytest.mark.parametrize("name", ["query", "value"])
def test_nested_tensor_is_refused_with_advice(name):
    names = ("query", "key", "value", "context_query", "context_key")
    tensors = dict(zip(names, operands(2, 4, 3, 8)))
    tensors[name] = torch.nested.nested_tensor([torch.rand(2, 3, 8), torch.rand(4, 3, 8)], layout=torch.jagged)
    with pytest.raises(TypeError, match=rf"{name}: expected a dense tensor.*quasi_attention_varlen"):
        qk.quasi_attention(**tensors, gate=torch.rand(2, 4, 3))
