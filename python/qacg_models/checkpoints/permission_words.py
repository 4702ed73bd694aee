"""What a message calls the permissions of loading and conversion: by the argument and by the flag of `qacg convert`."""

from __future__ import annotations

_FLAGS = {"ignore_mismatched_sizes": "--new-head"}  # the others have the name of their argument


def asking_for(permission: str) -> str:
    """An argument with its flag: `truncate_contexts (qacg convert --truncate-contexts)`."""
    flag = _FLAGS.get(permission, "--" + permission.replace("_", "-"))
    return f"{permission} (qacg convert {flag})"
