"""Files of the repository that repeat versions and commands agree with their sources."""

import re

import pytest
import torch
import yaml
from native import torch_headers
from processes import ROOT

import qacg_kernels
from qacg_kernels.utils import native_libraries

PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line and line[0] != "#"
)
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("package", ["ruff", "clang-format"])
def test_pre_commit_uses_the_pinned_version(package):
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    named = {d for hook in hooks for d in hook["additional_dependencies"] if d.startswith(f"{package}==")}
    assert named == {f"{package}=={PINNED[package]}"}


def test_citation_names_the_version_of_the_package():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == qacg_kernels.__version__


def test_both_distributions_have_the_same_license_file():
    assert (ROOT / "python/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_oldest_versions_are_the_same_everywhere():
    oldest = native_libraries.OLDEST_TORCH
    metadata = (ROOT / "pyproject.toml").read_text()
    assert oldest == torch_headers.OLDEST_TORCH
    assert f"0x{oldest[0]:02x}{oldest[1]:02x}" in torch_headers.CPU_FLAG
    assert f'"torch>={oldest[0]}.{oldest[1]}"' in metadata
    assert tuple(map(int, torch.__version__.split(".")[:2])) >= oldest


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflow_runs_commands_that_exist(name):
    jobs = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for command in commands:
        program, argument, *_ = command.split()
        assert (ROOT / argument).is_file() if program == "bash" else argument in targets


def test_tests_named_in_the_makefile_exist():
    """pytest ignores a --deselect that matches nothing."""
    for file, name in re.findall(r"(tests/\S+\.py)::(\w+)", MAKEFILE):
        assert f"def {name}(" in (ROOT / file).read_text()
    for file in re.findall(r"tests/\w[\w/]*\.py", MAKEFILE):
        assert (ROOT / file).is_file()
