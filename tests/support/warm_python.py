"""Python processes that start with torch and transformers imported, but no module of this repository.

They are forks of a process that has done nothing else. Importing both packages takes four seconds, several times as
long as most processes that tests start. Tests of imports must not use this module, but start a new Python.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*arguments: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    """Runs Python with these arguments, which start with -c or -m, like `subprocess.run`.

    Args:
        *arguments: the arguments of Python.
        cwd: working folder; None: the folder of this process.
        **variables: environment variables in addition to the variables of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        order = {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd or Path.cwd()),
            "environment": os.environ | variables,
            "files": [str(out), str(err)],
        }
        source = _source()
        source.stdin.write(json.dumps(order) + "\n")
        source.stdin.flush()
        line = source.stdout.readline()
        if not line:
            raise RuntimeError(f"warm_python: expected a running parent of the forks, got exit status {source.wait()}")
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
        return subprocess.CompletedProcess(order["arguments"], int(line), *texts)


@functools.cache
def _source() -> subprocess.Popen:
    """Starts the parent of the forks, once. It ends when its input is closed, at the end of this process."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    """Reads commands, forks for each, and answers with its exit status. A fork returns when its command ends."""
    sys.modules["torchao"] = None  # transformers would load it, and it prints warnings
    for name in ("torch", "sklearn.linear_model", "transformers.trainer"):
        __import__(name)
    del sys.modules["torchao"]
    gc.freeze()  # otherwise each fork collects all imported objects
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            return _follow(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _follow(order: dict) -> None:
    for number, path in enumerate([os.devnull, *order["files"]]):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    # The first import path, this file's folder, is replaced by those that -c and -m have.
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    way, program, *given = order["arguments"]
    sys.argv = [way, *given]
    if way == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve()
