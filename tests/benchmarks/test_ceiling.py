"""The matrix-product ceiling: the fastest product, which runs interleaved with the implementations."""

import shutil
from dataclasses import replace

import pytest
import torch
from benchmark_records import ORIGIN, SMALL

from benchmarks import records, run
from benchmarks.cases import PACKED
from benchmarks.implementations.registry import COMPILED, EAGER, ONE_MAP, default_names
from benchmarks.measure import agreement, ceiling, timing

ONCE = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=0)


def product(name, dtype="float32", seconds=1e-3):
    return ceiling.Product(name, dtype, flops=2e6, step=lambda turn: seconds)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(ceiling, "_EFFORT", ONCE)
    monkeypatch.setattr(ceiling, "_SQUARE", 16)
    monkeypatch.setattr(ceiling, "_TILES", ((16, 32, 64),))
    monkeypatch.setattr(ceiling, "_TILE_FLOPS", 1e5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_measure_keeps_the_fastest_product(small, monkeypatch, capsys, dtype):
    fast = product("a fast one", dtype, seconds=1e-9)
    monkeypatch.setattr(ceiling, "_brgemm_products", lambda dtype: [fast])
    kept, tried = ceiling.measure(dtype, ORIGIN)
    assert kept is fast
    assert [row.product for row in tried] == ["torch.mm 16^3", "torch.bmm 2x(16,32,64)", "a fast one"]
    assert all(row.gflops > 0 and row.dtype == dtype for row in tried)
    assert tried[-1].gflops == pytest.approx(2e6)
    assert f"ceiling: a fast one in {dtype}" in capsys.readouterr().out


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.full  # builds its library
def test_brgemm_multiplies():
    try:
        torch.ops.load_library(ceiling._library())
        a, b, c = torch.randn(2, 8, 32), torch.randn(2, 32, 16), torch.full((2, 8, 16), torch.nan)
        torch.ops.qacg_benchmarks.brgemm(a, b, c, 3)
    except (ceiling.NoBrgemmError, RuntimeError) as error:
        pytest.skip(f"no brgemm on this machine: {error}")
    torch.testing.assert_close(c, a @ b)
    with pytest.raises(RuntimeError, match="expected three contiguous tensors"):
        torch.ops.qacg_benchmarks.brgemm(a, b.mT, c, 1)
    with pytest.raises(RuntimeError, match=r"brgemm: expected \(T, M, K\)"):
        torch.ops.qacg_benchmarks.brgemm(a, b, c[:1], 1)


@pytest.mark.full
def test_run_has_shares_for_all_lengths(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ceiling, "_brgemm_products", lambda dtype: [])
    monkeypatch.setattr(agreement, "require_parity", lambda: 1)
    monkeypatch.setattr(timing, "QUICK", ONCE)
    threads = str(torch.get_num_threads())
    arguments = ["--quick", "--threads", threads, "--shapes", "3,2,20,8", "--modes", "training-forward"]
    implementations = ["--implementations", "reference", "cpu"]
    lengths = ["--lengths", "full", "padded", "packed"]
    assert run.main([*arguments, *implementations, *lengths, "--out", str(tmp_path)]) == 0
    measured = records.load(tmp_path.iterdir())
    times = [row for row in measured if row.kind == "time"]
    assert [(row.lengths, row.implementation) for row in times] == [
        (form, name) for form in ("full", "padded", "packed") for name in ("reference", "cpu")
    ]
    assert all(row.share_of_peak > 0 for row in times)
    assert "| (3,2,20,8) packed | float32 | training-forward | 0 |" in capsys.readouterr().out
    assert run.main([*arguments, "--implementations", EAGER, "--lengths", "packed"]) == 1
    assert "training-forward packed, eager: it does not support packed sequences" in capsys.readouterr().out


def test_default_names_support_the_case():
    here = default_names(SMALL)
    assert here[:3] == [EAGER, COMPILED, ONE_MAP]
    assert "reference" not in here
    assert default_names(replace(SMALL, lengths=PACKED)) == here[3:]
