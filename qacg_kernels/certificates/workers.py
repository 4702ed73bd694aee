"""A process that proves kernels on behalf of this one, seen from here: started, asked, watched, ended.

Lines of JSON go to it and come back (`qacg_kernels.proving.worker` says which). It has a process group of its own, so
that whatever it started ends with it, and it ends by itself when this process is gone.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = "qacg_kernels.proving.worker"
_SOURCES = str(Path(__file__).resolve().parents[2])
_LAST_WORDS = 2000
_LAST_BREATH = 10


class WorkerGone(Exception):
    """The process ended, or was silent for too long and was ended; the text says which."""


class Worker:
    """One such process.

    Args:
        greeting: the first line it gets: where it works.
        silence: seconds without a line after which it counts as hung.
    """

    def __init__(self, greeting: dict[str, object], silence: float) -> None:
        self._silence = silence
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        paths = [_SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "QACG_CERTIFY": "off"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._send(greeting)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _send(self, message: dict[str, object]) -> None:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise WorkerGone(self._ending()) from error

    def answers(self, message: dict[str, object] | None, seconds: float) -> Iterator[dict[str, object]]:
        """Asks, and gives each answer up to the one that has "done" in it.

        Args:
            message: what is asked; None waits for the answer to the greeting.
            seconds: in which all of the answer has to come.

        Raises:
            WorkerGone: the process crashed, hung, or took longer; it has been ended.
        """
        if message is not None:
            self._send(message)
        end = time.monotonic() + seconds
        while True:
            wait = min(self._silence, end - time.monotonic())
            try:
                line = self._lines.get(timeout=max(wait, 0.01))
            except queue.Empty:
                self.end()
                raise WorkerGone(f"hung: no sign of life for {wait:.0f} s") from None
            if line is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LAST_BREATH)  # else its end would be ours, and say nothing
                self.end()
                raise WorkerGone(self._ending())
            answer = json.loads(line)
            yield answer
            if "done" in answer:
                return

    def _ending(self) -> str:
        status = self._process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"its process ended with {how}{self._last_words()}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - _LAST_WORDS))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            return f": {lines[-1]}" if lines else ""
        return ""

    def end(self) -> None:
        """Ends the process and all that it started."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._errors.close()
