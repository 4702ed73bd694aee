"""The cases of the benchmarks: shapes, FLOP counts, random inputs, and lengths of sentences."""

import functools
import json
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

FORWARD = "forward"  # inference: under no_grad
TRAINING_FORWARD = "training-forward"  # the forward of a training step, which saves what its backward needs
FORWARD_BACKWARD = "forward+backward"  # with the gradients of all inputs
BACKWARD = "backward"  # the same gradients; the forward is not timed
MODES = (FORWARD, TRAINING_FORWARD, FORWARD_BACKWARD, BACKWARD)
FULL = "full"  # every sequence has the length of the shape
PADDED = "padded"  # a padded batch with key lengths from `sentence_lengths`
PACKED = "packed"  # the same sequences one after another, without padding
LENGTHS = (FULL, PADDED, PACKED)
LAMBDA = "lambda"  # the gate is a tensor (B, H, L)
VECTORS = "vectors"  # the gate is four vectors (D), from which the kernels compute lambda
GATES = (LAMBDA, VECTORS)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAIN_DTYPES = ("float32", "bfloat16")  # of whole steps

# FLOP per (batch, head, query, key, feature), by pass.
QUASI_ATTENTION_FLOPS = {FORWARD: 6, TRAINING_FORWARD: 6, BACKWARD: 16, FORWARD_BACKWARD: 22}
SOFTMAX_ATTENTION_FLOPS = {FORWARD: 4, TRAINING_FORWARD: 4, BACKWARD: 10, FORWARD_BACKWARD: 14}
# FLOP that the tiled kernels of a GPU execute. Rates count QUASI_ATTENTION_FLOPS; these are shown beside them.
TILED_FLOPS = {FORWARD: 8, BACKWARD: 22}
FLOP_CONVENTION = (
    "flops_per_entry x B x H x L x S x D; quasi-attention 6 forward (three products; a tiled forward executes 8) "
    "and 16 backward (eight products), softmax attention 4 and 10; the count is the same for every implementation, "
    "whatever it stores or recomputes"
)


class Shape(NamedTuple):
    """Sizes of a call. `length` is the number of queries, and of keys unless the case sets `keys`."""

    batch: int
    heads: int
    length: int
    head_dim: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Reads a shape from text such as "64,12,128,64"."""
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 4 or min(sizes) < 1:
            raise ValueError(f"shape: expected B,H,L,D, such as 64,12,128,64, got {text!r}")
        return cls(*sizes)

    def __str__(self) -> str:
        return f"({self.batch},{self.heads},{self.length},{self.head_dim})"


SENTENCES = Shape(64, 12, 128, 64)
PARAGRAPHS = Shape(8, 12, 512, 64)
DOCUMENTS = Shape(2, 12, 2048, 64)
MAIN_SHAPES = (SENTENCES, PARAGRAPHS, DOCUMENTS)
QUICK_SHAPES = (Shape(4, 4, 128, 64), Shape(1, 4, 512, 64))
MEMORY_SHAPE = Shape(1, 12, 8192, 64)


@dataclass(frozen=True)
class Case:
    """One call to measure. `keys` is None if there are as many keys as queries."""

    shape: Shape
    dtype: str = "float32"
    mode: str = FORWARD
    dropout: float = 0.0
    device: str = "cpu"
    lengths: str = FULL
    keys: int | None = None
    gate: str = LAMBDA

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("mode", MODES), ("lengths", LENGTHS), ("gate", GATES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a number in [0, 1), got {self.dropout}")
        if self.keys is not None and (self.keys < 1 or self.lengths != FULL or self.gate != LAMBDA):
            raise ValueError(
                f"keys: expected None, or a positive number with lengths 'full' and gate 'lambda', got {self.keys} "
                f"with lengths {self.lengths!r} and gate {self.gate!r}"
            )

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        batch, _, length, _ = self.shape
        return (length,) * batch if self.lengths == FULL else sentence_lengths(batch, length)

    @property
    def products(self) -> int:
        """The number of multiply-adds of one matrix product over all attention entries, without padding."""
        entries = sum(n * (self.keys or n) for n in self.sequence_lengths)
        return self.shape.heads * self.shape.head_dim * entries

    @property
    def short_name(self) -> str:
        """The shape; then keys, lengths and gate where they differ from the default."""
        return f"{self._sizes}{self._form}"

    @property
    def _sizes(self) -> str:
        return str(self.shape) if self.keys is None else f"{self.shape} x {self.keys} keys"

    @property
    def _form(self) -> str:
        lengths = "" if self.lengths == FULL else f" {self.lengths}"
        return lengths if self.gate == LAMBDA else f"{lengths} gate {self.gate}"

    def __str__(self) -> str:
        dropout = f" dropout {self.dropout:g}" if self.dropout else ""
        device = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self._sizes} {self.dtype} {self.mode}{self._form}{dropout}{device}"


def grid(shapes, dtypes, modes, dropouts, lengths=(FULL,)) -> list[Case]:
    """CPU cases of all combinations of shapes, dtypes, modes, dropouts and lengths, except inference with dropout."""
    return [
        Case(shape, dtype, mode, dropout, "cpu", form)
        for shape, dtype, mode, dropout, form in product(shapes, dtypes, modes, dropouts, lengths)
        if not (dropout and mode == FORWARD)
    ]


_HISTOGRAM = Path(__file__).with_name("sentihood_lengths.json")
LONGEST = 128  # the longest length in the histogram; longer sentences are counted as truncated to it


@functools.cache
def histogram() -> dict[int, int]:
    """The number of examples in SentiHood's training split by length in word pieces, shortest first."""
    counts = json.loads(_HISTOGRAM.read_text(encoding="utf-8"))["counts"]
    return {int(length): count for length, count in counts.items()}


@functools.cache
def sentence_lengths(count: int, longest: int) -> tuple[int, ...]:
    """Returns `count` lengths with the distribution of SentiHood's sentences.

    All but the last are evenly spaced quantiles of the histogram, scaled by longest / LONGEST and shuffled with a fixed
    seed. The last is `longest`.
    """
    lengths, counts = zip(*histogram().items())
    up_to = list(accumulate(counts))
    middles = [(i + 0.5) / count * up_to[-1] for i in range(count - 1)]
    drawn = [lengths[bisect_right(up_to, middle)] for middle in middles]
    drawn = [max(1, round(n * longest / LONGEST)) for n in drawn]
    random.Random(0).shuffle(drawn)
    return *drawn, longest


class Inputs(NamedTuple):
    """The operands of one call, and the upstream gradient of its output.

    If packed, operands and gradient are (T, H, D) and lambda is (T, H), with T tokens in all sequences.
    """

    query: Tensor  # (B, H, L, D), also the shape of context_query and grad_out
    key: Tensor  # (B, H, S, D), also the shape of value and context_key
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate: tuple[Tensor, ...]  # lambda (B, H, L), or the vectors (D) of query, context query, key and context key
    grad_out: Tensor  # (B, H, L, D); 0 at padding, as with a loss that ignores padding

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (*self[:5], *self.gate)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.operands, self.grad_out)


def draw(case: Case, generator: torch.Generator) -> Inputs:
    """Draws inputs on the case's device: from N(0, 1), but lambda uniform in [-1, 1] and gate vectors N(0, 1 / D).

    Operands require gradients unless the mode is FORWARD. The upstream gradient is 0 at padding.
    """
    batch, heads, length, head_dim = case.shape
    rows = (sum(case.sequence_lengths), heads) if case.lengths == PACKED else (batch, heads, length)

    def place(t: Tensor) -> Tensor:
        return t.to(case.device, DTYPES[case.dtype])

    def normal(*sizes: int) -> Tensor:
        return place(torch.randn((*sizes, head_dim), generator=generator, device=generator.device))

    key_rows = rows if case.keys is None else (batch, heads, case.keys)
    *wide, grad_out = (normal(*sizes) for sizes in (rows, key_rows, key_rows, rows, key_rows, rows))
    if case.gate == VECTORS:
        gate = [normal() * head_dim**-0.5 for _ in range(4)]
    else:
        gate = [place(2 * torch.rand(rows, generator=generator, device=generator.device) - 1)]
    if case.lengths == PADDED:
        grad_out.masked_fill_(padding(case)[:, None, :, None], 0.0)
    operands = [*wide, *gate]
    if case.mode != FORWARD:
        operands = [t.requires_grad_() for t in operands]
    return Inputs(*operands[:5], tuple(operands[5:]), grad_out)


def key_lengths(case: Case) -> Tensor:
    """The lengths of the sequences, (B,) int64, on the case's device."""
    return torch.tensor(case.sequence_lengths, device=case.device)


def padding(case: Case) -> Tensor:
    """A boolean tensor (B, L) on the case's device, True at padding."""
    return torch.arange(case.shape.length, device=case.device) >= key_lengths(case)[:, None]


def offsets(case: Case) -> Tensor:
    """Returns `cu_seqlens` of the packed batch, (B + 1,) int32.

    The first B numbers are the starts of the sequences, the last is the number of tokens.
    """
    return torch.tensor([0, *accumulate(case.sequence_lengths)], dtype=torch.int32, device=case.device)


_INPUT_BYTES = 1 << 30
_MOST_SETS = 8


def draw_sets(case: Case) -> list[Inputs]:
    """Draws as many sets of inputs as fit into 1 GiB, but at least two and at most eight.

    Calls rotate over the sets, so that large inputs are not in the cache.
    """
    generator = torch.Generator(case.device).manual_seed(0)
    first = draw(case, generator)
    size = sum(t.nbytes for t in first.tensors)
    count = max(2, min(_MOST_SETS, _INPUT_BYTES // size))
    return [first, *(draw(case, generator) for _ in range(count - 1))]
