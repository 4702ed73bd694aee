"""`python -m qacg_kernels.info`: the machine and the backends."""

import json
from types import SimpleNamespace

import pytest
import torch
from processes import run_python

import qacg_kernels
from qacg_kernels import info
from qacg_kernels.backends import cpu, triton


def test_collect_has_the_versions_of_this_process():
    facts = json.loads(json.dumps(info.collect()))
    assert facts["package"] == qacg_kernels.__version__
    assert facts["torch"] == torch.__version__
    assert facts["cpu"]["threads"] == torch.get_num_threads()
    assert facts["cpu"]["cores"] >= 1


def test_gpu_without_a_backend_is_reported_with_its_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(triton, "DEVICE", "cuda")
    monkeypatch.setattr(triton, "missing", list)
    monkeypatch.setattr(triton, "not_for", lambda device: ["no table"] if device.index else [])
    assert "triton     available; not on cuda:1: no table\n" in info.render(info.collect())


@pytest.mark.parametrize(("hip", "architecture"), [(None, "sm_94"), ("6.4", "gfx942")])
def test_device_line_names_the_architecture(monkeypatch, hip, architecture):
    properties = SimpleNamespace(
        name="Some GPU", major=9, minor=4, total_memory=2**37, gcnArchName="gfx942:sramecc+:xnack-"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    facts = info.collect() | {"backends": {}}
    assert f"Some GPU, {architecture}, 128.0 GiB" in info.render(facts)


@pytest.mark.parametrize("probe", ["_cpu_model", "_cuda"])
def test_failed_probe_is_printed_and_hides_nothing_else(monkeypatch, probe):
    def fail():
        raise OSError("no such file")

    monkeypatch.setattr(info, probe, fail)
    text = info.render(info.collect())
    assert "unknown (OSError: no such file)" in text
    assert f"torch         {torch.__version__}" in text


def test_rates_of_products_are_printed_on_request(monkeypatch, capsys):
    measured = cpu.product_rates()
    assert set(measured) in (set(), {"fma", "vdpbf16ps"}, set(cpu.PRODUCTS))
    assert all(rate > 0 for rate in measured.values())
    monkeypatch.setattr(cpu, "product_rates", lambda: {"fma": 114.0, "amx": 972.0})
    info.main(["--rates"])
    assert "\nproducts      fma 114, amx 972 GFLOP/s of one thread\n" in capsys.readouterr().out
    info.main([])
    assert "\nproducts " not in capsys.readouterr().out


@pytest.mark.full
def test_info_runs_as_a_program():
    assert json.loads(run_python("-m", "qacg_kernels.info", "--json").stdout)["package"] == qacg_kernels.__version__
    output = run_python("-m", "qacg_kernels.info").stdout
    assert output.startswith(f"qacg_kernels  {qacg_kernels.__version__}")
    assert "backend       reference  available" in output
