"""Copies the PyTorch headers that csrc includes from the installed torch to csrc/third_party/pytorch.

Run this after torch's pin in constraints.txt has changed: `python distributions/torch_headers.py`.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "csrc/third_party/pytorch/include"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]((?:torch|c10|ATen)/[^>"]+)[>"]', re.MULTILINE)


def required_headers(include: Path) -> set[str]:
    """Headers that csrc includes, directly or through other headers, on any platform.

    Args:
        include: the folder of torch's headers.

    Returns:
        Paths relative to `include`.

    Raises:
        FileNotFoundError: `include` lacks one of the headers.
    """
    sources = (path for folder in ("cpu", "cuda", "common") for path in (ROOT / "csrc" / folder).iterdir())
    pending = [name for path in sources if path.is_file() for name in INCLUDE.findall(path.read_text())]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += INCLUDE.findall((include / name).read_text())
    return found


def main() -> None:
    from torch.utils.cpp_extension import include_paths

    include = Path(include_paths()[0])
    shutil.rmtree(COPY, ignore_errors=True)
    for name in sorted(required_headers(include)):
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(include / name, COPY / name)
    print(f"{COPY}: {sum(1 for path in COPY.rglob('*') if path.is_file())} headers")


if __name__ == "__main__":
    main()
