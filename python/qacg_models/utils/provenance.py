"""The provenance of a result: versions, machine, and commit of the source code."""

import platform
from datetime import datetime, timezone
from importlib.metadata import version


def origin() -> dict[str, object]:
    """Returns the versions of packages, the machine (CPU, CUDA, threads) and the commit, as JSON values."""
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
    """Returns, for each device, the backends that "auto" has selected in this process, and a self-check summary."""
    from qacg_kernels.backends import dispatch

    return dispatch.chosen_so_far()


def now() -> str:
    """Returns the time in UTC in ISO 8601 format, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """Returns the commit, followed by "-modified" if tracked files differ; None outside a checkout or without git."""
    from qacg_kernels.utils.source_revision import checkout_of

    found = checkout_of(__file__, "-uno")
    return found and found[0] + ("-modified" if found[1] else "")
