"""The commit of the source code, for records of measurements and trainings."""

import subprocess
from pathlib import Path


def checkout_of(file: str | Path, *status: str) -> tuple[str, bool] | None:
    """The full commit hash of a file's checkout, and whether the checkout differs from it.

    Args:
        file: usually the caller's `__file__`.
        status: arguments of `git status --porcelain`, which select what counts as a difference; by default untracked
            files do.

    Returns:
        None for a file that is not under version control, as in an installed package, or without git.
    """
    file = Path(file).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "--", file.name):
            return None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", *status))
    except (OSError, subprocess.CalledProcessError):
        return None
