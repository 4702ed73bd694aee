"""Fakes a GPU: tensors without values on "cuda", and backends that support them."""

import torch
from torch._subclasses import FakeTensorMode

from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.triton import tile_tables

DEVICE = torch.device("cuda", 0)


def install(monkeypatch, names=("triton", "cuda")) -> None:
    """Makes the named GPU backends support calls on DEVICE for one test."""
    for module in (cuda, triton):
        here = module.NAME in names
        monkeypatch.setattr(module, "missing", list if here else lambda: ["not on the faked GPU"])
        monkeypatch.setattr(module, "not_for", lambda device: [])
        monkeypatch.setattr(module, "note", lambda problem: None)
    monkeypatch.setattr(tile_tables, "table_for", lambda device: tile_tables.shipped("sm_90"))


def call(dtype=torch.bfloat16, length=128, head_dim=64, training=False):
    """The arguments of a call with a lambda tensor on DEVICE; the tensors have no values."""
    with FakeTensorMode():
        x = torch.empty(2, 3, length, head_dim, dtype=dtype, device=DEVICE, requires_grad=training)
        return x, x, x, x, x, torch.empty(2, 3, length, dtype=dtype, device=DEVICE)
