"""Files of predictions: their lines, the partial file that a resumed run continues, and counts of truncated texts.

The lines are appended to `OUTPUT.partial`, which is renamed to OUTPUT at the end. `OUTPUT.partial.state` is one line:
the number of predicted texts, the size of their lines in bytes, and what the predictions depend on. It is updated after
a chunk is on the disk. So a resumed run cuts a chunk that was not written whole, and predicts the texts after it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from qacg_models.errors import InputError
from qacg_models.sentiment.example import Task, blocks
from qacg_models.sentiment.trained_model import TrainedModel
from qacg_models.utils.files import partial_path
from qacg_models.utils.text import counted

FORMATS = ("csv", "jsonl")
DIGITS = 6  # decimals of a probability


@dataclass(frozen=True)
class PredictionFormat:
    """The format of a file of predictions.

    A line has the input line, the columns of `Predictor.predict`, and the other columns of the input (in JSONL the
    objects `probabilities` and `columns`).

    Attributes:
        data_format: "csv" or "jsonl".
        task: task of the model.
        others: names of the input's other columns, which are copied; in a CSV, a column with the name of an output
            field becomes `NAME (input)`.
    """

    data_format: str
    task: Task
    others: tuple[str, ...] = ()

    def lines(self, found: pd.DataFrame, table: pd.DataFrame, header: bool = True) -> str:
        """Returns predictions as lines, each with its line end.

        Args:
            found: the predictions, from `Predictor.predict`; the index has positions in `table`.
            table: the input, with the columns `others`; the index has the line numbers.
            header: whether the lines of a CSV begin with the header.
        """
        shares = [f"p({label})" for label in self.task.labels]
        fields = found.drop(columns=shares)
        fields.insert(0, "line", table.index[found.index])
        others = table[[*self.others]].iloc[found.index]
        if self.data_format == "jsonl":
            plain = fields.astype(object).where(fields.notna(), None)
            probabilities = found[shares].round(DIGITS).set_axis(self.task.labels, axis=1).to_dict("records")
            copies = others.to_dict("records")
            return "".join(self._json_line(*row) for row in zip(plain.to_dict("records"), probabilities, copies))
        cells = pd.concat([fields, found[shares]], axis=1)
        for name in self.others:
            own = name
            while own in cells:
                own = f"{own} (input)"
            cells[own] = others[name].to_numpy()
        return cells.to_csv(index=False, header=header, lineterminator="\n", float_format=f"%.{DIGITS}f")

    def _json_line(self, fields: dict, probabilities: dict, others: dict) -> str:
        fields["probabilities"] = None if fields["label"] is None else probabilities
        if self.others:
            fields["columns"] = others
        return json.dumps(fields, ensure_ascii=False) + "\n"


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


def describe_truncation(
    trained: TrainedModel, texts: Iterable[tuple[str, Sequence[str]]], advice: str
) -> tuple[int, str | None]:
    """Counts the texts that are truncated in at least one of their contexts.

    Args:
        trained: the model.
        texts: each text with the names of its contexts; texts without a context are not counted.
        advice: end of the line.

    Returns:
        The number of truncated texts, and a line with the counts and the advice; None if no text is truncated.
    """
    limits, total, cut = trained.text_limits, 0, 0
    for block in blocks(((text, names) for text, names in texts if names), 8192):
        found = trained.tokenizer(
            [text for text, _ in block], add_special_tokens=False, truncation=False, verbose=False
        )
        total += len(block)
        cut += sum(len(ids) > min(limits[name] for name in names) for ids, (_, names) in zip(found["input_ids"], block))
    limit, of_texts = trained.record.max_length, counted(total, "text")
    return cut, f"truncated to {limit} tokens: {cut:,} of {of_texts}; {advice}" if cut else None
