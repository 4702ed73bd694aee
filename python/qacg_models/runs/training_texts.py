"""`train_texts.bin` in a model folder: hashes of the training texts, to recognise these texts in an evaluation.

`qacg train` writes the file. A model that is saved or uploaded from Python has no such file, because whoever has it can
test whether a given text was in the training data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.example import text_digest
from qacg_models.data.sentences import normalized
from qacg_models.errors import ModelFolderError
from qacg_models.utils.atomic_files import atomic_write_bytes
from qacg_models.utils.cells import counted

TEXTS_NAME = "train_texts.bin"
MOST = 100_000  # stored hashes, 800 kB; of more texts, those with the smallest hashes are stored
_BYTES = 8


@dataclass(frozen=True)
class TrainingTexts:
    """Numbers of distinct texts of an evaluation.

    Attributes:
        found: texts that were in the training data, among the examined ones.
        examined: texts that were looked up.
        evaluated: all texts.
    """

    found: int
    examined: int
    evaluated: int

    def describe(self, consequence: bool = True) -> str:
        """Returns a line with the number of texts that were in the training data.

        Args:
            consequence: whether the line also states that the metrics on such texts are optimistic.
        """
        sample = "" if self.examined == self.evaluated else f" (a sample of the {self.evaluated:,} evaluated texts)"
        were = "was" if 1 in (self.found, self.examined) else "were"
        ending = "; the metrics on them are optimistic" if consequence and self.found else ""
        return f"{self.found:,} of {counted(self.examined, 'text')}{sample} {were} in the training data{ending}"


def write_training_texts(folder: Path, texts: Iterable[str]) -> None:
    """Writes the sorted hashes of texts; capitals and repeated spaces do not count.

    Raises:
        InputError: the file cannot be written.
    """
    with atomic_write_bytes(folder / TEXTS_NAME) as handle:
        handle.write(b"".join(sorted(_hashes(texts))[:MOST]))


def count_training_texts(folder: Path, texts: Iterable[str]) -> TrainingTexts | None:
    """Counts the evaluated texts that were in the training data.

    If not all training texts are stored, only texts with hashes up to the largest stored hash are examined.

    Args:
        folder: the model folder.
        texts: the evaluated texts.

    Returns:
        The counts; None if the folder has no train_texts.bin, or no text can be examined.

    Raises:
        ModelFolderError: the file cannot be read, or is damaged.
    """
    path = folder / TEXTS_NAME
    if not path.is_file():
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read ({error.strerror or error})") from None
    stored = [content[start : start + _BYTES] for start in range(0, len(content), _BYTES)]
    if not stored or len(content) % _BYTES:
        raise ModelFolderError(f"{path}: is damaged; delete it, or train the model again")
    asked = _hashes(texts)
    examined = asked if len(stored) < MOST else {one for one in asked if one <= stored[-1]}
    if not examined:
        return None
    return TrainingTexts(len(examined & set(stored)), len(examined), len(asked))


def _hashes(texts: Iterable[str]) -> set[bytes]:
    return {text_digest(normalized(text))[:_BYTES] for text in texts}
