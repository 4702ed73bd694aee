"""Export of a model: writes a temporary file, runs the file, compares it with the model, then renames the file."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from qacg_models.data import Example
from qacg_models.errors import InputError
from qacg_models.export.check import EXACT, INT8, Check, compare
from qacg_models.export.check_rows import with_longest
from qacg_models.export.formats import FORMATS
from qacg_models.export.traced import trace
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.modules.context import fold_context, has_context_layers
from qacg_models.utils.atomic_files import explain_write_errors, staged_file
from qacg_models.utils.cells import counted
from qacg_models.utils.devices import cpu_threads
from qacg_models.utils.outputs import check_writable


def check_output(output: Path, suffix: str, overwrite: bool) -> None:
    """Checks that an exported file may be written.

    Args:
        output: path of the file.
        suffix: required suffix, with the dot.
        overwrite: whether an existing file may be replaced.

    Raises:
        InputError: `output` has another suffix, is a folder, exists and may not be replaced, or cannot be written.
    """
    if output.suffix != suffix:
        raise InputError(f"output: expected a name that ends in {suffix}, got {output}")
    if output.is_dir():
        raise InputError(f"output: expected a file, got the folder {output}")
    if output.exists() and not overwrite:
        raise InputError(f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it.")
    check_writable("output", output)


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
    """Exports a model to one file, which appears as `output` only if the check passes.

    Args:
        trained: the model, in float32.
        output: path of the file; its folder is created.
        rows: examples on which the file is checked, at least one; an example of the model's maximum length is added.
        to: a key of FORMATS.
        overwrite: replace an existing file.
        int8: use int8 linear layers, and check with the wider limits `check.INT8`. The context path of `trained` is
            then folded in place (`fold_context`).
        say: called with a line before each step.

    Returns:
        The comparison of the file with the model. If `passed` is False, no file is written.

    Raises:
        InputError: `to`, `output` or `rows` is invalid, the model is not in float32, a package is missing, the format
            has no int8, or the file or its folder cannot be written.
    """
    if to not in FORMATS:
        raise InputError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    if trained.model.dtype != torch.float32:
        raise InputError(f"trained: expected a model in float32, got {trained.model.dtype}. Call trained.model.float()")
    check_output(output, FORMATS[to].suffix, overwrite)
    if not rows:
        raise InputError("rows: expected at least one example to check the exported file on, got none")
    file = FORMATS[to].load_module(int8)
    output.parent.mkdir(parents=True, exist_ok=True)
    with cpu_threads(trained.record.options.threads), staged_file(output) as made:
        if int8 and has_context_layers(trained.model):
            fold_context(trained.model)  # as `qacg predict --int8` does
        say("tracing the model")
        traced = trace(trained)
        say(f"writing {to}{' in int8' if int8 else ''}")
        with explain_write_errors(output.absolute().parent):
            (file.write_int8 if int8 else file.write)(traced, made.path)
        checked = with_longest(rows, trained.record.max_length)
        say(f"comparing the file with the model on {counted(len(checked), 'example')}")
        found = compare(trained, checked, file.load(made.path), file.RUNTIME, INT8 if int8 else EXACT)
        if found.passed:
            made.publish()
    return found
