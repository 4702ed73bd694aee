"""Platforms that wheels are made for, and the processor that is built for."""

import os
import platform
from typing import NamedTuple


class Target(NamedTuple):
    """A platform that wheels are made for (QACG_BUILD_FOR): its processor, and what the compiler calls it."""

    machine: str
    triple: str

    @property
    def is_linux(self) -> bool:
        return "linux" in self.triple


# By the platform tag of the wheel; "any" is a wheel without a library.
TARGETS = {
    "manylinux_2_28_x86_64": Target("x86_64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": Target("aarch64", "aarch64-linux-gnu.2.28"),
    "macosx_11_0_arm64": Target("arm64", "aarch64-macos.11.0"),
}


def platform_tag() -> str | None:
    """The platform that QACG_BUILD_FOR names, None for this machine itself."""
    tag = os.environ.get("QACG_BUILD_FOR")
    if tag and tag != "any" and tag not in TARGETS:
        raise RuntimeError(f"QACG_BUILD_FOR: got {tag!r}, wanted any, {', '.join(TARGETS)}")
    return tag or None


def target() -> Target | None:
    return TARGETS.get(platform_tag() or "")


def machine() -> str:
    """The processor that is built for."""
    other = target()
    return other.machine if other else platform.machine().lower()
