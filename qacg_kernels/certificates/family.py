"""The unit of proof: a family of calls that one backend serves by the same kernels.

A call belongs to one family for each pass it will run and each feature it has. Whether a backend may take it is whether
all of these families hold on the machine at hand.
"""

import itertools
from typing import NamedTuple

import torch

PASSES = ("forward", "backward")
# Rows of at most SHORT keys, the most that any kernel takes whole; longer ones; packed batches of either.
ROUTES = ("whole_row", "tiled", "packed")
SHORT = 128
FEATURES = ("plain", "mask", "lengths", "causal", "dropout", "row_gate", "column_gate")
_OF_PADDED_CALLS = ("mask", "lengths")
# Tiles are chosen by these: a family serves head sizes up to its own and above the one before.
HEAD_DIMS = (64, 128, 256)
DTYPES = ("float32", "bfloat16", "float16")


class Scope(NamedTuple):
    """What is proven in one go, because a model needs it together: a type of elements and a class of head sizes."""

    dtype: str
    head_dim: int

    def __str__(self) -> str:
        return f"{self.dtype}, head sizes to {self.head_dim}"


class Family(NamedTuple):
    backend: str
    direction: str  # one of PASSES
    dtype: str
    head_dim: int  # one of HEAD_DIMS
    route: str
    feature: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @property
    def scope(self) -> Scope:
        return Scope(self.dtype, self.head_dim)

    @classmethod
    def parse(cls, text: str) -> "Family":
        """The family that `str` wrote.

        Raises:
            ValueError: it is not one.
        """
        parts = text.split("/")
        if len(parts) != len(cls._fields) or not parts[3].isdigit():
            raise ValueError(f"family: got {text!r}, wanted {'/'.join(cls._fields)}")
        family = cls(*parts[:3], int(parts[3]), *parts[4:])
        for name, value, choices in (
            ("direction", family.direction, PASSES),
            ("dtype", family.dtype, DTYPES),
            ("head_dim", family.head_dim, HEAD_DIMS),
            ("route", family.route, ROUTES),
            ("feature", family.feature, FEATURES),
        ):
            if value not in choices:
                known = ", ".join(map(repr, choices))
                raise ValueError(f"family {text!r}: got {name} {value!r}, wanted one of {known}")
        return family


class CallKind(NamedTuple):
    """All of a call that decides its families and the class in which it was timed."""

    dtype: torch.dtype
    head_dim: int
    packed: bool
    longest_row: int | None  # keys; None in a trace, whose lengths may vary
    mask: bool
    lengths: bool
    causal: bool
    dropout: bool
    gate: str  # "plain" for a lambda tensor, "row_gate", "column_gate"
    differentiable: bool

    @property
    def scope(self) -> Scope | None:
        """None for a call that no family serves: another type, or larger heads."""
        dtype = str(self.dtype).removeprefix("torch.")
        if dtype not in DTYPES or self.head_dim > HEAD_DIMS[-1]:
            return None
        return Scope(dtype, next(d for d in HEAD_DIMS if self.head_dim <= d))

    @property
    def routes(self) -> tuple[str, ...]:
        if self.packed:
            return ("packed",)
        if self.longest_row is None:
            return ("whole_row", "tiled")
        return ("whole_row",) if self.longest_row <= SHORT else ("tiled",)

    @property
    def features(self) -> tuple[str, ...]:
        has = dict(mask=self.mask, lengths=self.lengths, causal=self.causal, dropout=self.dropout)
        return ("plain", *(name for name, present in has.items() if present), *({self.gate} - {"plain"}))

    def families(self, backend: str) -> list[Family]:
        """Those that must all hold for the backend to be trusted with the call."""
        if self.scope is None:
            return []
        directions = PASSES if self.differentiable else PASSES[:1]
        return [
            Family(backend, direction, *self.scope, route, feature)
            for direction, route, feature in itertools.product(directions, self.routes, self.features)
        ]


def families_in(scope: Scope, backend: str) -> list[Family]:
    """All families of a backend within a scope; none where it takes no such call."""
    if backend in ("hopper", "gluon") and (scope.dtype == "float32" or scope.head_dim > 128):
        return []
    return [
        Family(backend, direction, *scope, route, feature)
        for direction, route, feature in itertools.product(PASSES, ROUTES, FEATURES)
        if not (route == "packed" and feature in _OF_PADDED_CALLS)
    ]


def kind_of(problem, differentiable: bool, traced: bool = False) -> CallKind:
    """The kind of a `problem.Problem`; `differentiable` if a backward pass may follow."""
    gate = "plain" if problem.gate_lambda is not None else "column_gate" if problem.column_gate else "row_gate"
    return CallKind(
        problem.query.dtype,
        problem.head_dim,
        problem.packed,
        None if traced else problem.longest_row,
        problem.attn_mask is not None,
        problem.key_lengths is not None,
        problem.is_causal,
        problem.dropout_p > 0,
        gate,
        differentiable,
    )
