"""Python processes that tests start."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"


def run_python(
    *arguments: object, cwd: Path = ROOT, status: int | None = 0, paths: tuple = (ROOT,), **variables: str
) -> subprocess.CompletedProcess:
    """Runs Python with these arguments, and checks its exit status (None: any).

    `paths` are import paths that come before those in this process's PYTHONPATH; `variables` are further environment
    variables.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, [*paths, *inherited])))}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert status in (None, done.returncode), done.stdout[-6000:] + done.stderr[-3000:]
    return done
