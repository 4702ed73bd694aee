"""Tokenizers that need no network, and rows of text turned into model inputs.

Inputs are `[CLS] sentence [SEP] context name [SEP]` with token types 0 and 1, or `[CLS] sentence [SEP]` where
the configuration says `context_standalone`; either way the context is also given by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.utils.plain_text import lone_surrogate, read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from qacg_models.data import Example

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4000, min_frequency: int = 2) -> PreTrainedTokenizerFast:
    """Learn an uncased WordPiece vocabulary; the same texts give the same vocabulary.

    Letters keep their marks, so that "schön" is not "schon"; a letter and the mark beside it are one letter.

    Args:
        texts: the training sentences, and the context names where they are part of the input.
        vocab_size: most pieces, special tokens included; every letter is a piece, even beyond this limit.
        min_frequency: how often a pair of pieces must occur to become one piece.

    Raises:
        InputError: `vocab_size` leaves no room beside the special tokens, or `min_frequency` is below 1.
    """
    from tokenizers import Tokenizer, models, trainers

    if vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(f"vocab_size must be more than {len(SPECIAL_TOKENS)}, the special tokens; got {vocab_size}")
    if min_frequency < 1:
        raise InputError(f"min_frequency must be at least 1; got {min_frequency}")
    texts = list(texts)
    learner = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(learner, lowercase=True, keep_marks=True)
    normalize = learner.normalizer.normalize_str
    letters = sorted({letter for text in texts for letter in normalize(text)} - {" "})
    # The trainer numbers inner letters in the order of a hash map, which differs from run to run and decides
    # ties. Named beforehand they have fixed numbers; the learner, which now thinks them special, is dropped.
    known = [*SPECIAL_TOKENS.values(), *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=known, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(tokenizer, lowercase=True, keep_marks=True)
    return _as_pretrained(tokenizer)


def tokenizer_from_vocabulary(path: Path | str, lowercase: bool = True) -> PreTrainedTokenizerFast:
    """A BERT tokenizer from its `vocab.txt`, one piece per line.

    Args:
        path: the file.
        lowercase: whether the vocabulary is uncased, so that text is lowercased and loses its accents.

    Raises:
        InputError: the file cannot be read, repeats a piece, or lacks a special token.
    """
    from tokenizers import Tokenizer, models

    try:
        pieces = read_text(Path(path)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a vocabulary ({error})") from None
    vocabulary: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if piece in vocabulary:
            raise InputError(f"{path}:{index + 1}: repeats the piece {piece!r} of line {vocabulary[piece] + 1}")
        vocabulary[piece] = index
    missing = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if missing:
        raise InputError(f"{path}: is not a BERT vocabulary, it lacks {', '.join(missing)}")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(tokenizer, lowercase)
    return _as_pretrained(tokenizer)


def load_tokenizer(path: Path | str, lowercase: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer from a folder that `save_pretrained` wrote, or from a `vocab.txt`.

    Args:
        path: folder or file. Nothing is ever fetched.
        lowercase: for a `vocab.txt` alone; a folder knows its own case.

    Raises:
        InputError: neither is there, the folder holds no tokenizer, or it lacks a token that inputs need.
    """
    path = Path(path)
    if path.is_file():
        return tokenizer_from_vocabulary(path, lowercase)
    if not path.is_dir():
        raise InputError(f"{path}: no such tokenizer folder or vocabulary file")
    if not (path / "tokenizer.json").is_file():
        if (path / "vocab.txt").is_file():
            return tokenizer_from_vocabulary(path / "vocab.txt", lowercase)
        raise InputError(f"{path}: holds neither tokenizer.json nor vocab.txt")
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the loader raises bare Exception for a broken file
        raise InputError(f"{path}: tokenizer.json cannot be loaded ({error})") from None
    missing = [name for name in ("pad_token", "cls_token", "sep_token") if getattr(tokenizer, name) is None]
    if missing:
        raise InputError(f"{path}: the tokenizer has no {', '.join(missing)}")
    return tokenizer


def encode_examples(
    rows: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    contexts: Sequence[str] | None,
    max_length: int,
    context_standalone: bool = False,
) -> tuple[list[dict], int]:
    """Model inputs of each row, unpadded, and how many rows had to be cut.

    Args:
        rows: sentences with contexts; a row without a label gives inputs without one.
        tokenizer: gives token types and special tokens for one or two segments.
        contexts: context names; the index is the id. None: the model has none, and neither have the inputs.
        max_length: most tokens of one input, special tokens included; what is over is taken from the end of
            whichever segment is longer at the time.
        context_standalone: leave the context name out and give it by id only.

    Raises:
        InputError: a row's context is not among `contexts`, or `max_length` leaves no room for text.
    """
    overhead = tokenizer.num_special_tokens_to_add(pair=not context_standalone)
    if max_length <= overhead + 1:
        raise InputError(f"max_length must be at least {overhead + 2} to leave room for text; got {max_length}")
    ids = None if contexts is None else {name: index for index, name in enumerate(contexts)}
    unknown = next((row.context for row in rows if ids is not None and row.context not in ids), None)
    if unknown is not None:
        raise InputError(f"unknown context {unknown!r}; known: {', '.join(contexts)}")
    batch = tokenizer(
        [row.sentence for row in rows],
        None if context_standalone else [row.context for row in rows],
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
    )
    features = [
        {"input_ids": tokens, "token_type_ids": types}
        | ({} if row.label is None else {"labels": row.label})
        | ({} if ids is None else {"context_ids": ids[row.context]})
        for row, tokens, types in zip(rows, batch["input_ids"], batch["token_type_ids"])
    ]
    return features, sum(bool(encoding.overflowing) for encoding in batch.encodings)


def check_text(argument: str, text: str) -> None:
    """Raises InputError, beginning with the argument's name, for a text that UTF-8 cannot write."""
    if half := lone_surrogate(text):
        raise InputError(f"{argument}: holds {half}, which is half a character; wanted text that UTF-8 can write")


def _set_text_steps(tokenizer: Tokenizer, lowercase: bool, keep_marks: bool = False) -> None:
    """Those of BERT, whose uncased vocabularies have no accents and umlauts; `keep_marks` keeps them."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False if keep_marks else None)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), bert]) if keep_marks else bert
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()


def _as_pretrained(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )
