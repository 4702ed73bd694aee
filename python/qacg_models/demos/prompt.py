"""A prompt that prints predictions for typed sentences, and the shell command that starts `qacg`."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from qacg_models.errors import InputError
from qacg_models.inference.predictor import AspectPrediction, Predictor, as_predictions

# Answers with a lower probability are marked as uncertain.
CERTAIN = 0.7
PROMPT = "> "


def is_terminal() -> bool:
    """Returns whether standard input and standard output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def answer_sentences(predictor: Predictor, intro: str, read: Callable[[str], str] = input) -> None:
    """Prints predictions for each typed line, until an empty line, the end of input or Ctrl-C at the prompt.

    Args:
        predictor: a model whose first label means that there is no opinion.
        intro: text about what a person can type, printed once.
        read: function that prints its argument, a prompt, and returns a typed line; raises EOFError at the end of
            input.
    """
    with suppress(ImportError):
        import readline  # noqa: F401 -- `input` then has arrow keys and a history

    print(f"\n{intro} An empty line ends the prompt.", flush=True)
    while True:
        try:
            text = read(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not text:
            return
        try:
            found = predictor.predict(pd.DataFrame({"text": [text]}, dtype=object))
            answers = as_predictions(found, predictor.labels)
            print("\n".join(answer_lines(answers, predictor.labels[0])), flush=True)
        except InputError as error:
            print(f"  {error}", flush=True)


def answer_lines(answers: Sequence[AspectPrediction], absent: str) -> list[str]:
    """Returns a line for each aspect with an opinion, and a line with the other aspects if there are any.

    Args:
        answers: predictions for one text, one for each aspect; at least one.
        absent: the label that means that there is no opinion.
    """
    width, lines, others = max(len(answer.aspect) for answer in answers), [], []
    for answer in answers:
        share = answer.probabilities[answer.label]
        if answer.label == absent:
            others.append(answer.aspect)
        else:
            mark = "" if share >= CERTAIN else "  (uncertain)"
            lines.append(f"  {answer.aspect:<{width}}  {answer.label} {share:.0%}{mark}")
    return [*lines, *([f"  no opinion on {', '.join(others)}"] if others else [])]


def program() -> str:
    """Returns the shell command that starts `qacg` with this interpreter from the working directory."""
    script, path = Path(sys.executable).with_name("qacg"), os.environ.get("PYTHONPATH")
    if script.is_file() and path is None:
        found = shutil.which("qacg")
        return "qacg" if found is not None and Path(found) == script else shlex.quote(shown_path(script))
    prefix = "" if path is None else f"PYTHONPATH={shlex.quote(path)} "
    return f"{prefix}{shlex.quote(shown_path(Path(sys.executable)))} -m qacg_models.cli"


def shown_path(path: Path) -> str:
    """Returns the path relative to the working directory if it is in that folder, otherwise unchanged."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
