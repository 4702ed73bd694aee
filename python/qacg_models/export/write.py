"""A model exported: written beside its place, run from there, compared, and only then given its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qacg_models.data import Example
from qacg_models.errors import InputError
from qacg_models.export.check import EXACT, INT8, Check, compare
from qacg_models.export.check_rows import with_longest
from qacg_models.export.formats import FORMATS
from qacg_models.export.traced import trace
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.utils.atomic_files import explain_write_errors, staged_file
from qacg_models.utils.devices import cpu_threads


def check_output(output: Path, to: str, overwrite: bool) -> None:
    """Raises InputError unless a file of the format `to` may be put at `output`."""
    suffix = FORMATS[to].suffix
    if output.suffix != suffix:
        raise InputError(f"output: got {output}, wanted a name that ends in {suffix} for {to}")
    if output.is_dir():
        raise InputError(f"{output}: is a folder, wanted a file to write")
    if output.exists() and not overwrite:
        raise InputError(f"{output}: is already there; --overwrite replaces it")


def export(
    trained: TrainedModel,
    output: Path,
    rows: Sequence[Example],
    *,
    to: str = "onnx",
    overwrite: bool = False,
    int8: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Check:
    """Exports a model to one file, which gets its name only if the check passes.

    Args:
        rows: to check on, at least one; a row that fills the model's length is added.
        to: a key of FORMATS.
        overwrite: replace the file that is there.
        int8: multiply in 8 bits, which the file is allowed to be further off for (`check.INT8`).
        say: told what is done next.

    Returns:
        The comparison of the file with the model; unless it passed there is no new file.

    Raises:
        InputError: `output` or the rows cannot be used, a package is missing, the format has no int8, or the file
            cannot be written.
    """
    check_output(output, to, overwrite)
    if not rows:
        raise InputError("rows: got none, wanted at least one to check the exported file on")
    file = FORMATS[to].load_module(int8)
    output.parent.mkdir(parents=True, exist_ok=True)
    with cpu_threads(trained.record.options.threads), staged_file(output) as made:
        say("tracing the model")
        traced = trace(trained)
        say(f"writing {to}{' in int8' if int8 else ''}")
        with explain_write_errors(output.absolute().parent):
            (file.write_int8 if int8 else file.write)(traced, made.path)
        checked = with_longest(rows, trained.record.max_length)
        say(f"checking it on {len(checked):,} rows")
        found = compare(trained, checked, file.load(made.path), file.RUNTIME, INT8 if int8 else EXACT)
        if found.passed:
            made.publish()
    return found
