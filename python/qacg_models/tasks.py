"""Extractive summaries and answers to questions, by the models of the documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_models.errors import InputError
from qacg_models.models.bertsum import BertSumForExtractiveSummarization
from qacg_models.models.encoder_head import position_limit
from qacg_models.sentiment.encoding import check_text, check_tokenizer, padded_rows
from qacg_models.utils.fields import check_count, check_is_integer
from qacg_models.utils.text import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

DEFAULT_LENGTH = 384  # maximum number of tokens in a window, unless the encoder has fewer positions


@dataclass(frozen=True)
class Answer:
    """An answer to a question about the text `context`.

    Attributes:
        text: `context[start:end]`; empty for "no answer".
        start, end: positions in `context` of the answer's first character and of the character after its last one;
            None for "no answer".
        score: sum of the start logit of the first token and the end logit of the last token; for "no answer", see
            `QuestionAnswerer.answers`. Scores of answers to the same question can be compared.

    Example:
        >>> Answer("a bridge", 0, 8, 4.5).text
        'a bridge'
    """

    text: str
    start: int | None
    end: int | None
    score: float


class Window(NamedTuple):
    """A question with a part of the text, as model input.

    `token_type_ids` is None if the tokenizer has none. `offsets` has for each token its character range in the text,
    or None for a token that is not part of the text.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None
    offsets: list[tuple[int, int] | None]


def windows(
    question: str, context: str, tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int
) -> list[Window]:
    """Divides `context` into windows of at most `max_length` tokens with the question, which share `stride` tokens."""
    for name, text in (("question", question), ("context", context)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name}: expected text, got {text!r}")
        check_text(name, text)
    if not tokenizer.is_fast:
        raise InputError(f"tokenizer: expected a fast tokenizer, got {type(tokenizer).__name__}")
    if stride < 0:
        raise InputError(f"stride: expected at least 0, got {stride}")
    asked = len(tokenizer(question, add_special_tokens=False)["input_ids"])
    around = asked + tokenizer.num_special_tokens_to_add(pair=True)
    if max_length - around <= stride:
        raise InputError(
            f"max_length: expected more than {around + stride} ({around} tokens of the question and special tokens,"
            f" {stride} of the stride), got {max_length}. Increase max_length, or decrease stride."
        )
    encoded = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found = []
    for i, ids in enumerate(encoded["input_ids"]):
        places = zip(encoded.sequence_ids(i), encoded["offset_mapping"][i])
        types = encoded["token_type_ids"][i] if "token_type_ids" in encoded else None
        found.append(Window(ids, types, [tuple(place) if source == 1 else None for source, place in places]))
    return found


class QuestionAnswerer:
    """Answers questions with an extractive question-answering model.

    Args:
        model: `QueryAttentionForQuestionAnswering`, or another model whose output has `start_logits` and `end_logits`.
        tokenizer: the model's fast tokenizer.
        max_length: maximum number of tokens in a window; None: 384, or fewer if the encoder has fewer positions.
        stride: number of tokens that consecutive windows share. Answers of more than `stride` tokens may not be found,
            since a window boundary can divide them.
        max_answer_tokens: maximum number of tokens in an answer.
        batch_size: maximum number of windows in a batch.

    Raises:
        TypeError: `model` is not a model of transformers, or a numeric argument is not an integer.
        InputError: `tokenizer` does not fit the model or has no padding token; `max_length` exceeds the encoder's
            positions; or `max_answer_tokens` or `batch_size` is below 1.

    Example:
        >>> from qacg_models import BertForQuestionAnswering, PlainBertConfig
        >>> from qacg_models.sentiment.encoding import train_tokenizer
        >>> text = "The river rose in the night. A bridge was closed at once."
        >>> tokenizer = train_tokenizer([text], vocab_size=100)
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> model = BertForQuestionAnswering(PlainBertConfig(vocab_size=len(tokenizer), **sizes))
        >>> answer = QuestionAnswerer(model, tokenizer).answer("What was closed?", text)
        >>> answer.text in text
        True
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_length: int | None = None,
        stride: int = 128,
        max_answer_tokens: int = 30,
        batch_size: int = 16,
    ):
        if not hasattr(model, "get_input_embeddings"):
            raise TypeError(f"model: expected a question-answering model, got {type(model).__name__}")
        check_is_integer("stride", stride)
        limit = position_limit(model)
        default = DEFAULT_LENGTH if limit is None else min(DEFAULT_LENGTH, limit)
        max_length = _checked_length(max_length, limit, default)
        check_count("max_answer_tokens", max_answer_tokens)
        check_count("batch_size", batch_size)
        check_tokenizer(tokenizer, model.get_input_embeddings().num_embeddings)
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.stride = stride
        self.max_answer_tokens = max_answer_tokens
        self.batch_size = batch_size

    def answer(self, question: str, context: str) -> Answer:
        """Returns the best answer.

        The answer can be "no answer" only if the model's configuration has `allow_no_answer=True`.

        Args:
            question: the question.
            context: the text that may contain the answer.

        Returns:
            The answer with its score and its position in the text; errors are those of `answers`.
        """
        return self.answers(question, context, 1)[0]

    def answers(self, question: str, context: str, count: int = 5) -> list[Answer]:
        """Returns up to `count` different answers from all windows, best first.

        "No answer" is returned only if the model's configuration has `allow_no_answer=True`. It is then the first
        answer if no span is found, or if its score exceeds the best span's score by more than the configuration's
        `no_answer_threshold`. Otherwise it is not returned.

        In a window, the score of "no answer" is the sum of the start and the end logit of the first token. The minimum
        over all windows is used, because windows without the answer have high scores.

        Args:
            question: the question.
            context: the text that may contain the answer.
            count: maximum number of answers.

        Returns:
            The answers, best first.

        Raises:
            InputError: `question` or `context` is not a text with a token; `count` is below 1; the tokenizer is not
                fast; or `max_length` and `stride` leave no tokens for the text.
            TypeError: `count` is not an integer.
        """
        check_count("count", count)
        spans: dict[tuple[int, int], float] = {}
        nothing = float("inf")
        read = windows(question, context, self.tokenizer, self.max_length, self.stride)
        for part, starts, ends in self._scores(read):
            allowed = allowed_tokens(part, starts.shape[1])
            # Different token spans can have the same characters, so more than `count` spans are computed.
            for window, found in zip(part, best_spans(starts, ends, allowed, self.max_answer_tokens, 4 * count)):
                for span in found:
                    first, last = window.offsets[span.first], window.offsets[span.last]
                    # Answers may only consist of tokens of the text.
                    place = _trimmed(context, first[0], last[1]) if first and last else None
                    if place is not None:
                        spans[place] = max(span.score, spans.get(place, float("-inf")))
            nothing = min(nothing, (starts[:, 0] + ends[:, 0]).min().item())
        ranked = sorted(spans.items(), key=lambda item: (-item[1], item[0]))
        answers = [Answer(context[a:b], a, b, score) for (a, b), score in ranked[:count]]
        config = self.model.config
        if getattr(config, "allow_no_answer", False) and (
            not answers or nothing - answers[0].score > config.no_answer_threshold
        ):
            answers = [Answer("", None, None, nothing), *answers][:count]
        if not answers:
            raise InputError("context: expected text with at least one token, got none")
        return answers

    @torch.inference_mode()
    def _scores(self, read: list[Window]) -> Iterator[tuple[list[Window], Tensor, Tensor]]:
        """Yields batches of windows with start and end logits, (B, L) float32 on the CPU."""
        with _evaluating(self.model):
            for i in range(0, len(read), self.batch_size):
                part = read[i : i + self.batch_size]
                inputs = pad_windows(part, self.tokenizer.pad_token_id)
                out = self.model(**{name: t.to(self.model.device) for name, t in inputs.items()})
                yield part, out.start_logits.float().cpu(), out.end_logits.float().cpu()


def _checked_length(given: int | None, limit: int | None, default: int) -> int:
    """Returns the maximum number of tokens of an input; `limit` is the number of the encoder's positions."""
    if given is None:
        return default
    check_is_integer("max_length", given)
    if limit is not None and given > limit:
        raise InputError(f"max_length: expected at most {limit}, as many as the encoder has positions, got {given}")
    return given


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Sets evaluation mode inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def pad_windows(part: list[Window], pad_token_id: int) -> dict[str, Tensor]:
    """Pads one or more windows to a batch of (B, L) int64 input_ids, attention_mask and, if present, token_type_ids."""
    batch = {
        "input_ids": padded_rows([w.input_ids for w in part], pad_token_id),
        "attention_mask": padded_rows([[1] * len(w.input_ids) for w in part], 0),
    }
    if part[0].token_type_ids is not None:
        batch["token_type_ids"] = padded_rows([w.token_type_ids or [] for w in part], 0)
    return batch


def _trimmed(context: str, start: int, end: int) -> tuple[int, int] | None:
    """Returns the span without surrounding white space, which some tokens include; None if nothing is left."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    end -= len(text) - len(text.rstrip())
    return (start, end) if start < end else None


class Span(NamedTuple):
    """Tokens `first` to `last` (inclusive); `score` is the start logit of `first` plus the end logit of `last`."""

    first: int
    last: int
    score: float


def best_spans(
    start_logits: Tensor, end_logits: Tensor, allowed: Tensor, max_tokens: int, count: int
) -> list[list[Span]]:
    """Returns at most `count` spans of each of B windows, best first; fewer if fewer are allowed.

    The tensors are (B, L). `allowed` is True for tokens that can begin or end an answer. Sums are computed in float32.
    """
    length = start_logits.shape[1]
    width = min(max_tokens, length)
    starts = start_logits.float().masked_fill(~allowed, float("-inf"))
    ends = F.pad(end_logits.float().masked_fill(~allowed, float("-inf")), (0, width - 1), value=float("-inf"))
    # (B, L, width): entry (i, j) is the span of j + 1 tokens from i.
    scores = starts.unsqueeze(-1) + ends.unfold(1, width, 1)
    values, places = scores.flatten(1).topk(min(count, length * width))
    found = []
    for row_values, row_places in zip(values.tolist(), places.tolist()):
        pairs = [(value, *divmod(place, width)) for value, place in zip(row_values, row_places)]
        found.append([Span(i, i + j, value) for value, i, j in pairs if value > float("-inf")])
    return found


def allowed_tokens(part: list[Window], length: int) -> Tensor:
    """Returns (B, length) booleans: True for tokens of B windows with at least one character of the text."""
    rows = [[place is not None and place[0] < place[1] for place in window.offsets] for window in part]
    return torch.tensor([row + [False] * (length - len(row)) for row in rows], dtype=torch.bool)


_WORD = re.compile(r"\w+")


def trigrams(sentence: str) -> set[tuple[str, str, str]]:
    """Returns all triples of consecutive words, in lower case without punctuation."""
    words = _WORD.findall(sentence.lower())
    return set(zip(words, words[1:], words[2:]))


def select(sentences: Sequence[str], scores: Sequence[float], count: int, block_trigrams: bool = True) -> list[int]:
    """Returns the indices of at most `count` sentences with the highest scores, in the order of the text.

    Among equal scores, the earlier sentence is selected. With `block_trigrams`, a sentence that shares three
    consecutive words with an already selected sentence is skipped.
    """
    taken: list[int] = []
    seen: set[tuple[str, str, str]] = set()
    for i in sorted(range(len(sentences)), key=lambda i: (-scores[i], i)):
        own = trigrams(sentences[i])
        if block_trigrams and own & seen:
            continue
        taken.append(i)
        seen |= own
        if len(taken) == count:
            break
    return sorted(taken)


class Document(NamedTuple):
    """The BertSum input of a document: the tokens [CLS] sentence [SEP] of every sentence.

    Token types are 0 and 1 for alternating sentences. `positions` has the index of each sentence's [CLS].
    """

    input_ids: list[int]
    token_type_ids: list[int]
    positions: list[int]


def encode_document(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Document:
    """Encodes the leading sentences that fit completely into `max_length` tokens, or else the first one, cut off."""
    if isinstance(sentences, str) or not sentences:
        raise InputError(f"sentences: expected a list of at least one sentence, got {sentences!r}")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls is None or sep is None:
        raise InputError(f"tokenizer: expected a cls_token and a sep_token, got the ids {cls} and {sep}")
    if max_length < 3:
        raise InputError(f"max_length: expected at least 3, for [CLS], one token and [SEP], got {max_length}")
    ids: list[int] = []
    types: list[int] = []
    positions: list[int] = []
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str) or not sentence.strip():
            raise InputError(f"sentences[{i}]: expected text, got {sentence!r}")
        check_text(f"sentences[{i}]", sentence)
        tokens = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        if i == 0:
            tokens = tokens[: max_length - 2]
        if len(ids) + len(tokens) + 2 > max_length:
            break
        positions.append(len(ids))
        ids += [cls, *tokens, sep]
        types += [i % 2] * (len(tokens) + 2)
    return Document(ids, types, positions)


def document_batch(document: Document) -> dict[str, Tensor]:
    """Returns a document as a batch: (1, L) input_ids, attention_mask and token_type_ids, (1, S) sentence_positions."""
    ids = torch.tensor([document.input_ids])
    types, positions = torch.tensor([document.token_type_ids]), torch.tensor([document.positions])
    mask = torch.ones_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "sentence_positions": positions}


@dataclass(frozen=True)
class Summary:
    """An extractive summary.

    Attributes:
        text: the selected sentences in the order of the document, joined by spaces.
        sentences: the selected sentences.
        indices: indices of the selected sentences in the document.
        scores: score in [0, 1] of every sentence except the unread ones.
        unread: number of unread sentences: those at the end of the document, beyond the maximum number of tokens.

    Example:
        >>> Summary("It rained.", ["It rained."], [0], [0.9, 0.2], unread=0).indices
        [0]
    """

    text: str
    sentences: list[str]
    indices: list[int]
    scores: list[float]
    unread: int


class ExtractiveSummarizer:
    """Summarises documents with a `BertSumForExtractiveSummarization`.

    Args:
        model: the model.
        tokenizer: its tokenizer, with [CLS] and [SEP].
        max_length: maximum number of tokens of a document; None: the number of the encoder's positions, or 512 for an
            encoder without a limit.

    Raises:
        TypeError: `model` has another class, or `max_length` is not an integer.
        InputError: `tokenizer` does not fit the model or has no padding token, or `max_length` exceeds the encoder's
            positions.

    Example:
        >>> from qacg_models import BertModel, BertSumConfig, BertSumForExtractiveSummarization, PlainBertConfig
        >>> from qacg_models.sentiment.encoding import train_tokenizer
        >>> text = "The river rose in the night. A bridge was closed at once."
        >>> tokenizer = train_tokenizer([text], vocab_size=100)
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> bert = BertModel(PlainBertConfig(vocab_size=len(tokenizer), **sizes))
        >>> config = BertSumConfig(inter_layers=1, heads=2, ff_size=32)
        >>> model = BertSumForExtractiveSummarization.from_encoder(bert, config)
        >>> ExtractiveSummarizer(model, tokenizer).summarize(text, count=1).text in text
        True
    """

    def __init__(
        self,
        model: BertSumForExtractiveSummarization,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
    ):
        if not hasattr(model, "max_length"):  # a compiled model has another class
            raise TypeError(f"model: expected a BertSumForExtractiveSummarization, got {type(model).__name__}")
        limit = model.max_length
        max_length = _checked_length(max_length, limit, 512 if limit is None else limit)
        check_tokenizer(tokenizer, model.get_input_embeddings().num_embeddings)
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length

    def summarize(self, document: str | Sequence[str], count: int = 3, *, block_trigrams: bool = True) -> Summary:
        """Summarises a text or a list of sentences.

        Args:
            document: text, which `split_sentences` divides, or a list of sentences.
            count: maximum number of sentences in the summary.
            block_trigrams: skip a sentence that shares three consecutive words with an already selected sentence.

        Returns:
            The summary: its sentences in the order of the text, and the score of each sentence that is read
            (all but the `unread` ones).

        Raises:
            InputError: there is no sentence, or one without text; `count` is below 1; the tokenizer has no [CLS] or no
                [SEP]; or `max_length` is below 3.
            TypeError: `document` is neither text nor iterable, or `count` is not an integer.
        """
        if not isinstance(document, Iterable):
            raise TypeError(f"document: expected text or a list of sentences, got {type(document).__name__}")
        check_count("count", count)
        sentences = split_sentences(document) if isinstance(document, str) else list(document)
        read = encode_document(sentences, self.tokenizer, self.max_length)
        scores = self._scores(read)
        chosen = select(sentences[: len(scores)], scores, count, block_trigrams)
        kept = [sentences[i] for i in chosen]
        return Summary(" ".join(kept), kept, chosen, scores, len(sentences) - len(scores))

    @torch.inference_mode()
    def _scores(self, document: Document) -> list[float]:
        batch = document_batch(document)
        if not self.model.takes_token_types:
            del batch["token_type_ids"]
        with _evaluating(self.model):
            return self.model(**{name: t.to(self.model.device) for name, t in batch.items()}).scores[0].tolist()
