"""Prediction of many texts by chunks; a run that was killed while it wrote a file can be resumed.

The lines of each chunk are appended to `OUTPUT.partial`, which is renamed to OUTPUT at the end. `OUTPUT.partial.state`
is one line: the number of whole chunks, their size in bytes, and what the predictions depend on. It is updated after
its chunk is on the disk. So a resumed run cuts a chunk that was not written whole, and predicts the texts after it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.example import blocks
from qacg_models.data.requests import Request
from qacg_models.errors import InputError
from qacg_models.inference.aspect_predictor import AspectPrediction, AspectPredictor
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.prediction_format import PredictionLines
from qacg_models.utils.field_checks import check_count
from qacg_models.utils.output_lock import lock_output, partial_path
from qacg_models.utils.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm


@dataclass(frozen=True)
class BulkPrediction:
    """Predicts texts, and returns, yields or writes the predictions as lines.

    Attributes:
        ask: the predictor.
        questions: selected aspects and targets; the aspect and the target of a request override them.
        lines: format of the output lines.
        window: number of texts in a chunk, which are sorted by length and predicted together.
        batch_size: maximum number of pairs of text and context in one batch.
        by: unit of a prediction: "text", "sentence" or "document" (all sentences combined).

    Raises:
        TypeError: `window` or `batch_size` is not an integer.
        InputError: `window` or `batch_size` is below 1.
    """

    ask: AspectPredictor
    questions: Questions
    lines: PredictionLines
    window: int = 1024
    batch_size: int = 64
    by: str = "text"

    def __post_init__(self):
        for name in ("window", "batch_size"):
            check_count(name, getattr(self, name))

    def stream(self, requests: Sequence[Request]) -> Iterator[str]:
        """Predicts texts; yields the header (empty for JSONL), then the lines of every text in order.

        Raises:
            InputError: a text, its aspect or its target cannot be used, `by` is unknown, or a single text does not fit
                into memory.
        """
        yield self.lines.header()
        for texts in blocks(requests, self.window):
            yield from self.answers(texts)

    def answers(self, texts: Sequence[Request], seen: Callable[[float], None] | None = None) -> list[str]:
        """Predicts one chunk, and returns its output lines; a skipped text has one line without a prediction.

        Args:
            texts: the texts of the chunk.
            seen: called after every batch with its share of the rows, in (0, 1]; None: a progress bar is shown for
                more than 8,192 rows.

        Raises:
            InputError: as `stream`.
        """
        found = iter(self.predictions([request for request in texts if not request.skipped], seen))
        lines: list[str] = []
        for request in texts:
            if request.skipped:
                lines.append(self.lines.skipped_line(request))
            else:
                lines += [self.lines.line(request, prediction, sentence) for sentence, prediction in next(found)]
        return lines

    def predictions(
        self, texts: Sequence[Request], seen: Callable[[float], None] | None = None
    ) -> list[list[tuple[int, AspectPrediction]]]:
        """Returns, for each text, pairs of a sentence number (from 1) and a prediction.

        The number is always 1 unless `by` is "sentence".

        Args:
            texts: the texts; `skipped` must be False for all of them.
            seen: as in `answers`.

        Raises:
            InputError: as `stream`.
        """
        asked = [self.questions.rows(one.text, target=one.target, aspect=one.aspect) for one in texts]
        found = self.ask.predict_texts(asked, self.batch_size, self.by, seen)
        return [
            [(number // len(rows) + 1, one) for number, one in enumerate(answers)]
            for rows, answers in zip(asked, found)
        ]

    def write(
        self,
        requests: Sequence[Request],
        output: Path,
        *,
        model_digest: str,
        resume: bool = False,
        overwrite: bool = False,
        say: Callable[[str], None] = print,
    ) -> int:
        """Predicts all texts, and writes the lines to a file, which appears when it is complete.

        An existing `output` requires `overwrite`, or `resume` of a run that was started with `overwrite`.

        Args:
            requests: the texts.
            output: the file.
            model_digest: digest of the model; a run of another model cannot be resumed.
            resume: continue an unfinished run, if there is one.
            overwrite: replace an existing output file, and delete what an unfinished run wrote.
            say: called with a warning if the file system has no locks.

        Returns:
            The number of texts that an earlier run predicted.

        Raises:
            InputError: `resume` and `overwrite` are both set; `output` exists and may not be replaced (see above); an
                unfinished run exists, and neither `resume` nor `overwrite` is set; the unfinished run has another
                model, other options or other texts; `output` is a folder, cannot be written, or is being written by
                another run; or as `stream`.
        """
        if resume and overwrite:
            raise InputError("resume, overwrite: expected at most one of them, got both. Omit one.")
        with lock_output(output, say):
            file = _Unfinished(output, self._run(requests, model_digest), self.lines.header(), resume, overwrite)
            start = min(file.chunks * self.window, len(requests))
            with closing(progress_bar(len(requests), "predicting", "text", done=start)) as bar:
                for texts in blocks(requests[start:], self.window):
                    file.append(self._chunk(texts, bar))
            file.publish()
        return start

    def _chunk(self, texts: Sequence[Request], bar: tqdm) -> list[str]:
        """Returns the lines of a chunk, and updates the bar after every batch, in whole texts."""
        start, share = bar.n, 0.0

        def advance(more: float) -> None:
            nonlocal share
            share += more
            bar.update(start + int(share * len(texts) + 1e-6) - bar.n)

        lines = self.answers(texts, advance)
        bar.update(start + len(texts) - bar.n)
        return lines

    def _run(self, requests: Sequence[Request], model_digest: str) -> dict:
        """Returns what the predictions depend on, as JSON types."""
        texts = hashlib.sha256()
        for request in requests:
            texts.update(repr(request).encode())
        trained = self.ask.trained
        run = {
            "model": model_digest,
            "attention": trained.model.config._attn_implementation,
            "temperatures": trained.calibration.temperatures,
            "int8": trained.int8,
            "aspects": self.questions.aspects,
            "targets": self.questions.targets,
            "output format": repr(self.lines),
            "window": self.window,
            "by": self.by,
            "texts": texts.hexdigest(),
        }
        return json.loads(json.dumps(run))


class _Unfinished:
    """The file of a run while it grows by whole chunks, and its state.

    Args:
        output: name of the file when it is complete.
        run: what the predictions depend on.
        header: first line of the file.
        resume, overwrite: as in `BulkPrediction.write`, as are the errors.

    Attributes:
        chunks: number of chunks in the file.
    """

    def __init__(self, output: Path, run: dict, header: str, resume: bool, overwrite: bool):
        self.output, self.partial, self.run, self.header = output, partial_path(output), run, header
        self.state = self.partial.with_name(f"{self.partial.name}.state")
        self.chunks = self.size = 0
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
                advice = "Set --overwrite to replace it."
                raise InputError(f"output: expected a new file, got {output}, which exists. {advice}")
            if begun and not resume:
                advice = "pass --resume to continue it, or --overwrite to start again"
                raise InputError(f"{self.partial}: has an unfinished run; {advice}")
            if not begun:
                line = f"{self._counts()} {json.dumps(run | {'replaces': replaces})}\n"
                self.state.write_text(line, encoding="utf-8")
                self.partial.touch()

    def append(self, lines: list[str]) -> None:
        """Writes a chunk to the disk, and then the state."""
        content = "".join(lines if self.chunks else [self.header, *lines]).encode()
        with self._writing():
            with self.partial.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.chunks += 1
            self.size += len(content)
            with self.state.open("r+", encoding="utf-8") as file:
                file.write(self._counts())

    def publish(self) -> None:
        """Renames the complete file."""
        with self._writing():
            os.replace(self.partial, self.output)
            self.state.unlink(missing_ok=True)

    def _counts(self) -> str:
        return f"{self.chunks:12} {self.size:20}"  # of constant width, because it is overwritten in place

    def _continue(self) -> bool:
        """Reads the state and cuts a torn chunk; returns whether the run was started to replace an existing file."""
        try:
            chunks, size, run = self.state.read_text(encoding="utf-8").split(maxsplit=2)
            self.chunks, self.size, found = int(chunks), int(size), dict(json.loads(run))
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
