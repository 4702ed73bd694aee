"""Decisions of the build: libraries, GPUs, and the reasons why a library is not built."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig

import checks
import pytest
import torch
import wheels
from native import commands, compilers, cuda, environment, torch_headers
from processes import ROOT, run_python
from setuptools import Distribution, Extension

from qacg_kernels.utils import native_libraries


@pytest.fixture(autouse=True)
def no_build_options(monkeypatch):
    options = [name for name in os.environ if name.startswith("QACG_BUILD_")]
    for variable in (*options, "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "DEBUG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Makes a CUDA toolkit whose nvcc prints its version."""

    def make(release):
        compiler = tmp_path / "bin/nvcc"
        compiler.parent.mkdir(exist_ok=True)
        compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))

    return make


def test_isolated_build_finds_nvcc_of_pip_packages(tmp_path, monkeypatch):
    home, without_nvcc = tmp_path / "nvidia/cu13", tmp_path / "nvidia/cu12"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").touch()
    without_nvcc.mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert compilers.pip_toolkits() == [home]


def test_missing_or_old_toolkit_is_rejected(toolkit, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "nvcc was not found" in cuda.why_not()
    toolkit("11.8")
    assert cuda.why_not() == "nvcc: expected CUDA 12.0 or newer, got 11.8"


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_old_torch_is_named_with_the_oldest_supported(name, toolkit, monkeypatch, tmp_path):
    toolkit("12.8")
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    (tmp_path / "version.py").write_text("__version__ = '2.9.1+cu128'\n")
    monkeypatch.setattr(torch_headers, "torch_folder", lambda: tmp_path)
    assert commands.why_not_built(commands.LIBRARIES[name]).startswith("torch: expected 2.10 or newer, got 2.9.1+cu128")


def test_build_without_torch_fails_with_commands(monkeypatch, tmp_path):
    """pip would cache a wheel with the reference only."""
    monkeypatch.setattr(torch_headers, "torch_folder", lambda: None)
    command = commands.BuildWithNinja(Distribution({"ext_modules": [Extension("qacg_kernels._cpu", [])]}))
    command.build_lib, command.inplace = str(tmp_path), False
    with pytest.raises(RuntimeError, match=r"pip install torch.*--no-cache-dir.*QACG_BUILD_CPU=0"):
        command.build_extension(Extension("qacg_kernels._cpu", []))
    monkeypatch.setenv("QACG_BUILD_CPU", "0")
    command.build_extension(Extension("qacg_kernels._cpu", []))
    assert "QACG_BUILD_CPU=0" in (tmp_path / "qacg_kernels/_build_cpu.json").read_text()


def test_cuda_library_is_built_on_request_only(toolkit, monkeypatch):
    toolkit("12.8")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(commands, "why_no_library", lambda: None)
    gpu, host = (commands.LIBRARIES[name] for name in ("_cuda", "_cpu"))
    for option in (None, "auto"):
        if option:
            monkeypatch.setenv("QACG_BUILD_CUDA", option)
        reason = commands.why_not_built(gpu)
        assert "built on request only; QACG_BUILD_CUDA=1 pip install --no-cache-dir . in a checkout" in reason
        assert "\n" not in reason
    monkeypatch.setenv("QACG_BUILD_CUDA", "0")
    assert commands.why_not_built(gpu) == "QACG_BUILD_CUDA=0 was set at installation"
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    assert commands.why_not_built(gpu) is None
    assert commands.why_not_built(host) is None


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["8.0", "9.0", "10.0+PTX", "12.0"]),
        (" 8.6; 9.0 9.0 10.0f", ["8.6", "9.0", "10.0f"]),
        ("9.0+PTX", ["9.0+PTX"]),
    ],
)
def test_gpus_are_those_listed_or_the_default(listed, expected, monkeypatch):
    if listed:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert cuda.gpus((13, 0)) == expected


def test_gpu_flags_have_machine_code_ptx_and_the_list():
    *code, listed = cuda.gpu_flags(["8.0", "9.0", "9.0+PTX"])
    made = (("80", "sm_80"), ("90", "sm_90"), ("90", "compute_90"))
    assert code == [f"-gencode=arch=compute_{virtual},code={real}" for virtual, real in made]
    assert listed == "-DQACG_GPUS=8.0:9.0:9.0+PTX"


def test_gpus_without_the_instructions_are_omitted(toolkit, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5 8.6")
    assert cuda.gpus((13, 0)) == ["8.6"]
    assert "7.5 is omitted" in capsys.readouterr().err
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0 7.5")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    toolkit("13.0")
    assert "TORCH_CUDA_ARCH_LIST: expected a GPU of compute capability 8.0" in cuda.why_not()


@pytest.mark.parametrize(("release", "compresses"), [("12.9", False), ("13.0", True)])
def test_cuda_build_follows_the_toolkit(release, compresses, toolkit, tmp_path):
    """The smallest compression requires nvcc 13, and pip's packages have the runtime in another folder."""
    toolkit(release)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcudart_static.a").touch()
    cuda.write_ninja(tmp_path / "build.ninja", tmp_path / "_cuda.so")
    text = (tmp_path / "build.ninja").read_text()
    assert ("--compress-mode=size" in text) is compresses
    assert f"-L{tmp_path}/lib" in text
    assert text.count("-DQACG_GPUS=") == len(cuda.KERNEL_SOURCES)


@pytest.mark.parametrize("tag", [*environment.TARGETS, "any"])
def test_wheel_for_linux_x86_64_alone_has_the_cuda_library(tag, toolkit, tmp_path, monkeypatch):
    toolkit("13.0")
    has_cuda = tag == "manylinux_2_28_x86_64"
    assert (checks.CUDA_LIBRARY in checks.libraries_for(tag)) is has_cuda
    variables = wheels.variables_for(tag)
    assert ("QACG_BUILD_CUDA" in variables, variables.get("CUDA_HOME")) == (
        has_cuda,
        str(tmp_path) if has_cuda else None,
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(commands, "why_no_library", lambda: None)
    reason = commands.why_not_built(commands.LIBRARIES["_cuda"])
    assert (reason is None) is has_cuda
    assert has_cuda or "this wheel has no compiled CUDA library" in reason


@pytest.mark.parametrize("tag", [*environment.TARGETS, "any"])
def test_wheel_with_exactly_the_libraries_of_its_tag_passes(tag, tmp_path, monkeypatch):
    wheel = tmp_path / "qacg_kernels.whl"
    wheel.touch()
    contents = dict.fromkeys(checks.modules(ROOT, "qacg_kernels") | {"qacg_kernels/py.typed"}, b"")
    contents |= {"qacg_kernels-0.dist-info/METADATA": b"Requires-Dist: torch>=2.10\n\n"}
    for name in ("check_elf", "check_mach_o", "check_manylinux"):
        monkeypatch.setattr(checks, name, lambda *arguments: "checked")
    libraries = checks.libraries_for(tag)
    for there in (libraries, [*libraries, "qacg_kernels/_other.so"]):
        monkeypatch.setattr(checks, "_contents", lambda *arguments, there=there: contents | dict.fromkeys(there, b""))
        if there == libraries:
            assert checks.check_wheel(wheel, tag, ROOT)
        else:
            with pytest.raises(checks.CheckError, match="expected the libraries"):
                checks.check_wheel(wheel, tag, ROOT)


def test_wheel_with_cuda_without_a_toolkit_fails(monkeypatch):
    monkeypatch.setattr(compilers, "pip_toolkits", list)
    with pytest.raises(SystemExit, match="manylinux_2_28_x86_64: expected a CUDA toolkit of pip's packages"):
        wheels.variables_for("manylinux_2_28_x86_64")


@pytest.mark.parametrize(
    ("read", "variable", "value", "expected"),
    [
        (lambda: environment.build_option("QACG_BUILD_CPU"), "QACG_BUILD_CPU", "yes", "0, 1 or auto"),
        (environment.jobs, "MAX_JOBS", "many", "a positive integer"),
        (environment.jobs, "MAX_JOBS", "0", "a positive integer"),
    ],
)
def test_build_variable_of_another_form_raises(read, variable, value, expected, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(RuntimeError, match=f"{variable}: expected {expected}, got '{value}'"):
        read()


def test_library_that_is_not_built_leaves_its_reason(tmp_path, monkeypatch):
    folders = ("--build-lib", tmp_path, "--build-temp", tmp_path / "temp")
    run_python("setup.py", "build_ext", *folders, QACG_BUILD_CPU="0", QACG_BUILD_CUDA="0")
    monkeypatch.setattr(native_libraries, "_PACKAGE", tmp_path / "qacg_kernels")
    for name in ("_cpu", "_cuda"):
        reason = f"QACG_BUILD{name.upper()}=0 was set at installation"
        assert native_libraries.library(name) is None
        assert native_libraries.why_not_built(name) == reason
        assert json.loads((tmp_path / f"qacg_kernels/_build{name}.json").read_text()) == {"reason": reason}


UNSTABLE = re.compile(r"_ZNK?(2at|3c10|5torch)|_ZT[ISV]N(2at|3c10|5torch)")


def symbols(path, *flags):
    """Names in an object or a library, with nm's letter for their kind."""
    if not shutil.which("nm"):
        pytest.skip("nm, which lists the symbols of an object, is not on this machine")
    listed = subprocess.run(["nm", *flags, str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0]: line.split()[-2] for line in listed.splitlines()}


@pytest.mark.full
def test_cuda_host_code_requires_c_functions_of_torch_only(tmp_path):
    """With the stable ABI a library loads on every torch since 2.10, whose C++ names may differ."""
    if commands.why_no_library():
        pytest.skip(commands.why_no_library())
    made = tmp_path / "attention.o"
    flags = [*compilers.COMMON, "-O0", f"-isystem{torch_headers.include_folder()}", torch_headers.CUDA_FLAG]
    subprocess.run([compilers.compiler(), *flags, "-c", str(ROOT / cuda.HOST_SOURCE), "-o", str(made)], check=True)
    required = symbols(made, "--undefined-only")
    assert any(symbol.startswith("aoti_torch_") for symbol in required)
    assert not [symbol for symbol in required if UNSTABLE.match(symbol)]


def test_cpu_library_requires_c_functions_of_torch_only():
    path = native_libraries.library("_cpu")
    if path is None:
        pytest.skip(f"the CPU library is missing: {native_libraries.why_not_built('_cpu')}")
    kinds = symbols(path, "-D")
    assert kinds["qacg_cpu_instruction_set"] == "T"
    assert (kinds["aoti_torch_get_sizes"], kinds["torch_parallel_for"]) == ("U", "U")
    assert not [name for name in kinds if UNSTABLE.match(name) and kinds[name] == "U"]
    assert not [name for name in kinds if name.startswith(("Py", "_Py"))]
