"""Whole steps, timed side by side, as rows."""

import time
from collections.abc import Callable

import torch

from benchmarks import rows
from benchmarks.measure import timing
from benchmarks.measure.disturbance import Disturbance
from benchmarks.steps.agreement import precision, require_agreement
from benchmarks.steps.names import RELEASED, TRAINING
from benchmarks.steps.providers import SIZES, Builder, Runner, takes
from benchmarks.steps.sentences import Batch, Sentences

# Providers are compared in float64 on so many batches of so many sentences.
_JUDGED_BATCHES, _JUDGED_SENTENCES = 4, 4


def make_step(runner: Runner, mode: str, dtype: str, batches: list[Batch]) -> Callable[[int], float]:
    """A function that runs all batches once and returns the seconds; its argument, the turn, is not used."""

    def train(_turn: int) -> float:
        taken = 0.0
        for batch in batches:
            runner.model.zero_grad()
            start = time.perf_counter()
            with precision(dtype):
                loss = runner.run(batch)[0]
            loss.backward()
            taken += time.perf_counter() - start
        runner.model.zero_grad()
        return taken

    def infer(_turn: int) -> float:
        start = time.perf_counter()
        with torch.no_grad(), precision(dtype):
            for batch in batches:
                runner.run(batch)
        return time.perf_counter() - start

    return train if mode == TRAINING else infer


def measure(
    size: str,
    mode: str,
    names: list[str],
    dtypes: list[str],
    batches: list[Batch],
    sentences: Sentences,
    effort: timing.Effort,
    source: rows.Origin,
) -> list[rows.StepRow]:
    """Checks that the providers agree, times them in turn in all dtypes, and returns a row for each.

    Raises:
        benchmarks.measure.verify.ParityError: a provider computes something else.
    """
    builder = Builder(SIZES[size], len(sentences.contexts))
    runners = {name: builder.build(name) for name in names if takes(name, mode)}
    judged = sentences.draw(_JUDGED_BATCHES, _JUDGED_SENTENCES, seed=1)
    for dtype in dtypes:
        require_agreement(builder, runners, judged, dtype)
    steps = {}
    for name, runner in runners.items():
        runner.model.train(mode == TRAINING)
        runner.prepare()
        for dtype in dtypes:
            steps[name, dtype] = make_step(runner, mode, dtype, batches)
    disturbance = Disturbance()
    taken = timing.interleave(steps, effort)
    return step_rows(
        taken,
        disturbance.share(),
        source,
        rival=(RELEASED, "float32"),
        size=size,
        mode=mode,
        lengths=sentences.source,
        batches=len(batches),
        sentences=sum(batch.sentences for batch in batches),
        tokens=sum(batch.tokens for batch in batches),
        cells=sum(batch.cells for batch in batches),
    )


def step_rows(
    taken: dict[tuple[str, str], list[float]],
    others_share: float | None,
    source: rows.Origin,
    rival: tuple[str, str],
    *,
    size: str,
    mode: str,
    lengths: str,
    batches: int,
    sentences: int,
    tokens: int,
    cells: int,
) -> list[rows.StepRow]:
    """Rows of one size and mode from the seconds by (provider, dtype) that `timing.interleave` returned."""
    spreads = {key: rows.Spread.of([1e3 * s for s in seconds]) for key, seconds in taken.items()}
    return [
        rows.StepRow(
            origin=source,
            size=size,
            mode=mode,
            provider=provider,
            dtype=dtype,
            lengths=lengths,
            batches=batches,
            sentences=sentences,
            tokens=tokens,
            cells=cells,
            median_ms=rows.figure(spread.median),
            min_ms=rows.figure(spread.least),
            q1_ms=rows.figure(spread.q1),
            q3_ms=rows.figure(spread.q3),
            repeats=len(taken[provider, dtype]),
            others_share=others_share if others_share is None else round(others_share, 3),
            sentences_per_second=rows.figure(1e3 * sentences / spread.median),
            ratio_to_released=rows.figure(spreads[rival].median / spread.median) if rival in spreads else None,
        )
        for (provider, dtype), spread in spreads.items()
    ]
