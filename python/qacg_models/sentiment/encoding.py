"""Examples as model inputs: tokenizers, features and batches.

Inputs are `[CLS] sentence [SEP] context name [SEP]` with token types 0 and 1; or `[CLS] sentence [SEP]` if
`context_standalone` of the configuration is True. Other tokenizers have other special tokens, such as
`<s> sentence </s></s> context name </s>`. In all of them, the first separator ends the sentence. Models with one token
type get no token types. Models with contexts also get the context id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from qacg_models.errors import InputError
from qacg_models.sentiment.example import blocks
from qacg_models.utils.fields import read_json_as
from qacg_models.utils.text import lone_surrogate, read_text

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from qacg_models.sentiment.example import Example

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# The same in RoBERTa, XLM-R and CamemBERT, whose published folders do not name them.
_OTHER_NAMES = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4000) -> PreTrainedTokenizerFast:
    """Trains an uncased WordPiece tokenizer; the same texts give the same vocabulary.

    Accents are kept, so that "schön" differs from "schon"; text is normalised to NFC. `vocab_size` is the maximum
    number of pieces, special tokens included, but every character of the texts gets two pieces, for the beginning and
    the inside of a word, even if that exceeds the limit.
    """
    from tokenizers import Tokenizer, models, trainers

    if vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(
            f"vocab_size: expected more than {len(SPECIAL_TOKENS)}, the number of special tokens, got {vocab_size}"
        )
    texts = list(texts)
    learner = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(learner, lowercase=True, keep_marks=True)
    normalize = learner.normalizer.normalize_str
    letters = sorted({letter for text in texts for letter in normalize(text)} - {" "})
    # The trainer numbers the letters inside words in hash order. That order differs between runs and decides ties, so
    # the letters are passed as special tokens, which have fixed numbers. Only the learner's vocabulary is used below.
    known = [*SPECIAL_TOKENS.values(), *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=known, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    return _word_pieces(learner.get_vocab(), lowercase=True, keep_marks=True)


def tokenizer_from_vocabulary(
    path: Path | str, lowercase: bool = True, keep_marks: bool = False
) -> PreTrainedTokenizerFast:
    """Returns a BERT tokenizer of a `vocab.txt`; for the other arguments see `_set_text_steps`."""
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
    return _word_pieces(vocabulary, lowercase, keep_marks)


def load_tokenizer(path: Path | str, lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Loads a tokenizer from a `vocab.txt`, or from a local folder with a `tokenizer.json` or `vocab.txt`.

    For a `vocab.txt`, text is lowercased, and accents are removed, unless `lowercase` is False, or a
    `tokenizer_config.json` in the folder has other settings. Special tokens that the folder of a `tokenizer.json` does
    not name are found by their usual names.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: expected a tokenizer folder or vocabulary file, got none")
    vocabulary = path if path.is_file() else path / "vocab.txt"
    if path.is_file() or not (path / "tokenizer.json").is_file():
        if vocabulary.is_file():
            settings = path / "tokenizer_config.json"
            stored = read_json_as(dict[str, object], settings) if settings.is_file() else {}
            lowercase = lowercase and stored.get("do_lower_case") is not False
            return tokenizer_from_vocabulary(vocabulary, lowercase, stored.get("strip_accents") is False)
        raise InputError(
            f"{path}: expected tokenizer.json or vocab.txt in the folder, got neither. Write tokenizer.json with"
            " transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER). For a file"
            " sentencepiece.bpe.model, first run pip install sentencepiece protobuf."
        )
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the loader raises bare Exception for a broken file
        raise InputError(f"{path}: tokenizer.json cannot be loaded ({error})") from None
    vocabulary = tokenizer.get_vocab()
    for name, usual in SPECIAL_TOKENS.items():
        found = next((token for token in (usual, _OTHER_NAMES[name]) if token in vocabulary), None)
        if getattr(tokenizer, name) is None and found is not None:
            setattr(tokenizer, name, found)
    missing = [name for name in ("pad_token", "cls_token", "sep_token") if getattr(tokenizer, name) is None]
    if missing:
        expected = "expected a tokenizer with pad_token, cls_token and sep_token"
        raise InputError(f"{path}: {expected}, got one without {', '.join(missing)}")
    return tokenizer


def has_token_types(config: PreTrainedConfig) -> bool:
    """Returns whether a model distinguishes token types; RoBERTa and ModernBERT do not."""
    return getattr(config, "type_vocab_size", 0) > 1


def encode_examples(
    rows: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    contexts: Sequence[str] | None,
    max_length: int,
    context_standalone: bool = False,
    token_types: bool = True,
) -> tuple[list[dict], int]:
    """Returns rows as unpadded model inputs, and the number of truncated rows.

    `contexts` are names by context id; None for a model without contexts. The features of a row are `input_ids` and,
    with `token_types`, `token_type_ids` (lists of int), `labels` (the class index) if it has one, and `context_ids`
    (one id) with `contexts`.
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
    # A model that gets contexts by id reads the same text for each of them; it is tokenised once.
    pairs = [(row.sentence, "" if context_standalone else row.context) for row in rows]
    distinct = dict.fromkeys(pairs)
    texts, names = map(list, zip(*distinct))
    batch = tokenizer(
        texts,
        None if context_standalone else names,
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=token_types,
        return_attention_mask=False,
    )
    encoded = {pair: dict(zip(batch, values)) for pair, *values in zip(distinct, *batch.values())}
    features = [
        encoded[pair]
        | ({} if row.label is None else {"labels": row.label})
        | ({} if ids is None else {"context_ids": ids[row.context]})
        for pair, row in zip(pairs, rows)
    ]
    cut = {pair for pair, encoding in zip(distinct, batch.encodings) if encoding.overflowing}
    return features, sum(pair in cut for pair in pairs)


class FeatureTable(Sequence[dict]):
    """A read-only sequence of the features of labelled examples, as `encode_examples` returns them, in flat arrays.

    `labels` are (N,) class indices, `contexts` (N,) context ids; the latter are empty if the model has no contexts.
    """

    def __init__(
        self,
        rows: Iterable[Example],
        tokenizer: PreTrainedTokenizerFast,
        contexts: Sequence[str] | None,
        max_length: int,
        context_standalone: bool = False,
        token_types: bool = True,
    ):
        import numpy as np

        tokens, types = array("i"), array("b")
        ends, labels, ids = array("q", [0]), array("i"), array("i")
        self.truncated = 0
        for block in blocks(rows):
            features, cut = encode_examples(block, tokenizer, contexts, max_length, context_standalone, token_types)
            self.truncated += cut
            for feature in features:
                tokens.extend(feature["input_ids"])
                types.extend(feature.get("token_type_ids", ()))
                ends.append(len(tokens))
                labels.append(feature["labels"])
                if contexts is not None:
                    ids.append(feature["context_ids"])
        self._tokens, self._types, self._ends = tokens, types, np.asarray(ends)
        self.labels, self.contexts = np.asarray(labels), np.asarray(ids)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start, end = self._ends[place : place + 2].tolist()
        context = {"context_ids": int(self.contexts[place])} if len(self.contexts) else {}
        types = {"token_type_ids": self._types[start:end].tolist()} if self._types else {}
        return {"input_ids": self._tokens[start:end].tolist()} | types | {"labels": int(self.labels[place])} | context

    def lengths(self) -> np.ndarray:
        """Returns (N,) numbers of tokens of the rows."""
        return self._ends[1:] - self._ends[:-1]

    def texts(self) -> np.ndarray:
        """Returns (N,) numbers of the texts of the rows, from 0 in order of first occurrence, by equal input_ids."""
        import numpy as np

        numbers: dict[bytes, int] = {}
        pairs = zip(self._ends[:-1].tolist(), self._ends[1:].tolist())
        return np.array([numbers.setdefault(self._tokens[a:b].tobytes(), len(numbers)) for a, b in pairs])


def check_text(argument: str, text: str) -> None:
    """Raises InputError for a text that cannot be encoded as UTF-8."""
    if half := lone_surrogate(text):
        raise InputError(f"{argument}: expected text that UTF-8 can encode, got {half}, half of a character; remove it")


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the number of embeddings that the token ids require; some tokenizers have fewer tokens."""
    return 1 + max(tokenizer.get_vocab().values())


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, embeddings: int) -> None:
    """Raises InputError unless the value is a tokenizer with a padding token and at most `embeddings` tokens."""
    if not hasattr(tokenizer, "pad_token_id"):
        raise InputError(f"tokenizer: expected a tokenizer of transformers, got {type(tokenizer).__name__}")
    if (size := vocabulary_size(tokenizer)) > embeddings:
        raise InputError(f"tokenizer: expected at most {embeddings} tokens as in the model, got {size}")
    if tokenizer.pad_token_id is None:
        raise InputError("tokenizer: expected a pad_token, got none")


def _set_text_steps(tokenizer: Tokenizer, lowercase: bool, keep_marks: bool = False) -> None:
    """Sets BERT's text steps: with `lowercase`, text is lowercased, and accents are removed.

    With `keep_marks`, accents are kept, and text is normalised to NFC.
    """
    from tokenizers import decoders, normalizers, pre_tokenizers

    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False if keep_marks else None)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), bert]) if keep_marks else bert
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()


def _word_pieces(vocabulary: dict[str, int], lowercase: bool, keep_marks: bool = False) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a vocabulary (`_set_text_steps`)."""
    from tokenizers import Tokenizer, models
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    _set_text_steps(tokenizer, lowercase, keep_marks)
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


class PaddingCollator:
    """Pads the features of `encode_examples` to the longest row of the batch.

    Padding is `pad_token_id` in `input_ids` and 0 elsewhere. `share_texts` is that of `PackingCollator`. With
    `max_length`, batches have few shapes: L is a multiple of LENGTHS or `max_length`, and with `share_texts` texts
    without tokens, which no feature has, make B a multiple of TEXTS.
    """

    LENGTHS, TEXTS = 16, 8

    def __init__(self, pad_token_id: int, share_texts: bool = False, max_length: int | None = None):
        self.pad_token_id, self.share_texts, self.max_length = pad_token_id, share_texts, max_length

    def __call__(self, features: Sequence[dict]) -> dict:
        """Returns one padded batch: for N features and B texts of at most L tokens, int64 tensors (B, L) or (N,)."""
        texts, batch = _texts_and_values(features, self.share_texts)
        names = [name for name in ("input_ids", "token_type_ids") if name in texts[0]]
        rows = {name: [text[name] for text in texts] for name in names}
        rows["attention_mask"] = [[1] * len(row) for row in rows["input_ids"]]
        length = max(map(len, rows["input_ids"]))
        if self.max_length is not None:
            length = min(length + -length % self.LENGTHS, self.max_length)
            if self.share_texts:
                rows = {name: values + [[]] * (-len(values) % self.TEXTS) for name, values in rows.items()}
        fills = {"input_ids": self.pad_token_id}
        return batch | {name: padded_rows(values, fills.get(name, 0), length) for name, values in rows.items()}


class PackingCollator:
    """Concatenates the features of `encode_examples` into a packed batch without padding.

    Usable as the `collate_fn` of a `DataLoader` or as the `data_collator` of a `Trainer`. The batch is a
    dictionary of keyword arguments for this package's models. For N features and B texts with T tokens in all, it has:

    - (N,) int64 labels and context_ids, if the features have them;
    - (T,) int64 input_ids and, if the features have them, token_type_ids;
    - (B + 1,) int32 cu_seqlens, and the integer max_seqlen.

    Args:
        share_texts: True: the batch has each distinct text once, so B is the number of distinct texts, `text_ids` (N,)
            has the index of each feature's text, and the integer `num_tokens` is the number of tokens of the features;
            requires a model whose `config.shares_texts` is True. False: the batch has a text for each of the N
            features, so B is N.

    Example:
        >>> batch = PackingCollator()([{"input_ids": [2, 7, 3]}, {"input_ids": [2, 3]}])
        >>> batch["input_ids"].tolist(), batch["cu_seqlens"].tolist(), batch["max_seqlen"]
        ([2, 7, 3, 2, 3], [0, 3, 5], 3)
    """

    def __init__(self, share_texts: bool = False):
        self.share_texts = share_texts

    def __call__(self, features: Sequence[dict]) -> dict:
        """Returns one packed batch; ValueError if there are no features, or a feature has no tokens."""
        if not features:
            raise ValueError("features: expected at least one, got none")
        lengths = [len(feature["input_ids"]) for feature in features]
        if not min(lengths):
            raise ValueError(f"features: expected at least one token each, got none in feature {lengths.index(0)}")
        # (N,) first: transformers' Trainer takes the batch size from the first tensor it finds.
        texts, batch = _texts_and_values(features, self.share_texts)
        if self.share_texts:
            batch["num_tokens"] = sum(lengths)
        lengths = [len(text["input_ids"]) for text in texts]
        for name in ("input_ids", "token_type_ids"):
            if name in texts[0]:
                batch[name] = torch.tensor([value for text in texts for value in text[name]])
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return batch | {"cu_seqlens": ends, "max_seqlen": max(lengths)}


def _texts_and_values(features: Sequence[dict], share_texts: bool) -> tuple[Sequence[dict], dict[str, torch.Tensor]]:
    """Returns the features that provide the texts of the batch, and the batch's tensors of one value per feature."""
    batch = {
        name: torch.tensor([feature[name] for feature in features])
        for name in ("labels", "context_ids")
        if name in features[0]
    }
    if not share_texts:
        return features, batch
    numbers: dict[tuple[int, ...], int] = {}
    texts: list[dict] = []
    text_ids = []
    for feature in features:
        number = numbers.setdefault((*feature.get("token_type_ids", ()), *feature["input_ids"]), len(texts))
        if number == len(texts):
            texts.append(feature)
        text_ids.append(number)
    return texts, batch | {"text_ids": torch.tensor(text_ids)}


def padded_rows(rows: Sequence[list[int]], fill: int, length: int | None = None) -> torch.Tensor:
    """Returns rows as one int64 tensor, padded on the right with `fill` to a length; None: that of the longest row."""
    length = max(map(len, rows)) if length is None else length
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows], dtype=torch.int64)


def batch_maker(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_length: int | None = None
) -> PaddingCollator | PackingCollator:
    """Returns the collator for a model: packed batches if its attention is fused, which reads them directly.

    With `max_length`, batches are padded to few shapes.
    """
    share_texts = getattr(model.config, "shares_texts", False)
    if model.config._attn_implementation == "fused" and max_length is None:
        return PackingCollator(share_texts)
    return PaddingCollator(tokenizer.pad_token_id, share_texts, max_length)
