"""Files of the repository that repeat versions and commands agree with their sources."""

import re
from pathlib import Path

import pytest
import yaml

import qacg_kernels

ROOT = Path(__file__).resolve().parents[2]
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line and line[0] != "#"
)


@pytest.mark.parametrize("package", ["ruff", "clang-format"])
def test_pre_commit_uses_the_pinned_version(package):
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    named = {d for hook in hooks for d in hook["additional_dependencies"] if d.startswith(f"{package}==")}
    assert named == {f"{package}=={PINNED[package]}"}


def test_citation_names_the_version_of_the_package():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == qacg_kernels.__version__


def test_both_distributions_have_the_same_license_file():
    assert (ROOT / "python/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflow_runs_commands_that_exist(name):
    jobs = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands:
        program, argument, *_ = command.split()
        assert (ROOT / argument).is_file() if program == "bash" else argument in targets


def test_release_uploads_to_the_test_index_first():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["pypi"]["needs"] == "testpypi"
    assert jobs["testpypi"]["needs"] == "build"
