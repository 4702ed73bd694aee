"""Results of 4 MB and more, whose memory the CPU kernels ask for in pages of 2 MB."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qacg_kernels as qk
from qacg_kernels.backends import cpu

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")

LEAST_BYTES, HUGE_PAGE = 4 * 2**20, 2 * 2**20  # kLeast and kHugePage of csrc/cpu/huge_pages.h
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def test_rows_on_such_pages_have_the_bits_of_others(threads):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn((700, 1, 33, 64), generator=generator) for _ in range(5)]
    gate = torch.rand(700, 1, 33, generator=generator)

    def results_of(rows: slice) -> list[Tensor]:
        leaves = [t[rows].clone().requires_grad_() for t in tensors]
        out = qk.quasi_attention(*leaves, gate[rows], backend="cpu")
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    whole = results_of(slice(None))
    parts = [results_of(slice(first, first + 350)) for first in (0, 350)]
    for large, *small in zip(whole, *parts):
        assert large.nbytes >= LEAST_BYTES > max(part.nbytes for part in small)
        assert torch.equal(large, torch.cat(small))


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the kernel of this system has no transparent huge pages")
def test_large_results_are_asked_for_in_huge_pages():
    query = torch.zeros(700, 1, 33, 64)
    gate = torch.zeros(700, 1, 33)
    out = qk.quasi_attention(query, query, query, query, query, gate, backend="cpu")
    first = -(-out.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    assert "hg" in flags_at(first)


def flags_at(address: int) -> list[str]:
    """What /proc says of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping at {address:#x}")
