"""The commit of the source code, for records of measurements and training runs."""

import subprocess
from pathlib import Path


def checkout_of(file: str | Path, *status: str) -> tuple[str, bool] | None:
    """Returns the commit of the git checkout that contains a file, and whether the checkout differs from the commit.

    `status` are arguments of `git status --porcelain`, which select what counts as a difference; without them,
    untracked files count too. The result is None if git fails or does not track the file, as in an installed package.
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
