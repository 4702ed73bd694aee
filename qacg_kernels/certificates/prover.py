"""Proving the fused kernels on a device: families judged and timed by processes of their own, into a certificate."""

import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from qacg_kernels.certificates import policy
from qacg_kernels.certificates.certificate import Certificate, Verdict
from qacg_kernels.certificates.environment import environment_of
from qacg_kernels.certificates.family import PASSES, Family, Scope
from qacg_kernels.certificates.lengths import CLASSES, MODES, TRAINING, Timed
from qacg_kernels.certificates.workers import Worker, WorkerGone

# On 16 cores a third of it: what takes the time is compiling some 300 kernels of Triton, once.
SECONDS = 180.0
# Nothing is compiled, and nothing is timed: what takes two or three seconds is mostly the start of the processes.
SECONDS_OF_A_CPU = 60.0
# A case compiles up to five kernels, each in seconds, in tens of seconds on a crowded machine.
_SILENCE = 120.0
_MOST_WORKERS, _MOST_WORKERS_OF_A_CPU = 14, 2
_BYTES_OF_A_WORKER = 1 << 30
# Share of the time that is kept for timing what holds.
_FOR_TIMING = 0.25
# A case goes to a process that has just begun at most so often without its context: then the GPU admits no second one.
_MOST_STARTS = 3

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What is to be proven, and how.

    Attributes:
        families: to be judged; what is timed follows from the scopes.
        timed: False leaves out the timing.
        seconds: in which all has to end; what was not reached is not judged.
        silence: seconds without a word after which a process counts as hung.
        greeting: what else the processes are told at their start (a rehearsal's fault, say).
    """

    device: torch.device
    backends: tuple[str, ...]
    scopes: tuple[Scope, ...]
    families: tuple[Family, ...]
    timed: bool = True
    workers: int | None = None
    seconds: float = SECONDS
    silence: float = _SILENCE
    greeting: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A certificate, and what kept it from being whole: a line, or None."""

    certificate: Certificate
    unfinished: str | None


def prove(task: Task, tell: Tell = lambda line: None) -> Outcome:
    """Judges and times all families of a task. Whatever its processes do, this one goes on."""
    return _Proof(task, tell).run()


class _Proof:
    def __init__(self, task: Task, tell: Tell) -> None:
        self._task, self._tell = task, tell
        self._end = time.monotonic() + task.seconds
        self._judging_ends = self._end - _FOR_TIMING * task.seconds
        self._left: queue.SimpleQueue[Family] = queue.SimpleQueue()
        self._verdicts: dict[Family, Verdict] = {}
        self._undecided: dict[Family, str] = {}
        self._no_start: str | None = None
        self._lock = threading.Lock()
        self._total = len(task.families)

    def run(self) -> Outcome:
        wanted = self._task.families
        for family in _heavy_first(wanted):
            self._left.put(family)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workers(len(wanted)))]
        for thread in threads:
            thread.start()
        self._watch(threads)
        times = self._times()
        certificate = Certificate(
            environment_of(self._task.device),
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            self._verdicts,
            times,
        )
        return Outcome(certificate, self._unfinished(wanted))

    def _workers(self, families: int) -> int:
        if self._task.workers is not None:
            return self._task.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's: ranks of this machine prove at once
        most = [cores - 1, _MOST_WORKERS, families]
        if self._task.device.type == "cpu":
            most.append(_MOST_WORKERS_OF_A_CPU)
        if self._task.device.type == "cuda":
            most.append(policy.free_bytes(self._task.device) // (2 * _BYTES_OF_A_WORKER))
        return max(1, min(most))

    def _watch(self, threads: list[threading.Thread]) -> None:
        told = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if time.monotonic() > told + 10:
                    told = time.monotonic()
                    self._tell(f"{len(self._verdicts)} of {self._total} families judged")

    def _start(self) -> Worker:
        greeting = {"device": str(self._task.device), **dict(self._task.greeting)}
        return Worker(greeting, self._task.silence)

    def _work(self) -> None:
        """Judges what is left, in one process after another: one in which something broke is not used again."""
        starts = 0
        while not self._left.empty() and self._seconds_left() > 0:
            starts += 1
            try:
                with self._start() as worker:
                    for _ in worker.answers(None, self._seconds_left()):
                        pass
                    starts = 0
                    self._judge_with(worker)
            except (WorkerGone, OSError) as error:
                # It never came to a family: this says nothing of any kernel.
                self._no_start = str(error)
                if starts >= _MOST_STARTS or isinstance(error, OSError):
                    return

    def _judge_with(self, worker: Worker) -> None:
        while self._seconds_left() > 0:
            try:
                family = self._left.get_nowait()
            except queue.Empty:
                return
            if not self._judge(worker, family):
                return

    def _judge(self, worker: Worker, family: Family) -> bool:
        """Whether the process may be used again."""
        case, seed, alive = "", 0, True
        try:
            for answer in worker.answers({"judge": str(family)}, self._seconds_left()):
                case, seed = answer.get("case", case), answer.get("seed", seed)
                if "undecided" in answer:
                    self._undecided[family] = answer["undecided"]
                elif "holds" in answer:
                    verdict = Verdict(answer["holds"], answer["found"], *((case, seed) if answer["found"] else ()))
                    self._keep(family, verdict)
                alive = not answer.get("broken", False)
        except WorkerGone as gone:
            if self._seconds_left() <= 0:
                self._undecided[family] = "the time was spent"
            else:
                self._keep(family, Verdict(False, str(gone), case, seed))
            return False
        return alive

    def _keep(self, family: Family, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[family] = verdict
            if not verdict.holds:
                self._tell(f"{family}: {verdict}")

    def _seconds_left(self) -> float:
        return self._judging_ends - time.monotonic()

    def _times(self) -> dict[Timed, dict[str, float]]:
        """Times of the backends that hold, and of the reference, with nobody else of ours on the device."""
        times: dict[Timed, dict[str, float]] = {}
        wanted = [
            (timed, names)
            for scope, length, mode in itertools.product(self._task.scopes, CLASSES, MODES)
            for timed in [Timed(*scope, length, mode)]
            if (names := [name for name in self._task.backends if self._may_be_timed(timed, name)])
        ]
        if not self._task.timed or not wanted or self._end - time.monotonic() <= 0:
            return times
        try:
            with self._start() as worker:
                for _ in worker.answers(None, self._end - time.monotonic()):
                    pass
                for timed, names in wanted:
                    for answer in worker.answers({"time": str(timed), "backends": names}, self._end - time.monotonic()):
                        if answer.get("seconds"):
                            times[timed] = answer["seconds"]
        except (WorkerGone, OSError) as error:
            self._tell(f"timing ended early: {error}")
        return times

    def _may_be_timed(self, timed: Timed, name: str) -> bool:
        """Whether what a measurement runs, plain rows with a row gate, was judged and holds."""
        directions = PASSES if timed.mode == TRAINING else PASSES[:1]
        judged = [
            verdict.holds
            for family, verdict in self._verdicts.items()
            if family.backend == name
            and family.scope == timed[:2]
            and family.route == timed.route
            and family.direction in directions
            and family.feature in ("plain", "row_gate")
        ]
        return bool(judged) and all(judged)

    def _unfinished(self, wanted: Iterable[Family]) -> str | None:
        missing = [f for f in wanted if f not in self._verdicts]
        if not missing:
            return None
        why = self._undecided.get(missing[0]) or self._no_start or "the time was spent"
        if self._no_start and not self._verdicts:
            why += "; on a GPU in exclusive mode prove them before another process takes it"
        return f"{len(missing)} of {self._total} families were not judged, {missing[0]} first: {why}"


def _heavy_first(families: Iterable[Family]) -> list[Family]:
    """The backward compiles several kernels: begun last, it would keep the others waiting."""
    return sorted(families, key=lambda f: f.direction != "backward")


def to_stderr(line: str) -> None:
    """Tells a person at a terminal, or a log, how far a proof is."""
    print(f"qacg_kernels: {line}", file=sys.stderr, flush=True)
