"""The program `qacg`, and these tests, without packages that they require."""

import re

import optional_packages
from processes import ROOT, SUPPORT, run_python
from qacg_models.cli import program

IMPORTED_AS = {"scikit-learn": "sklearn", "pyyaml": "yaml", "lazy-loader": "lazy_loader"}


def listed(file, name):
    """The modules of other projects' packages in a list of requirements."""
    requirements = re.search(rf"^ *{name} ?= ?\[(.*?)\],?$", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)[1]
    packages = re.findall(r'"([a-z0-9-]+)', requirements)
    return [IMPORTED_AS.get(package, package) for package in packages if package != "qacg-kernels"]


def test_optional_packages_cover_dependencies_and_extras():
    programs = {"pytest", "pytest-benchmark", "pytest-xdist", "ruff", "clang-format"}  # not imported by tests
    required = {*listed("python/setup.py", "install_requires"), *listed("pyproject.toml", "test")}
    for extra in ("tensorboard", "onnx", "int8", "pandas", "test"):
        required |= set(listed("python/pyproject.toml", extra))
    assert required - programs <= optional_packages.OPTIONAL


def test_command_without_a_dependency_prints_one_line(monkeypatch, capsys):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'tqdm'", name="tqdm")

    monkeypatch.setattr(program.table, "run", run)
    assert program.main(["table", "rows"]) == 2
    expected = "qacg table: tqdm is not installed. Install it with `pip install qacg-models`.\n"
    assert capsys.readouterr().err == expected


def test_pytest_skips_what_requires_a_missing_package(tmp_path):
    (tmp_path / "conftest.py").write_text(
        'import sys\n\npytest_plugins = ["optional_packages"]\nsys.modules.update({"yaml": None, "tomllib": None})\n'
    )
    (tmp_path / "test_module.py").write_text("import yaml.nodes\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_call.py").write_text("def test_b():\n    import yaml\n\ndef test_c():\n    import tomllib\n")
    (tmp_path / "test_other.py").write_text("def test_d():\n    pass\n")
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", "--rootdir", tmp_path)
    output = run_python(*command, cwd=tmp_path, status=1, paths=(SUPPORT,)).stdout
    assert "1 failed, 1 passed, 2 skipped" in output
    assert output.count("yaml is not installed") == 2
    assert "_ test_c _" in output
