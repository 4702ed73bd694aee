"""Texts per second of the arms by the number of aspects, with the arms interleaved in one run."""

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from qacg_models.checkpoints.packaged import located
from qacg_models.data import Example, load_data
from qacg_models.data.tokenization import load_tokenizer
from qacg_models.modules.context_fold import fold_context
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.provenance import origin

from benchmarks.many_aspects.arms import ARMS, DATA, PAIRS, QUASI, TRIED_ON
from benchmarks.many_aspects.batches import Batch, Questions
from benchmarks.many_aspects.models import AspectModel
from benchmarks.many_aspects.results import load
from benchmarks.measure.timing import Effort, interleave

FILE = "speed.json"
ASPECTS = (1, 4, 8, 12)
TEXTS, ROWS, BATCHES = 16, 64, 4
EFFORT = Effort(seconds=20, fewest_rounds=5, most_rounds=20)


def measure(data: Path, out: Path, effort: Effort = EFFORT) -> dict:
    """Measures inference of all arms that have a result, in float32 on texts of SentiHood's dev; stores the record.

    Args:
        data: folder of the published data sets.
        out: folder of results, and of the record.
        effort: how long to measure for each number of aspects.

    Returns:
        The record: `texts_per_second` by number of aspects and arm, threads, versions and machine.
    """
    dataset = load_data(data / TRIED_ON, ("train", "dev"), DATA[TRIED_ON])
    trained = {one.trial.arm for one in load(out).values()}
    arms = [name for name in ARMS if name in trained]
    found: dict[str, dict[str, float]] = {}
    for aspects in ASPECTS:
        # Further aspects get invented names that are a word longer, since each name may occur only once.
        contexts = [*dataset.contexts, *(f"{name} again" for name in dataset.contexts)][:aspects]
        steps = {name: _step(name, dataset.splits["dev"], contexts, len(dataset.task.labels)) for name in arms}
        seconds = interleave(steps, effort)
        found[str(aspects)] = {name: 1 / statistics.median(values) for name, values in seconds.items()}
        print(f"{aspects} aspects: measured", flush=True)
    record = {"texts_per_second": found, "threads": torch.get_num_threads(), "machine": origin()}
    with atomic_write(out / FILE) as handle:
        json.dump(record, handle)
        handle.write("\n")
    return record


def _step(name: str, rows: Sequence[Example], contexts: Sequence[str], classes: int):
    """Returns a function that answers all questions about one of BATCHES sets of texts and returns seconds per text.

    Its n-th call uses the n-th set, so that all arms of a round get the same texts.
    """
    arm, tokenizer = ARMS[name], load_tokenizer(located("minilm"))
    model = AspectModel(arm, classes, contexts, tokenizer).eval()
    if arm.kind == QUASI:
        fold_context(model)
    texts = list(dict.fromkeys(row.sentence for row in rows))
    texts = [texts[index] for index in np.random.default_rng(0).permutation(len(texts))[: TEXTS * BATCHES]]
    sets: list[tuple[int, list[Batch]]] = []
    for start in range(0, len(texts), TEXTS):
        asked = [
            Example(str(number), text, context, "", context, 0, number)
            for number, text in enumerate(texts[start : start + TEXTS])
            for context in contexts
        ]
        questions = Questions(asked, tokenizer, contexts, arm.kind == PAIRS and arm.from_layer == 0)
        sets.append((len(questions.texts), list(questions.by_length(ROWS))))

    rounds = itertools.cycle(sets)

    def step(_turn: int) -> float:
        count, batches = next(rounds)
        begun = time.perf_counter()
        with torch.inference_mode():
            for batch in batches:
                model(batch)
        return (time.perf_counter() - begun) / count

    return step
