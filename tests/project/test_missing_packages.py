"""The program `qacg`, and these tests, without packages that they require."""

import pytest
from processes import run_python
from qacg_models.cli import program


def test_command_without_a_dependency_prints_one_line(monkeypatch, capsys):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'tqdm'", name="tqdm")

    monkeypatch.setattr(program.table, "run", run)
    assert program.main(["table", "rows"]) == 2
    expected = "qacg table: tqdm is not installed. Install it with `pip install qacg-models`.\n"
    assert capsys.readouterr().err == expected


@pytest.mark.full
def test_operator_tests_without_transformers_are_collected():
    code = (
        "import sys, pytest\n"
        "sys.modules.update(dict.fromkeys(('qacg_models', 'transformers')))\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', '-m', '', 'tests/kernels']))"
    )
    assert "tests/kernels/test_dropout.py" in run_python("-c", code).stdout
