"""The files of a release: sdists that build, and wheels with correct contents and tags."""

import os
import shutil
import tarfile
import zipfile

import checks
import pytest
import wheels
from processes import ROOT, run_python

import qacg_kernels

CALL = """
import torch, qacg_kernels
from qacg_kernels.backends import cpu
assert not cpu.missing(), cpu.missing()
row = torch.ones(1, 1, 2, 8)
print(qacg_kernels.quasi_attention(row, row, row, row, row, 0 * row[..., 0], backend="cpu").sum().item())
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return wheels.build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def test_sdist_has_every_source(sdist):
    checks.check_sdist(sdist, ROOT)
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    for name in ("Makefile", "python/README.md", "tests/conftest.py", "benchmarks/__init__.py"):
        assert f"qacg_kernels-{qacg_kernels.__version__}/{name}" in names


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Both sdists and their wheels without a library, by name: of this folder, and of a copy with other file times."""
    builds = []
    for name in ("one", "two"):
        out = tmp_path_factory.mktemp(name)
        source = shutil.copytree(
            ROOT, out / "source", ignore=shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info")
        )
        for path in source.rglob("*"):
            os.utime(path, (len(builds) * 10**6 + 10**9,) * 2)
        made = [wheels.build("sdist", source, out), wheels.build("sdist", source / "python", out)]
        variables = {"QACG_BUILD_FOR": "any", "QACG_BUILD_CPU": "0"}
        made += [wheels.build_wheel(made[0], out, **variables), wheels.build_wheel(made[1], out)]
        builds.append({path.name: path.read_bytes() for path in made})
    return builds


@pytest.mark.full
def test_two_builds_are_equal_byte_for_byte(twice):
    one, two = twice
    assert len(one) == 4
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


# The host half, whose errors name source files, and one translation unit of kernels.
LINK = """
from pathlib import Path
from native import commands, cpu
cpu.SOURCES = {name: flags for name, flags in cpu.SOURCES.items() if not any(w in name for w in ("avx", "amx", "bf16"))}
commands.run_ninja(commands.LIBRARIES["_cpu"], Path.cwd(), Path.cwd() / "_cpu.so")
"""


@pytest.mark.full
def test_cpu_library_is_the_same_from_another_folder(tmp_path):
    libraries = []
    for name in ("one", "a longer name"):
        source = shutil.copytree(ROOT / "csrc", tmp_path / name / "csrc").parent
        shutil.copytree(ROOT / "distributions", source / "distributions")
        (source / "build").mkdir()
        run_python("-c", LINK, cwd=source / "build", paths=(source / "distributions", ROOT))
        libraries.append((source / "build/_cpu.so").read_bytes())
    assert libraries[0] == libraries[1]


def test_sdist_has_the_given_date(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    with tarfile.open(wheels.build("sdist", ROOT / "python", tmp_path)) as archive:
        assert {member.mtime for member in archive.getmembers()} == {1600000000}


def test_models_wheel_has_every_module_and_the_pin(tmp_path):
    wheel = wheels.build_models(tmp_path)
    checks.check_models_wheel(wheel, ROOT, qacg_kernels.__version__)


@pytest.mark.full
def test_wheel_with_the_library_builds_from_the_sdist(sdist, tmp_path):
    """The tag of the wheel fits every version of Python."""
    wheel = wheels.build_wheel(sdist, tmp_path, QACG_BUILD_CPU="1", DEBUG="1", MAX_JOBS="2")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert float(run_python("-c", CALL, cwd=tmp_path, paths=(tmp_path / "installed",)).stdout) == 16.0
