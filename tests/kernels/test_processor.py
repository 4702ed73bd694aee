"""The processor's name, out of what Linux tells of it."""

import platform

import pytest

from qacg_kernels.utils import cpu_info

X86 = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu\n\n"
VIRTUAL = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
CORE = (
    "processor\t: {n}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    "CPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 2\n\n"
)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (X86 * 2, "Some CPU @ 2.0GHz"),
        (VIRTUAL * 2, "AMD EPYC (family 26, model 2)"),
        (
            CORE.format(n=0, part="0xd4f") + CORE.format(n=1, part="0xd4f"),
            "ARM implementer 0x41 part 0xd4f variant 0x1 revision 2",
        ),
        (
            CORE.format(n=0, part="0xd41") + CORE.format(n=1, part="0xd05"),
            "ARM implementer 0x41 part 0xd05 variant 0x1 revision 2; "
            "implementer 0x41 part 0xd41 variant 0x1 revision 2",
        ),
        ("BogoMIPS\t: 100\n", platform.processor() or platform.machine()),
    ],
    ids=["x86", "virtual", "alike", "two kinds", "nothing"],
)
def test_name_on_linux(table, name):
    assert cpu_info._of_linux(table) == name
