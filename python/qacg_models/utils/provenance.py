"""With what a result was made: versions, machine, and the commit of this package where there is one."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib.metadata import version


def origin() -> dict[str, object]:
    """Facts for a record, all of them JSON."""
    import torch

    from qacg_kernels import info

    facts = info.collect()
    return {
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")}
        | {"qacg-kernels": facts["package"], "python": platform.python_version()},
        "machine": {"cpu": facts["cpu"], "cuda": facts["cuda"], "threads": torch.get_num_threads()},
        "commit": commit(),
    }


def attention_backends() -> dict[str, object]:
    """Which attention kernels were chosen for this process's calls, by device; to be asked after the calls."""
    from qacg_kernels import dispatch

    return dispatch.chosen_so_far()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of a checkout, marked where files differ from it; None for an installed package."""
    from qacg_kernels.utils.source_revision import checkout_of

    found = checkout_of(__file__, "-uno")
    return found and found[0] + ("-modified" if found[1] else "")
