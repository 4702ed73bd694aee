"""Decisions of the build: libraries, GPUs, and the reasons why a library is not built."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import checks
import pytest
import torch
import wheels
from native import choices, commands, compilers, cpu, cuda, environment, platforms, torch_headers
from setuptools import Distribution, Extension

from qacg_kernels.utils import native_libraries

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_build_options(monkeypatch):
    for variable in (
        "QACG_BUILD_CUDA",
        "QACG_BUILD_CPU",
        "QACG_BUILD_FOR",
        "CUDA_HOME",
        "CUDA_PATH",
        "TORCH_CUDA_ARCH_LIST",
        "DEBUG",
    ):
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


def test_missing_toolkit_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    reason = cuda.why_not()
    assert "nvcc was not found" in reason
    assert f"{tmp_path}/bin, which CUDA_HOME or CUDA_PATH names" in reason


def test_nvcc_of_pip_packages_is_found_last(tmp_path, monkeypatch):
    compiler = tmp_path / "nvidia/cu13/bin/nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.touch(mode=0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: which(name, path=path or str(tmp_path)))
    expected = which("nvcc", path="/usr/local/cuda/bin") or str(compiler)
    assert compilers.pip_toolkits()[0] == tmp_path / "nvidia/cu13"
    assert compilers.nvcc() == expected


def test_isolated_build_finds_nvcc_of_pip_packages(tmp_path, monkeypatch):
    home, without_nvcc = tmp_path / "nvidia/cu13", tmp_path / "nvidia/cu12"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").touch()
    without_nvcc.mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert compilers.pip_toolkits() == [home]


def test_toolkit_too_old_is_rejected(toolkit):
    toolkit("11.8")
    assert cuda.why_not() == "nvcc: expected CUDA 12.0 or newer, got 11.8"


def fake_torch(folder, version):
    """A folder with the file by which the build recognises an installed torch."""
    folder.mkdir(exist_ok=True)
    (folder / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_old_torch_is_named_with_the_oldest_supported(name, toolkit, monkeypatch, tmp_path):
    toolkit("12.8")
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    monkeypatch.setattr(torch_headers, "torch_folder", lambda: fake_torch(tmp_path / "torch", "2.9.1+cu128"))
    assert choices.why_not_built(choices.LIBRARIES[name]).startswith("torch: expected 2.10 or newer, got 2.9.1+cu128")


def test_isolated_build_finds_the_environments_torch(monkeypatch, tmp_path):
    """pip hides installed packages from imports and runs the environment's own interpreter."""
    monkeypatch.setitem(sys.modules, "torch", None)
    installed = fake_torch(tmp_path / "torch", "2.10.0")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert torch_headers.include_folder() == installed / "include"


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


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_library_without_torch_names_the_command(name, monkeypatch):
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    monkeypatch.setattr(torch_headers, "torch_folder", lambda: None)
    reason = choices.why_not_built(choices.LIBRARIES[name])
    assert reason.startswith("torch: expected an installed torch, got none; run `pip install torch` first")


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
@pytest.mark.parametrize("platform", [None, "any"])
def test_install_command_bypasses_the_cache_and_the_index(name, platform, monkeypatch):
    """pip's cache may hold a wheel without the library, and no index has the package."""
    monkeypatch.setattr(choices, "why_no_library", lambda: "no C++ compiler was found at installation")
    if platform:
        monkeypatch.setenv("QACG_BUILD_FOR", platform)
    reason = choices.why_not_built(choices.LIBRARIES[name])
    assert f"QACG_BUILD{name.upper()}=1 pip install --no-cache-dir " in reason
    assert "qacg-kernels" not in reason


@pytest.mark.parametrize("of_torch", [None, "12.8", "13.0"])
def test_cuda_version_of_torch_does_not_matter(of_torch, toolkit, monkeypatch):
    """The library has the CUDA runtime that it was compiled with, and calls torch through its stable ABI."""
    toolkit("13.0")
    monkeypatch.setattr(torch.version, "cuda", of_torch)
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    assert choices.why_not_built(choices.LIBRARIES["_cuda"]) is None


def test_cuda_library_is_built_on_request_only(toolkit, monkeypatch):
    toolkit("12.8")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(choices, "why_no_library", lambda: None)
    gpu, host = (choices.LIBRARIES[name] for name in ("_cuda", "_cpu"))
    for option in (None, "auto"):
        if option:
            monkeypatch.setenv("QACG_BUILD_CUDA", option)
        reason = choices.why_not_built(gpu)
        assert "built on request only; QACG_BUILD_CUDA=1 pip install --no-cache-dir . in a checkout" in reason
        assert "\n" not in reason
    monkeypatch.setenv("QACG_BUILD_CUDA", "0")
    assert choices.why_not_built(gpu) == "QACG_BUILD_CUDA=0 was set at installation"
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    assert choices.why_not_built(gpu) is None
    assert choices.why_not_built(host) is None


def test_reason_is_followed_by_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(choices, "why_no_library", lambda: None)
    reason = choices.why_not_built(choices.LIBRARIES["_cuda"])
    assert "nvcc was not found" in reason
    assert "QACG_BUILD_CUDA=1 pip install" in reason
    monkeypatch.setenv("QACG_BUILD_CUDA", "1")
    assert "pip install" not in choices.why_not_built(choices.LIBRARIES["_cuda"])


def test_build_does_not_look_for_a_gpu(toolkit, monkeypatch):
    def fail(*_):
        raise AssertionError("the build looked for a GPU")

    toolkit("12.8")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for name in ("is_available", "device_count", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, fail)
    assert cuda.why_not() is None


def test_gpus_by_default():
    assert cuda.gpus((12, 4)) == ["8.0", "9.0a", "9.0+PTX"]
    assert cuda.gpus((13, 0)) == ["8.0", "9.0a", "10.0+PTX", "12.0"]


@pytest.mark.parametrize("listed", ["8.0;9.0a;10.0+PTX", "8.0 9.0a 10.0+PTX", " 8.0, 9.0a 10.0+PTX "])
def test_listed_gpus_are_parsed(listed, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert cuda.gpus((13, 0)) == ["8.0", "9.0a", "10.0+PTX"]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("9.0", ["9.0a"]),
        ("8.6;9.0 9.0a", ["8.6", "9.0a"]),
        ("9.0+PTX", ["9.0a", "9.0+PTX"]),
        ("9.0a+PTX", ["9.0a", "9.0+PTX"]),
    ],
)
def test_hopper_gets_the_target_with_all_instructions(listed, expected, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert cuda.gpus((13, 0)) == expected


def test_hopper_gets_one_machine_code_and_later_gpus_ptx():
    *code, _ = cuda.gpu_flags(["9.0a", "9.0+PTX"])
    assert code == [f"-gencode=arch=compute_{n},code={made}" for n, made in (("90a", "sm_90a"), ("90", "compute_90"))]


@pytest.mark.parametrize(
    ("output", "status", "fails"),
    [
        ("", 0, False),
        ("ptxas info    : (C7999) Potential Performance Loss: something else", 0, False),
        (
            "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to",
            0,
            True,
        ),
        ("error: a syntax error", 2, True),
    ],
    ids=["nothing", "another note", "serialised products", "error"],
)
def test_compile_with_serialised_products_fails(output, status, fails, toolkit, tmp_path):
    """Runs the rule of ninja with a compiler that prints a note."""
    toolkit("13.0")
    cuda.write_ninja(tmp_path / "build.ninja", tmp_path / "_cuda.so")
    (rule,) = re.findall(r"rule compile_cuda\n  command = (.*)\n", (tmp_path / "build.ninja").read_text())
    made, serialised = tmp_path / "made.o", tmp_path / "serialised"
    command = rule.replace(
        "$nvcc -MD -MF $out.d $flags -c $in -o $out", f"(: > {made}; echo '{output}' >&2; exit {status})"
    )
    command = command.replace("$out", str(made)).replace("$serialised", str(serialised)).replace("$$", "$")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails
    assert output in done.stdout
    assert made.exists() == (status != 0 or not fails)
    assert serialised.exists() == (fails and status == 0)


@pytest.mark.parametrize("listed", ["8.0 9.0a", "9.0+PTX"])
def test_build_omits_hopper_if_nvcc_serialises_products(listed, toolkit, tmp_path, monkeypatch, capsys):
    """nvcc prints the note for sm_90a only; the second build does not have this GPU."""
    toolkit("12.4")
    compiler = tmp_path / "bin/nvcc"
    version = compiler.read_text()
    note = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
    compiler.write_text(
        f"""{version.splitlines()[0]}
case "$*" in *--version*) {version.splitlines()[1]}; exit 0;; esac
case "$*" in *sm_90a*) echo "{note}" >&2;; esac
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then : > "$2"; fi; if [ "$1" = -MF ]; then : > "$2"; fi; shift; done
"""
    )
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "build"
    folder.mkdir()
    commands.run_ninja(choices.LIBRARIES["_cuda"], folder, tmp_path / "_cuda.so")
    assert (tmp_path / "_cuda.so").exists()
    written = (folder / "build.ninja").read_text()
    assert "sm_90a" not in written
    assert "sm_90" in written
    assert "without 9.0a" in capsys.readouterr().err


def test_gpus_without_the_instructions_are_omitted(toolkit, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5 8.6")
    assert cuda.gpus((13, 0)) == ["8.6"]
    assert "7.5 is omitted" in capsys.readouterr().err
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0 7.5")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    toolkit("13.0")
    assert "TORCH_CUDA_ARCH_LIST: expected a GPU of compute capability 8.0" in cuda.why_not()


def test_gpu_that_is_no_number_raises(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    with pytest.raises(RuntimeError, match=r"expected numbers such as .* got 'Hopper'"):
        cuda.gpus((13, 0))


def test_code_flags_have_machine_code_and_ptx():
    assert cuda.code_flags("9.0a") == ["-gencode=arch=compute_90a,code=sm_90a"]
    assert cuda.code_flags("10.0+PTX")[1:] == ["-gencode=arch=compute_100,code=compute_100"]


def test_gpu_flags_have_code_and_the_list_of_gpus():
    *code, listed = cuda.gpu_flags(["8.0", "9.0a", "10.0+PTX"])
    assert code == [*cuda.code_flags("8.0"), *cuda.code_flags("9.0a"), *cuda.code_flags("10.0+PTX")]
    assert listed == "-DQACG_GPUS=8.0:9.0a:10.0+PTX"


@pytest.mark.parametrize("is_there", [True, False])
def test_link_finds_the_runtime_of_pip_packages(is_there, toolkit, tmp_path):
    toolkit("13.0")
    if is_there:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/libcudart_static.a").touch()
    cuda.write_ninja(tmp_path / "build.ninja", tmp_path / "_cuda.so")
    assert (f"-L{tmp_path}/lib" in (tmp_path / "build.ninja").read_text()) is is_there


@pytest.mark.parametrize(("jobs", "threads"), [("2", 1), ("12", 2), ("24", 4)])
def test_nvcc_gets_the_cores_that_ninja_leaves(jobs, threads, toolkit, tmp_path, monkeypatch):
    toolkit("13.0")
    monkeypatch.setenv("MAX_JOBS", jobs)
    cuda.write_ninja(tmp_path / "build.ninja", tmp_path / "_cuda.so")
    text = (tmp_path / "build.ninja").read_text()
    assert f"--threads={threads}\n" in text
    assert text.count("-DQACG_GPUS=8.0:9.0a:10.0+PTX:12.0") == len(cuda.KERNEL_SOURCES)


@pytest.mark.parametrize(("release", "expected"), [("12.9", False), ("13.0", True)])
def test_smallest_compression_requires_nvcc_13(release, expected, toolkit, tmp_path):
    toolkit(release)
    cuda.write_ninja(tmp_path / "build.ninja", tmp_path / "_cuda.so")
    assert ("--compress-mode=size" in (tmp_path / "build.ninja").read_text()) is expected


@pytest.mark.parametrize("tag", [*platforms.TARGETS, "any"])
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
    monkeypatch.setattr(choices, "why_no_library", lambda: None)
    reason = choices.why_not_built(choices.LIBRARIES["_cuda"])
    assert (reason is None) is has_cuda
    assert has_cuda or "this wheel has no compiled CUDA library" in reason


def test_wheel_with_cuda_without_a_toolkit_fails(monkeypatch):
    monkeypatch.setattr(compilers, "pip_toolkits", list)
    with pytest.raises(SystemExit, match="manylinux_2_28_x86_64: expected a CUDA toolkit of pip's packages"):
        wheels.variables_for("manylinux_2_28_x86_64")


@pytest.mark.parametrize("variable", ["QACG_BUILD_CPU", "QACG_BUILD_CUDA"])
def test_unknown_build_option_raises(variable, monkeypatch):
    monkeypatch.setenv(variable, "yes")
    with pytest.raises(RuntimeError, match=f"{variable}: expected 0, 1 or auto, got 'yes'"):
        environment.build_option(variable)


@pytest.mark.parametrize("value", ["many", "0", "-1"])
def test_jobs_that_are_no_number_raise(value, monkeypatch):
    monkeypatch.setenv("MAX_JOBS", value)
    with pytest.raises(RuntimeError, match=f"MAX_JOBS: expected a positive integer, got '{value}'"):
        environment.jobs()


def build(folder, **variables):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", folder, "--build-temp", folder / "temp"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_library_that_is_not_built_leaves_its_reason(tmp_path, monkeypatch):
    done = build(tmp_path, QACG_BUILD_CPU="0", QACG_BUILD_CUDA="0")
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(native_libraries, "_PACKAGE", tmp_path / "qacg_kernels")
    for name in ("_cpu", "_cuda"):
        reason = f"QACG_BUILD{name.upper()}=0 was set at installation"
        assert native_libraries.library(name) is None
        assert native_libraries.why_not_built(name) == reason
        assert json.loads((tmp_path / f"qacg_kernels/_build{name}.json").read_text()) == {"reason": reason}


@pytest.mark.full
def test_requested_library_that_cannot_be_built_fails(tmp_path):
    done = build(tmp_path, QACG_BUILD_CPU="0", QACG_BUILD_CUDA="1", CUDA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "QACG_BUILD_CUDA=1, but nvcc was not found at installation" in done.stderr


UNSTABLE = re.compile(r"_ZNK?(2at|3c10|5torch)|_ZT[ISV]N(2at|3c10|5torch)")


def symbols(path, *flags):
    """Names in an object or a library, with nm's letter for their kind."""
    if not shutil.which("nm"):
        pytest.skip("nm, which lists the symbols of an object, is not on this machine")
    listed = subprocess.run(["nm", *flags, str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0]: line.split()[-2] for line in listed.splitlines()}


@pytest.mark.full
@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_host_code_requires_c_functions_of_torch_only(name, tmp_path):
    """With the stable ABI a library loads on every torch since 2.10, whose C++ names may differ."""
    if choices.why_no_library():
        pytest.skip(choices.why_no_library())
    source, abi = {
        "_cpu": (cpu.HOST_SOURCE, torch_headers.CPU_FLAG),
        "_cuda": (cuda.HOST_SOURCE, torch_headers.CUDA_FLAG),
    }[name]
    made = tmp_path / "attention.o"
    flags = [*compilers.COMMON, "-O0", f"-isystem{torch_headers.include_folder()}", abi]
    subprocess.run([compilers.compiler(), *flags, "-c", str(ROOT / source), "-o", str(made)], check=True)
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


def test_cuda_library_requires_c_functions_of_torch_only():
    path = native_libraries.library("_cuda")
    if path is None:
        pytest.skip(f"the CUDA library is missing: {native_libraries.why_not_built('_cuda')}")
    kinds = symbols(path, "-D")
    assert (kinds["qacg_cuda_gpus"], kinds["qacg_cuda_shared_memory"]) == ("T", "T")
    assert kinds["aoti_torch_get_current_cuda_stream"] == "U"
    assert not [name for name in kinds if UNSTABLE.match(name) and kinds[name] == "U"]
