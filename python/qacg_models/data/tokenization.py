"""Training and loading of tokenizers without network access, and encoding of examples as model inputs.

Inputs are `[CLS] sentence [SEP] context name [SEP]` with token types 0 and 1; or `[CLS] sentence [SEP]` if
`context_standalone` of the configuration is True. Models with contexts also get the context id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.example import blocks
from qacg_models.errors import InputError
from qacg_models.utils.plain_text import lone_surrogate, read_text

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from qacg_models.data import Example

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4000, min_frequency: int = 2) -> PreTrainedTokenizerFast:
    """Trains an uncased WordPiece tokenizer; the same texts give the same vocabulary.

    Accents are kept, so that "schön" differs from "schon"; text is normalised to NFC.

    Args:
        texts: the training sentences, and the context names if they are part of the input.
        vocab_size: maximum number of pieces, special tokens included. Every character of the texts gets two pieces, for
            the beginning and the inside of a word, even if that exceeds the limit.
        min_frequency: number of times that a pair of pieces must occur to be merged.

    Returns:
        The tokenizer.

    Raises:
        InputError: `vocab_size` does not exceed the number of special tokens, or `min_frequency` is below 1.
    """
    from tokenizers import Tokenizer, models, trainers

    if vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(
            f"vocab_size: expected more than {len(SPECIAL_TOKENS)}, the number of special tokens, got {vocab_size}"
        )
    if min_frequency < 1:
        raise InputError(f"min_frequency: expected at least 1, got {min_frequency}")
    texts = list(texts)
    learner = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(learner, lowercase=True, keep_marks=True)
    normalize = learner.normalizer.normalize_str
    letters = sorted({letter for text in texts for letter in normalize(text)} - {" "})
    # The trainer numbers the letters inside words in hash order. That order differs between runs and decides ties, so
    # the letters are passed as special tokens, which have fixed numbers. Only the learner's vocabulary is used below.
    known = [*SPECIAL_TOKENS.values(), *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=known, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(tokenizer, lowercase=True, keep_marks=True)
    return _as_pretrained(tokenizer)


def tokenizer_from_vocabulary(path: Path | str, lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Returns a BERT tokenizer with the vocabulary of a `vocab.txt`, which has one piece per line.

    Args:
        path: the file.
        lowercase: True for an uncased vocabulary: text is lowercased, and accents are removed.

    Raises:
        InputError: the file cannot be read, repeats a piece, or lacks a special token.
    """
    from tokenizers import Tokenizer, models

    try:
        # Not splitlines(), which also splits at characters that a piece may contain, such as U+2028.
        pieces = read_text(Path(path)).replace("\r\n", "\n").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a vocabulary ({error})") from None
    vocabulary: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if piece in vocabulary:
            raise InputError(f"{path}:{index + 1}: repeats the piece {piece!r} of line {vocabulary[piece] + 1}")
        vocabulary[piece] = index
    missing = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if missing:
        raise InputError(f"{path}: expected a BERT vocabulary, got one without {', '.join(missing)}")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(tokenizer, lowercase)
    return _as_pretrained(tokenizer)


def load_tokenizer(path: Path | str, lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Loads a tokenizer from a local folder that `save_pretrained` wrote, or from a `vocab.txt`.

    Args:
        path: the `vocab.txt`, or a folder with `tokenizer.json` or `vocab.txt`; nothing is downloaded.
        lowercase: True for an uncased `vocab.txt`: text is lowercased, and accents are removed. Ignored for a
            `tokenizer.json`, which stores its own setting.

    Raises:
        InputError: the path does not exist, the folder has no tokenizer, the tokenizer's file cannot be loaded, or a
            required special token is missing.
    """
    path = Path(path)
    if path.is_file():
        return tokenizer_from_vocabulary(path, lowercase)
    if not path.is_dir():
        raise InputError(f"{path}: expected a tokenizer folder or vocabulary file, got none")
    if not (path / "tokenizer.json").is_file():
        if (path / "vocab.txt").is_file():
            return tokenizer_from_vocabulary(path / "vocab.txt", lowercase)
        raise InputError(f"{path}: expected tokenizer.json or vocab.txt in the folder, got neither")
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the loader raises bare Exception for a broken file
        raise InputError(f"{path}: tokenizer.json cannot be loaded ({error})") from None
    missing = [name for name in ("pad_token", "cls_token", "sep_token") if getattr(tokenizer, name) is None]
    if missing:
        raise InputError(
            f"{path}: expected a tokenizer with pad_token, cls_token and sep_token, got one without"
            f" {', '.join(missing)}"
        )
    return tokenizer


def encode_examples(
    rows: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    contexts: Sequence[str] | None,
    max_length: int,
    context_standalone: bool = False,
) -> tuple[list[dict], int]:
    """Encodes rows as unpadded model inputs.

    Args:
        rows: the examples; a row without a label gives inputs without `labels`.
        tokenizer: adds token types and special tokens to one or two segments.
        contexts: context names; the position is the context id. None: the model has no contexts.
        max_length: maximum number of tokens of an input, special tokens included; longer inputs are truncated with
            the strategy "longest_first".
        context_standalone: True: the name of the context is not added as the second segment.

    Returns:
        The features of each row, and the number of truncated rows. Features are `input_ids` and `token_type_ids`
        (lists of int), `labels` (the class index) for a row with a label, and `context_ids` (one id) with `contexts`.

    Raises:
        InputError: a row's context is not among `contexts`, or `max_length` leaves no room for text.
    """
    overhead = tokenizer.num_special_tokens_to_add(pair=not context_standalone)
    if max_length <= overhead + 1:
        raise InputError(f"max_length: expected at least {overhead + 2}, to leave room for text, got {max_length}")
    ids = None if contexts is None else {name: index for index, name in enumerate(contexts)}
    unknown = next((row.context for row in rows if ids is not None and row.context not in ids), None)
    if unknown is not None:
        raise InputError(f"context: expected one of {', '.join(contexts)}, got {unknown!r}")
    if not rows:
        return [], 0
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


@dataclass(frozen=True)
class Encoding:
    """The arguments of `encode_examples`, except the rows.

    Attributes:
        tokenizer: adds token types and special tokens.
        contexts: context names; None: the model has no contexts.
        max_length: maximum number of tokens of an input.
        context_standalone: True: the name of the context is not part of the input.
    """

    tokenizer: PreTrainedTokenizerFast
    contexts: Sequence[str] | None
    max_length: int
    context_standalone: bool = False


class FeatureTable(Sequence[dict]):
    """A read-only sequence of the features of labelled examples, as `encode_examples` returns them, in flat arrays.

    Args:
        rows: the examples, which are encoded in blocks.
        encoding: how to encode them.

    Attributes:
        labels: (N,) int32 class indices.
        contexts: (N,) int32 context ids; empty if the model has no contexts.
        truncated: number of truncated rows.

    Raises:
        InputError: the context of a row is unknown, or `max_length` is too small.
    """

    def __init__(self, rows: Iterable[Example], encoding: Encoding):
        import numpy as np

        tokens, types = array("i"), array("b")
        ends, labels, contexts = array("q", [0]), array("i"), array("i")
        self.truncated = 0
        options = encoding.tokenizer, encoding.contexts, encoding.max_length, encoding.context_standalone
        for block in blocks(rows):
            features, cut = encode_examples(block, *options)
            self.truncated += cut
            for feature in features:
                tokens.extend(feature["input_ids"])
                types.extend(feature["token_type_ids"])
                ends.append(len(tokens))
                labels.append(feature["labels"])
                if encoding.contexts is not None:
                    contexts.append(feature["context_ids"])
        self._tokens, self._types, self._ends = tokens, types, np.asarray(ends)
        self.labels, self.contexts = np.asarray(labels), np.asarray(contexts)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start, end = self._ends[place : place + 2].tolist()
        context = {"context_ids": int(self.contexts[place])} if len(self.contexts) else {}
        tokens = {"input_ids": self._tokens[start:end].tolist(), "token_type_ids": self._types[start:end].tolist()}
        return tokens | {"labels": int(self.labels[place])} | context

    def lengths(self) -> np.ndarray:
        """Returns (N,) numbers of tokens of the rows."""
        return self._ends[1:] - self._ends[:-1]

    def texts(self) -> np.ndarray:
        """Returns (N,) text numbers, one for each row; rows with equal input_ids have the same number.

        Texts are numbered from 0, in the order of their first rows.
        """
        import numpy as np

        numbers: dict[bytes, int] = {}
        pairs = zip(self._ends[:-1].tolist(), self._ends[1:].tolist())
        return np.array([numbers.setdefault(self._tokens[a:b].tobytes(), len(numbers)) for a, b in pairs])


def check_text(argument: str, text: str) -> None:
    """Raises InputError for a text that cannot be encoded as UTF-8."""
    if half := lone_surrogate(text):
        raise InputError(f"{argument}: expected text that UTF-8 can encode, got {half}, half of a character; remove it")


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, embeddings: int) -> None:
    """Raises InputError unless the value is a tokenizer with a padding token and at most `embeddings` tokens."""
    if not hasattr(tokenizer, "pad_token_id"):
        raise InputError(f"tokenizer: expected a tokenizer of transformers, got {type(tokenizer).__name__}")
    if len(tokenizer) > embeddings:
        raise InputError(f"tokenizer: expected at most {embeddings} tokens as in the model, got {len(tokenizer)}")
    if tokenizer.pad_token_id is None:
        raise InputError("tokenizer: expected a pad_token, got none")


def _set_text_steps(tokenizer: Tokenizer, lowercase: bool, keep_marks: bool = False) -> None:
    """Sets BERT's normaliser, pre-tokeniser and decoder.

    With `keep_marks`, uncased text keeps its accents, and text is normalised to NFC.
    """
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
