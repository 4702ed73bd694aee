"""The program `qacg` without packages that it requires."""

from qacg_models.cli import program


def test_command_without_a_dependency_prints_one_line(monkeypatch, capsys):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'tqdm'", name="tqdm")

    monkeypatch.setattr(program.table, "run", run)
    assert program.main(["table", "rows"]) == 2
    expected = "qacg table: tqdm is not installed. Install it with `pip install qacg-models`.\n"
    assert capsys.readouterr().err == expected
