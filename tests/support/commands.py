"""Commands of qacg that must fail."""

from qacg_models.cli.program import main


def error_of(capsys, *arguments) -> str:
    """Runs a command that must fail with status 2 and print one line of error to stderr; returns its stderr.

    train may print before on stdout, suggest on stderr, and predict and evaluate their batch size and threads there.
    """
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 2
    output, error = capsys.readouterr()
    assert output == "" or arguments[0] in ("train", "suggest")
    lines = [line for line in error.splitlines() if " per batch" not in line]
    assert len(lines) == 1 or arguments[0] == "suggest", error
    assert "Traceback" not in error
    return error


def fails(capsys, arguments, *parts) -> str:
    """Runs a command like `error_of`, and checks that its error contains all `parts`; returns its stderr."""
    error = error_of(capsys, *arguments)
    for part in parts:
        assert part in error
    return error
