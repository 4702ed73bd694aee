"""A file of predictions that grows by whole chunks, so that a run that was killed can be resumed.

The lines are appended to `OUTPUT.partial`, which is renamed to OUTPUT at the end. `OUTPUT.partial.state` is one line:
the number of predicted texts, the size of their lines in bytes, and what the predictions depend on. It is updated after
a chunk is on the disk. So a resumed run cuts a chunk that was not written whole, and predicts the texts after it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.utils.output_lock import partial_path


class PartialFile:
    """Opens the unfinished file of an output, or creates it.

    Args:
        output: name of the file when it is complete.
        run: what the predictions depend on, as JSON types.
        resume: continue an unfinished run, if there is one.
        overwrite: replace an existing output, and delete what an unfinished run wrote.

    Attributes:
        texts: number of texts whose predictions are in the file.

    Raises:
        InputError: `output` exists and may not be replaced; an unfinished run exists, and neither `resume` nor
            `overwrite` is set; the unfinished run differs in `run`; or a file cannot be written.
    """

    def __init__(self, output: Path, run: dict, *, resume: bool, overwrite: bool):
        self.output, self.partial, self.run = output, partial_path(output), run
        self.state = self.partial.with_name(f"{self.partial.name}.state")
        self.texts = self.size = 0
        if output.is_dir():
            raise InputError(f"output: expected a file, got the folder {output}")
        with self._writing():
            if overwrite:
                self.partial.unlink(missing_ok=True)
            begun = self.partial.exists()
            replaces = self._continue() if begun and resume else overwrite
            if not begun:
                self.state.unlink(missing_ok=True)
            if output.exists() and not replaces:
                raise InputError(
                    f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it."
                )
            if begun and not resume:
                advice = "pass --resume to continue it, or --overwrite to start again"
                raise InputError(f"{self.partial}: has an unfinished run; {advice}")
            if not begun:
                line = f"{self._counts()} {json.dumps(run | {'replaces': replaces})}\n"
                self.state.write_text(line, encoding="utf-8")
                self.partial.touch()

    def append(self, lines: str, texts: int) -> None:
        """Writes the lines of a number of texts to the disk, and then the state."""
        content = lines.encode()
        with self._writing():
            with self.partial.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.texts += texts
            self.size += len(content)
            with self.state.open("r+", encoding="utf-8") as file:
                file.write(self._counts())

    def publish(self) -> None:
        """Renames the complete file."""
        with self._writing():
            os.replace(self.partial, self.output)
            self.state.unlink(missing_ok=True)

    def _counts(self) -> str:
        return f"{self.texts:12} {self.size:20}"  # of constant width, because it is overwritten in place

    def _continue(self) -> bool:
        """Reads the state and cuts a torn chunk; returns whether the run was started to replace an existing file."""
        try:
            texts, size, run = self.state.read_text(encoding="utf-8").split(maxsplit=2)
            self.texts, self.size, found = int(texts), int(size), dict(json.loads(run))
        except (FileNotFoundError, ValueError, TypeError):
            found = {}
        other = [name for name in self.run if found.get(name) != self.run[name]]
        other += ["the size of the file"] if self.partial.stat().st_size < self.size else []
        if other:
            raise InputError(
                f"{self.partial}: expected an unfinished run with the same model, options and texts, got one that"
                f" differs in {', '.join(other)}; pass --overwrite to start again"
            )
        os.truncate(self.partial, self.size)
        return bool(found["replaces"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.partial}: cannot be written ({error.strerror or error})") from error
