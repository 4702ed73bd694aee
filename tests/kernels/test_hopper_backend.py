"""The Hopper backend without a Hopper GPU: where it is, what it takes, and that "auto" uses it where it is proven and
faster alone. Its kernel is in test_hopper_emulated.py.
"""

import importlib
from types import SimpleNamespace

import faked_gpu
import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.certificates import standing
from qacg_kernels.certificates.family import Family, Scope, families_in

SCOPE = Scope("bfloat16", 64)
NAMES = ("hopper", "cuda", "triton")
FASTEST = {"hopper": 1e-3, "cuda": 2e-3, "triton": 3e-3, "reference": 9e-3}


@pytest.fixture
def library(monkeypatch):
    """A CUDA library with code for some GPUs, on a machine with a GPU of some capability."""

    def make(capability, *gpus):
        monkeypatch.setattr(cuda, "missing", list)
        monkeypatch.setattr(cuda, "_gpus", gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        for cached in (cuda.capability, hopper._of_another_kind):
            cached.cache_clear()

    yield make
    for cached in (cuda.capability, hopper._of_another_kind):
        cached.cache_clear()


def reasons(dtype=torch.bfloat16, head_dim=64):
    query = SimpleNamespace(device=torch.device("cuda:0"), dtype=dtype)
    return hopper.unsupported(SimpleNamespace(query=query, head_dim=head_dim))


def test_it_is_missing_where_the_cuda_library_is(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: ["no library"])
    assert hopper.missing() == ["no library"]


def test_a_library_without_its_code_is_told_with_how_to_build_it(library):
    library((9, 0), "8.0", "9.0", "10.0+PTX")
    (reason,) = hopper.missing()
    assert "no code for 9.0a" in reason and "TORCH_CUDA_ARCH_LIST=9.0a QACG_BUILD_CUDA=1 pip install" in reason


def test_it_takes_16_bits_on_a_hopper_gpu(library):
    library((9, 0), "8.0", "9.0a")
    assert hopper.missing() == [] == reasons() == reasons(torch.float16, 128) == reasons(head_dim=33)
    assert "dtype is torch.float32" in reasons(torch.float32)[0]
    assert "head size is 129; it takes 1 to 128" in reasons(head_dim=129)[0]


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_other_gpus_are_told_so(capability, library):
    library(capability, "8.0", "9.0a", "10.0+PTX")
    assert reasons() == [f"the GPU has compute capability {capability[0]}.0; it takes 9.0 alone"]


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """What explain says on a faked Hopper GPU with a certificate."""
    faked_gpu.install(monkeypatch, tmp_path)
    monkeypatch.setattr(hopper, "missing", list)
    monkeypatch.setattr(hopper, "unsupported", cuda.unsupported)
    monkeypatch.setattr(hopper, "note", lambda problem: None)

    def explain(certificate, **call):
        monkeypatch.setenv("QACG_CERTIFY", "cached")
        standing.of(faked_gpu.DEVICE).adopt(certificate)
        return qk.explain(*faked_gpu.call(length=512, **call))

    return explain


def test_without_a_certificate_it_is_not_used(chosen):
    told = chosen(None)
    assert told.selected == "reference" and "there is no certificate" in told.passed_by["hopper"]


@pytest.mark.parametrize("training", [False, True])
def test_it_is_used_where_it_is_proven_and_fastest(training, chosen):
    told = chosen(faked_gpu.certificate(SCOPE, FASTEST, names=NAMES), training=training)
    assert told.selected == "hopper" and told.passed_by["cuda"].startswith("hopper is preferred")
    told = chosen(faked_gpu.certificate(SCOPE, FASTEST | {"hopper": 2.5e-3}, names=NAMES), training=training)
    assert told.selected == "cuda" and told.passed_by["hopper"].startswith("cuda is preferred")


def test_where_it_is_wrong_the_others_go_on(chosen):
    wrong = Family("hopper", "forward", *SCOPE, "tiled", "plain")
    told = chosen(faked_gpu.certificate(SCOPE, FASTEST, failing=[wrong], names=NAMES))
    assert told.selected == "cuda" and "failed its proof here" in told.passed_by["hopper"]


def test_a_certificate_from_before_it_does_not_cover_it(chosen):
    told = chosen(faked_gpu.certificate(SCOPE, FASTEST))
    assert told.selected == "cuda" and "there is no certificate" in told.passed_by["hopper"]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "count"), [("float16", 128, 38), ("float32", 64, 0), ("float16", 256, 0)]
)
def test_what_it_never_takes_is_not_proven(dtype, head_dim, count):
    assert len(families_in(Scope(dtype, head_dim), "hopper")) == count


def test_a_gpu_of_another_kind_is_not_proven_for_it(library, monkeypatch):
    """By python -m qacg_kernels.certify, which asks for all that a device can have."""
    certify = importlib.import_module("qacg_kernels.certify")
    monkeypatch.setattr(certify, "_device", lambda device: faked_gpu.DEVICE)
    monkeypatch.setattr(triton, "missing", list)
    monkeypatch.setattr(triton, "not_for", lambda device: [])
    proven = []

    def prove(self, scopes, names, **options):
        proven.append(names)

    monkeypatch.setattr(standing.Standing, "prove", prove)
    for capability in ((8, 0), (9, 0)):
        library(capability, "8.0", "9.0a")
        certify.certify()
    assert proven == [("cuda", "triton"), ("hopper", "cuda", "triton")]
