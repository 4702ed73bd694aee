"""Commands of qacg that must fail."""

from qacg_models.cli import main


def error_of(capsys, *arguments) -> str:
    """Runs a command that must fail with status 2 and print one line to stderr; returns what it prints there.

    Before the error, train describes its data on stdout, and suggest prints the number of sentences to stderr.
    """
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 2
    output, error = capsys.readouterr()
    assert output == "" or arguments[0] in ("train", "suggest")
    assert error.count("\n") == 1 or arguments[0] == "suggest", error
    assert "Traceback" not in error
    return error


def fails(capsys, arguments, *parts) -> str:
    """Like `error_of`; the error must have all `parts`."""
    error = error_of(capsys, *arguments)
    for part in parts:
        assert part in error
    return error
