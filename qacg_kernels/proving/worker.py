"""The process that proves kernels: `python -m qacg_kernels.proving.worker`, asked and answered in lines of JSON.

It is started by `qacg_kernels.certificates.workers` and may crash, hang or be killed without harm. First comes where it
works, {"device": "cuda:0"}; then {"judge": FAMILY} or {"time": TIMED, "backends": [...]}. Each is answered by lines, of
which the last has "done". "broken" there says that this process should not be used again.
"""

import faulthandler
import json
import os
import queue
import sys
import threading
from typing import TextIO

import torch

from qacg_kernels.certificates.family import Family
from qacg_kernels.certificates.lengths import Timed
from qacg_kernels.certificates.standing import REFERENCE
from qacg_kernels.proving import faults, timing
from qacg_kernels.proving.judging import Fault, judge_family
from qacg_kernels.proving.probes import seed_of

# If nobody ended this process in so many seconds of one family, whoever started it is gone.
_ABANDONED = 600
_LONGEST = 300


def main() -> int:
    # Libraries print as they like: to the other stream.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    asked = _lines()
    worker = _Worker(json.loads(asked.get()), answers)
    worker.answer(done=True)
    while True:
        message = json.loads(asked.get())
        faulthandler.dump_traceback_later(_ABANDONED, exit=True)
        if "judge" in message:
            worker.judge(Family.parse(message["judge"]))
        else:
            worker.time(message["time"], message["backends"])
        faulthandler.cancel_dump_traceback_later()


def _lines() -> "queue.Queue[str]":
    """What is asked; the process ends when nobody can ask any more."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


class _Worker:
    def __init__(self, greeting: dict[str, str], answers: TextIO) -> None:
        self._answers = answers
        self._device = torch.device(greeting["device"])
        self._rehearses = greeting.get("rehearsal") == "1"
        self._fault = faults.Injection(greeting.get("fault"), greeting.get("family"))
        torch.manual_seed(0)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.zeros((), device=self._device).item()  # takes the context, or ends here

    def answer(self, **members: object) -> None:
        self._answers.write(json.dumps(members) + "\n")

    def judge(self, family: Family) -> None:
        def begin(case) -> None:
            self.answer(case=case.name, seed=seed_of(case))

        try:
            judge_family(family, self._device, begin, small=self._rehearses, after_kernel=self._fault.hook(family))
        except Fault as fault:
            self.answer(holds=False, found=str(fault), done=True)
        except torch.OutOfMemoryError as error:
            self.answer(undecided=f"out of memory: {_first_line(error)}", done=True, broken=True)
        except Exception as error:
            broken = self._is_broken(error)
            kind = "device error" if broken else "does not run"
            self.answer(holds=False, found=f"{kind}: {_first_line(error)}", done=True, broken=broken)
        else:
            self.answer(holds=True, found="", done=True)

    def _is_broken(self, error: Exception) -> bool:
        """Whether the device's context is of no more use: an error of a kernel stays with it."""
        if isinstance(error, faults.DeviceError):
            return True
        if self._device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def time(self, name: str, backends: list[str]) -> None:
        timed, names = Timed.parse(name), (*backends, REFERENCE)
        if self._rehearses:
            # An interpreter's times would say nothing; what is rehearsed is the choice.
            self.answer(seconds=self._fault.made_up_seconds(names), done=True)
            return
        torch.use_deterministic_algorithms(False)
        self.answer(seconds=timing.seconds_of(timed, names, self._device), done=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_LONGEST]


if __name__ == "__main__":
    main()
