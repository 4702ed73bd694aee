"""Prediction of any number of texts in constant memory, with one or several processes; a killed run can be resumed.

Texts are read in windows of consecutive texts. The process with the rank `k % world_size` predicts window k, and
atomically writes the predictions to a file, the part of the window. The part of window 12 is `OUTPUT.parts/00000012`.
At the end the main process joins the parts into the output file, and removes the parts.

A part begins with a digest of its texts and a digest of its content. `OUTPUT.parts/plan.json` has the options on
which predictions depend. A resumed run requires the same options, but can have another number of processes. It reuses
parts with valid digests, and writes all other parts again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from qacg_models.configs.field_checks import check_count
from qacg_models.data import DataError
from qacg_models.data.arrow_rows import blocks
from qacg_models.data.requests import Request
from qacg_models.errors import InputError
from qacg_models.inference.aspect_predictor import AspectPrediction, AspectPredictor
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.prediction_format import PredictionLines
from qacg_models.utils.atomic_files import atomic_write, remove_folder
from qacg_models.utils.distributed import join_group, main_only, rank, run_on_main, wait_for_all, world_size
from qacg_models.utils.json_fields import convert_json_fields, read_json_as
from qacg_models.utils.output_lock import lock_output, parts_path

PLAN_NAME = "plan.json"
JOINED = "joined"
# This file marks that all parts have been joined. If it exists, an output file beside the parts belongs to this run.
DONE = "done"
PLAN_FORMAT = 1


class TextProgress(Protocol):
    """Interface of the object to which `BulkPrediction.write` reports the number of finished texts."""

    def begin(self) -> None:
        """Called before the first text."""

    def advance(self, texts: float) -> None:
        """Called with the number of texts in a finished batch, or in a window of another process.

        A batch can have only some of the rows of a text. So its number of texts is a float: the batch's share of the
        rows of its window, times the number of texts in the window that are not skipped. The number of skipped texts
        is reported in a separate call.
        """

    def skip(self, texts: int) -> None:
        """Called with the number of texts in a window that an earlier run finished."""


@dataclass(frozen=True)
class BulkPrediction:
    """Predicts texts, and returns, yields or writes the predictions as lines.

    Attributes:
        ask: the predictor.
        questions: selected aspects and targets; the aspect and the target of a request override them.
        lines: format of the output lines.
        source: file of the texts, for error messages.
        window: number of texts that are read, sorted by length and predicted together.
        batch_size: maximum number of pairs of text and context in one batch.
        by: unit of a prediction: "text", "sentence" or "document" (all sentences combined).

    Raises:
        TypeError: `window` or `batch_size` is not an integer.
        InputError: `window` or `batch_size` is below 1.
    """

    ask: AspectPredictor
    questions: Questions
    lines: PredictionLines
    source: Path
    window: int = 1024
    batch_size: int = 64
    by: str = "text"

    def __post_init__(self):
        for name in ("window", "batch_size"):
            check_count(name, getattr(self, name))

    def stream(self, requests: Iterable[Request]) -> Iterator[str]:
        """Predicts texts; yields the header (empty for JSONL), then the lines of every text in order.

        If an error occurs in a window, none of the window's lines is yielded.

        Raises:
            DataError: a text, its aspect or its target cannot be used.
            InputError: `by` is unknown, or a single text does not fit into memory.
        """
        yield self.lines.header()
        for texts in blocks(requests, self.window):
            yield from self.answers(texts)

    def answers(self, texts: list[Request], seen: Callable[[float], None] | None = None) -> list[str]:
        """Predicts one window, and returns its output lines; a skipped text has one line without a prediction.

        Args:
            texts: the texts of the window.
            seen: called after every batch with a number of texts: the batch's share of all rows, times the number of
                texts that are not skipped. It can be fractional, because a batch can have only some of the rows of a
                text. If there are skipped texts, `seen` is also called once with their number. None: a progress bar is
                shown for more than 8,192 rows.

        Raises:
            DataError: a text, its aspect or its target cannot be used.
            InputError: `by` is unknown, or a single text does not fit into memory.
        """
        asked = [request for request in texts if not request.skipped]
        found = iter(self.predictions(asked, seen))
        if seen is not None and len(asked) < len(texts):
            seen(len(texts) - len(asked))
        lines: list[str] = []
        for request in texts:
            if request.skipped:
                lines.append(self.lines.skipped_line(request))
            else:
                lines += [self.lines.line(request, prediction, sentence) for sentence, prediction in next(found)]
        return lines

    def predictions(
        self, texts: list[Request], seen: Callable[[float], None] | None = None
    ) -> list[list[tuple[int, AspectPrediction]]]:
        """Returns, for each text, pairs of a sentence number (from 1) and a prediction.

        The number is always 1 unless `by` is "sentence".

        Args:
            texts: the texts; `skipped` must be False for all of them.
            seen: called after every batch with a number of texts: the batch's share of all rows, times the number of
                texts. It can be fractional, because a batch can have only some of the rows of a text. The sum over all
                batches is the number of texts. None: a progress bar is shown for more than 8,192 rows.

        Raises:
            DataError: a text, its aspect or its target cannot be used.
            InputError: `by` is unknown, or a single text does not fit into memory.
        """
        asked = []
        for request in texts:
            try:
                asked.append(self.questions.rows(request.text, target=request.target, aspect=request.aspect))
            except InputError as error:
                raise DataError(self.source, request.line, str(error)) from None
        found = self.ask.predict_texts(
            asked, self.batch_size, self.by, seen and (lambda share: seen(share * len(texts)))
        )
        return [
            [(number // len(rows) + 1, one) for number, one in enumerate(answers)]
            for rows, answers in zip(asked, found)
        ]

    def write(
        self,
        requests: Iterable[Request],
        output: Path,
        *,
        model_digest: str,
        resume: bool = False,
        overwrite: bool = False,
        say: Callable[[str], None] = print,
        progress: TextProgress | None = None,
    ) -> int:
        """Predicts all texts, and writes the lines to a file atomically.

        An existing `output` requires `overwrite`. A resumed run can also replace `output` in two cases: the interrupted
        run was started with `overwrite` to replace a file, or was killed after it wrote `output`.

        Args:
            requests: the texts, the same in every process.
            output: the file.
            model_digest: digest of the model; a run of another model cannot be resumed.
            resume: reuse the parts of an unfinished run, if there are any.
            overwrite: replace an existing output file, and delete the parts of an unfinished run.
            say: called with a line for each damaged part of this process, and with a warning if the file system has no
                locks.
            progress: object whose methods are called at the beginning, after every batch of this process, and for
                every reused window and every window of another process; None: no calls.

        Returns:
            The number of windows that this process reused from an earlier run.

        Raises:
            DataError: a text, its aspect or its target cannot be used.
            InputError: `resume` and `overwrite` are both set; `output` exists and may not be replaced (see above); an
                unfinished run exists, and neither `resume` nor `overwrite` is set; the unfinished run has other
                options, or an unreadable plan; a part was damaged during the run; `output` is a folder, cannot be
                written, or is being written by another run; `by` is unknown; or a single text does not fit into memory.
        """
        if resume and overwrite:
            raise InputError("resume, overwrite: expected at most one of them, got both. Omit one.")
        parts = parts_path(output)
        plan = self._plan(model_digest)
        join_group()
        with lock_output(output, main_only(say)):
            before = run_on_main(lambda: _prepare(output, parts, plan, resume, overwrite))
            count, taken = self._make_parts(requests, parts, before, say, progress or _NoProgress())
            wait_for_all()
            run_on_main(lambda: _join(parts, count, output, self.lines.header()))
        return taken

    def _make_parts(
        self,
        requests: Iterable[Request],
        parts: Path,
        before: frozenset[str],
        say: Callable[[str], None],
        progress: TextProgress,
    ) -> tuple[int, int]:
        """Writes the parts of this process.

        Args:
            requests: the texts.
            parts: folder of the parts.
            before: names of the parts of an earlier run.
            say: called with a line for each damaged part.
            progress: object to which the numbers of finished texts are reported.

        Returns:
            The number of windows of all processes, and the number of windows that this process reused.
        """
        count = taken = 0
        progress.begin()
        for index, texts in enumerate(blocks(requests, self.window)):
            count += 1
            part = _part(parts, index)
            if index % world_size() != rank():
                (progress.skip if part.name in before else progress.advance)(len(texts))
                continue
            digest = _digest(texts)
            if _is_reusable(part, digest, say):
                taken += 1
                progress.skip(len(texts))
                continue
            lines = self.answers(texts, progress.advance)
            with atomic_write(part) as handle:
                handle.writelines([f"{digest} {_part_digest(digest, lines)}\n", *lines])
        return count, taken

    def _plan(self, model_digest: str) -> dict:
        questions = self.questions
        plan = {
            "format": PLAN_FORMAT,
            "model": model_digest,
            "attention": self.ask.trained.model.config._attn_implementation,
            "aspects": questions.aspects,
            "targets": questions.targets,
            "output format": self.lines.written_as,
            "ids": self.lines.has_id,
            "window": self.window,
            "by": self.by,
            "temperatures": self.ask.trained.calibration.temperatures,
            "int8": self.ask.trained.int8,
        }
        return json.loads(json.dumps(plan))


class _NoProgress:
    def begin(self) -> None:
        pass

    def advance(self, texts: float) -> None:
        pass

    def skip(self, texts: int) -> None:
        pass


def _prepare(output: Path, parts: Path, plan: dict, resume: bool, overwrite: bool) -> frozenset[str]:
    """Creates the folder of parts, or opens the folder of an unfinished run, and writes the plan.

    With `overwrite`, an existing folder of parts is deleted first.

    Returns:
        The names of the files in the folder, among them the parts of an earlier run.

    Raises:
        InputError: `output` is a folder, or exists and may not be replaced (`BulkPrediction.write`); an unfinished run
            exists, and neither `resume` nor `overwrite` is set; or the unfinished run has other options or an
            unreadable plan.
    """
    if output.is_dir():
        raise InputError(f"output: expected a file, got the folder {output}")
    if overwrite or not parts.exists():
        remove_folder(parts)
    replaces = overwrite and output.exists()
    if parts.exists() and resume:
        replaces = _check_plan(parts, plan)
    if resume and output.exists() and not parts.exists():
        raise InputError(
            f"resume: expected an unfinished run of {output}, got a complete file. Set --overwrite to replace it."
        )
    if output.exists() and not replaces and not (resume and (parts / DONE).exists()):
        raise InputError(f"output: expected a new file, got {output}, which exists. Set --overwrite to replace it.")
    if parts.exists() and not resume:
        raise InputError(f"{parts}: has an unfinished run; pass --resume to continue it, or --overwrite to start again")
    parts.mkdir(parents=True, exist_ok=True)
    with atomic_write(parts / PLAN_NAME) as handle:
        json.dump(plan | {"replaces": replaces}, handle, indent=1)
    return frozenset(path.name for path in parts.iterdir())


def _check_plan(parts: Path, plan: dict) -> bool:
    """Checks that the unfinished run has the options of `plan`.

    Returns:
        Whether the unfinished run was started to replace an existing output file.

    Raises:
        InputError: the unfinished run has other options, or its plan cannot be read.
    """
    path = parts / PLAN_NAME
    if not path.exists() and all(other.name.startswith(f".{PLAN_NAME}.") for other in parts.iterdir()):
        return False  # the run was killed before it wrote its plan
    try:
        before = read_json_as(dict[str, object], path)
        if before.get("format") == PLAN_FORMAT:
            convert_json_fields(dict.fromkeys(plan, object) | {"replaces": bool}, before, f"{path}:")
    except InputError as error:
        raise InputError(f"{error}; pass --overwrite to start again") from None
    if other := [name for name in plan if before.get(name) != plan[name]]:
        raise InputError(
            f"{parts}: expected an unfinished run with the same options, got one that differs in {', '.join(other)};"
            " pass --overwrite to start again"
        )
    return bool(before["replaces"])


def _part(parts: Path, index: int) -> Path:
    return parts / f"{index:08}"


def _digest(texts: list[Request]) -> str:
    return hashlib.sha256(json.dumps([asdict(request) for request in texts]).encode()).hexdigest()


def _part_digest(texts_digest: str, lines: Iterable[str]) -> str:
    digest = hashlib.sha256(texts_digest.encode())
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()


def _is_reusable(part: Path, digest: str, say: Callable[[str], None]) -> bool:
    """Returns whether a part is undamaged and was made from the texts with this digest."""
    if not part.is_file():
        return False
    try:
        texts_digest, _ = _read_part(part)
    except InputError as error:
        say(f"{error}; the part is predicted again")
        return False
    return texts_digest == digest


def _read_part(part: Path) -> tuple[str, list[str]]:
    """Returns the digest of a part's texts, and its lines.

    Raises:
        InputError: the part cannot be read, or is damaged.
    """
    try:
        with part.open(encoding="utf-8", newline="") as handle:
            head, *lines = handle
    except OSError as error:
        raise InputError(f"{part}: cannot be read ({error.strerror or error})") from None
    except ValueError:  # an empty file, or bytes that are not UTF-8
        head, lines = "", []
    texts_digest, _, own = head.rstrip("\n").partition(" ")
    if own != _part_digest(texts_digest, lines):
        raise InputError(f"{part}: is damaged: its digest does not match its content")
    return texts_digest, lines


def _join(parts: Path, count: int, output: Path, header: str) -> None:
    with atomic_write(parts / JOINED) as joined:
        joined.write(header)
        for index in range(count):
            try:
                joined.writelines(_read_part(_part(parts, index))[1])
            except InputError as error:
                raise InputError(f"{error}; pass --resume to predict this part again") from None
    (parts / DONE).touch()
    os.replace(parts / JOINED, output)
    remove_folder(parts)
