"""Environment variables of the build, which setup.py lists, and the platforms of the wheels."""

import os
import platform
import sys
from typing import NamedTuple


class Target(NamedTuple):
    """A platform of a wheel (QACG_BUILD_FOR): its processor, and the compiler's name of the platform."""

    machine: str
    triple: str
    has_cuda: bool = False  # such a wheel is built on this processor, since nvcc compiles host code for no other


# Platforms by the tag of their wheel; the tag "any" is for a wheel without a library.
TARGETS = {
    "manylinux_2_28_x86_64": Target("x86_64", "x86_64-linux-gnu.2.28", has_cuda=True),
    "manylinux_2_28_aarch64": Target("aarch64", "aarch64-linux-gnu.2.28"),
    "macosx_11_0_arm64": Target("arm64", "aarch64-macos.11.0"),
}


def platform_tag() -> str | None:
    """The value of QACG_BUILD_FOR, a platform tag or "any"; None for a build for this machine."""
    tag = os.environ.get("QACG_BUILD_FOR")
    if tag and tag != "any" and tag not in TARGETS:
        raise RuntimeError(f"QACG_BUILD_FOR: expected any or one of {', '.join(TARGETS)}, got {tag!r}")
    return tag or None


def target() -> Target | None:
    """The platform in QACG_BUILD_FOR, or None for this machine and for wheels without a library."""
    return TARGETS.get(platform_tag() or "")


def machine() -> str:
    """The processor that the build is for, such as "x86_64"."""
    other = target()
    return other.machine if other else platform.machine().lower()


def for_linux() -> bool:
    """Whether the build is for Linux."""
    other = target()
    return "linux" in other.triple if other else sys.platform == "linux"


def build_option(variable: str) -> str:
    """The value of QACG_BUILD_CPU or QACG_BUILD_CUDA: "auto" (also if it is not set), "0" or "1"."""
    value = os.environ.get(variable, "auto")
    if value not in ("auto", "0", "1"):
        raise RuntimeError(f"{variable}: expected 0, 1 or auto, got {value!r}")
    return value


def debugging() -> bool:
    return os.environ.get("DEBUG") == "1"


def jobs() -> int | None:
    """The number of compile jobs at a time (MAX_JOBS); None if it is not set or empty."""
    value = os.environ.get("MAX_JOBS")
    if not value:
        return None
    if not value.isdecimal() or not int(value):
        raise RuntimeError(f"MAX_JOBS: expected a positive integer, got {value!r}")
    return int(value)
