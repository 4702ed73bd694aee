"""Prediction of any number of texts at constant memory, by one process or several, that can be killed and go on.

Texts are read a window at a time. Window k is the work of rank k modulo the number of processes, which writes it as
`OUTPUT.parts/K` and gives the file its name once it is on the disk. When all are there the main process joins them,
puts the whole in its place, and removes the parts.
A part begins with the digest of the texts it was made from and with its own, so that a resumed run, of any number of
processes, takes the parts that are still true and whole and makes the others again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from qacg_models.data import DataError
from qacg_models.data.requests import Request
from qacg_models.errors import InputError
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.aspect_sentiment import AspectPrediction, AspectSentiment
from qacg_models.inference.prediction_format import PredictionLines
from qacg_models.utils.atomic_files import atomic_write, remove_folder
from qacg_models.utils.distributed import join_group, main_only, rank, run_on_main, wait_for_all, world_size
from qacg_models.utils.json_fields import convert_json_fields, read_json_as
from qacg_models.utils.output_lock import lock_output, parts_path

PLAN_NAME = "plan.json"
JOINED = "joined"
# A file that is there once all parts have been joined, so that the output beside them may be that of this run.
DONE = "done"
PLAN_FORMAT = 3  # in 1 parts had no digest of their own, in 2 all was float32


class TextProgress(Protocol):
    """Receives how many texts are done, as `write` goes through them."""

    def begin(self) -> None:
        """Called before the first text."""

    def advance(self, texts: float) -> None:
        """So many more texts are done in this run; a batch may hold a part of a text's rows."""

    def skip(self, texts: int) -> None:
        """So many more texts were done by an earlier run."""


@dataclass(frozen=True)
class BulkPrediction:
    """What is asked of every text, and how the answers are written.

    Attributes:
        ask: the model.
        questions: aspects and targets of texts that bring none.
        lines: how predictions are written.
        source: the file of the texts, as errors name it.
        window: texts that are read, sorted by length and predicted together.
        batch_size: pairs of text and context in one batch.
        by: what an answer is about, one of `pieces.BY`.
    """

    ask: AspectSentiment
    questions: Questions
    lines: PredictionLines
    source: Path
    window: int = 1024
    batch_size: int = 64
    by: str = "text"

    def __post_init__(self):
        for name in ("window", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def stream(self, requests: Iterable[Request]) -> Iterator[str]:
        """The header, then the lines of every text, in the order of the texts.

        Raises:
            DataError: at the first text with an unknown aspect or target, or that names no target.
        """
        yield self.lines.header()
        for texts in windows(requests, self.window):
            yield from self.answers(texts)

    def answers(self, texts: list[Request], seen: Callable[[float], None] | None = None) -> list[str]:
        """The lines of one window; a skipped text has one line, without a prediction; `seen` as for `predictions`."""
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
        """What the model says of each text, with the number of the sentence, from 1 on.

        Args:
            seen: called after every batch with how many texts' rows it held, which add up to the number of texts.

        Raises:
            DataError: as for `stream`.
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
        """Writes all lines to a file, which appears when it is complete.

        Args:
            requests: the same in every process.
            output: the file.
            model_digest: of the model, so that parts of another one are not taken.
            resume: take the parts of an unfinished run. There need be none.
            overwrite: replace a file, or parts, that are in the way.
            say: receives a line for each part that is damaged, in the process whose part it is.
            progress: receives the texts that are done: its own process's batch by batch, those of others a window
                at a time, when this process comes to them.

        Returns:
            How many windows this process took from an earlier run.

        Raises:
            InputError: a file or parts are in the way, parts of a run with other choices, a part was damaged while
                others were made, or another run is at work on `output`.
            DataError: as for `stream`.
        """
        if resume and overwrite:
            raise InputError("resume: expected one of them, got it beside overwrite")
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
        """How many windows there are, and how many of this process's own were taken from an earlier run.

        Args:
            before: names of the parts that an earlier run left.
        """
        count = taken = 0
        progress.begin()
        for index, texts in enumerate(windows(requests, self.window)):
            count += 1
            part = _part(parts, index)
            if index % world_size() != rank():
                (progress.skip if part.name in before else progress.advance)(len(texts))
                continue
            digest = _digest(texts)
            if _is_of(part, digest, say):
                taken += 1
                progress.skip(len(texts))
                continue
            lines = self.answers(texts, progress.advance)
            with atomic_write(part) as handle:
                handle.writelines([f"{digest} {_digest_of_part(digest, lines)}\n", *lines])
        return count, taken

    def _plan(self, model_digest: str) -> dict:
        questions = self.questions
        plan = {
            "format": PLAN_FORMAT,
            "model": model_digest,
            "attention": self.ask.trained.model.config._attn_implementation,
            "aspects": questions.aspects,
            "targets": questions.targets,
            "written as": self.lines.written_as,
            "ids": self.lines.has_id,
            "window": self.window,
            "by": self.by,
            "temperatures": self.ask.trained.calibration.temperatures,
            "int8": self.ask.trained.int8,
        }
        return json.loads(json.dumps(plan))


def windows(requests: Iterable[Request], size: int) -> Iterator[list[Request]]:
    """Lists of `size` texts one after another; the last may be shorter."""
    iterator = iter(requests)
    while texts := list(islice(iterator, size)):
        yield texts


class _NoProgress:
    def begin(self) -> None:
        pass

    def advance(self, texts: float) -> None:
        pass

    def skip(self, texts: int) -> None:
        pass


def _prepare(output: Path, parts: Path, plan: dict, resume: bool, overwrite: bool) -> frozenset[str]:
    """Makes or takes up the folder of parts; returns the names of those that an earlier run left."""
    if output.is_dir():
        raise InputError(f"{output}: is a folder, wanted a file to write")
    if overwrite or not parts.exists():
        remove_folder(parts)
    replaces = overwrite and output.exists()
    if parts.exists() and resume:
        replaces = _check_plan(parts, plan)
    if output.exists() and not replaces and not (resume and (parts / DONE).exists()):
        raise InputError(f"{output}: is already there; --overwrite replaces it")
    if parts.exists() and not resume:
        raise InputError(f"{parts}: holds an unfinished run; --resume goes on with it, --overwrite begins anew")
    parts.mkdir(parents=True, exist_ok=True)
    with atomic_write(parts / PLAN_NAME) as handle:
        json.dump(plan | {"replaces": replaces}, handle, indent=1)
    return frozenset(path.name for path in parts.iterdir())


def _check_plan(parts: Path, plan: dict) -> bool:
    """Whether the unfinished run that these parts are of was to replace a file.

    Raises:
        InputError: they are of another plan, or of one that cannot be read.
    """
    path = parts / PLAN_NAME
    if not path.exists() and all(other.name.startswith(f".{PLAN_NAME}.") for other in parts.iterdir()):
        return False  # killed before it had written down what it was about to do
    try:
        before = read_json_as(dict[str, object], path)
        if before.get("format") == PLAN_FORMAT:
            convert_json_fields(dict.fromkeys(plan, object) | {"replaces": bool}, before, f"{path}:")
    except InputError as error:
        raise InputError(f"{error}; --overwrite begins anew") from None
    if other := [name for name in plan if before.get(name) != plan[name]]:
        raise InputError(f"{parts}: holds a run of another {', '.join(other)}; --overwrite begins anew")
    return bool(before["replaces"])


def _part(parts: Path, index: int) -> Path:
    return parts / f"{index:08}"


def _digest(texts: list[Request]) -> str:
    return hashlib.sha256(json.dumps([asdict(request) for request in texts]).encode()).hexdigest()


def _digest_of_part(of_texts: str, lines: Iterable[str]) -> str:
    digest = hashlib.sha256(of_texts.encode())
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()


def _is_of(part: Path, digest: str, say: Callable[[str], None]) -> bool:
    """Whether a part was made from the texts of this digest, and is whole."""
    if not part.is_file():
        return False
    try:
        of_texts, _ = _read_part(part)
    except InputError as error:
        say(f"{error}; it is made again")
        return False
    return of_texts == digest


def _read_part(part: Path) -> tuple[str, list[str]]:
    """The digest of the texts a part was made from, and its lines.

    Raises:
        InputError: it cannot be read, or is not what was written.
    """
    try:
        with part.open(encoding="utf-8", newline="") as handle:
            head, *lines = handle
    except OSError as error:
        raise InputError(f"{part}: cannot be read ({error.strerror or error})") from None
    except ValueError:  # an empty file, or bytes that are not UTF-8
        head, lines = "", []
    of_texts, _, own = head.rstrip("\n").partition(" ")
    if own != _digest_of_part(of_texts, lines):
        raise InputError(f"{part}: is not what was written, its digest is another")
    return of_texts, lines


def _join(parts: Path, count: int, output: Path, header: str) -> None:
    with atomic_write(parts / JOINED) as joined:
        joined.write(header)
        for index in range(count):
            try:
                joined.writelines(_read_part(_part(parts, index))[1])
            except InputError as error:
                raise InputError(f"{error}; --resume makes it again") from None
    (parts / DONE).touch()
    os.replace(parts / JOINED, output)
    remove_folder(parts)
