"""The arithmetic that CPU and CUDA kernels share (csrc/common), compared with torch and with formulas in float64."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_emulator import build

from qacg_kernels.call.dropout import drop_threshold, keep_scale

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def common():
    if build.compiler() is None:
        pytest.skip("no C++ compiler")
    library = ctypes.CDLL(str(build.single(TESTS / "common_arithmetic/arithmetic.cpp", ("-std=c++17", "-O2", "-fPIC"))))
    library.scale_of.restype = ctypes.c_float
    return library


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


# The ends, both sides of a half of 2^-16, and numbers that float32 would round to another threshold.
@pytest.mark.parametrize("p", [0.0, 2**-17 - 1e-12, 2**-17, 0.1, 0.3, 0.5, 0.99999, 1 - 2**-16, 1 - 2**-18, 1 - 1e-12])
def test_probability_is_rounded_like_the_reference(p, common):
    threshold = common.threshold_of(ctypes.c_double(p))
    assert threshold == drop_threshold(p)
    assert common.scale_of(threshold) == np.float32(keep_scale(p))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_number_is_widened_and_narrowed_exactly(dtype, common):
    bits = np.arange(1 << 16, dtype=np.uint16)
    name = str(dtype).removeprefix("torch.")
    wide, back = np.zeros(bits.size, dtype=np.float32), np.zeros_like(bits)
    getattr(common, f"widen_{name}")(pointer(bits), pointer(wide), ctypes.c_int64(bits.size))
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
    number = ~np.isnan(expected)
    assert (wide[number].view(np.uint32) == expected[number].view(np.uint32)).all()
    assert np.isnan(wide[~number]).all()
    getattr(common, f"narrow_{name}")(pointer(wide), pointer(back), ctypes.c_int64(bits.size))
    assert (back[number] == bits[number]).all()
    infinity = 0x7C00 if dtype == torch.float16 else 0x7F80
    assert (back[~number] & 0x7FFF > infinity).all(), "NaN became a number"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrowing_rounds_like_torch(dtype, common):
    """The inputs are random bits, and each midpoint between two numbers with its neighbours in float32."""
    generator = np.random.default_rng(1)
    numbers = torch.arange(1 << 15, dtype=torch.int16).view(dtype).double()
    finite = numbers[numbers.isfinite()].numpy()
    halfway = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [
            generator.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32),
            *(np.nextafter(halfway, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)),
            halfway,
            -halfway,
            np.array([65504, 65519.996, 65520, 3.4e38, np.inf, -np.inf, 2**-24, 2**-25, -0.0], dtype=np.float32),
        ]
    )
    x = np.ascontiguousarray(x[~np.isnan(x)])
    got = np.zeros(x.size, dtype=np.uint16)
    getattr(common, f"narrow_{str(dtype).removeprefix('torch.')}")(pointer(x), pointer(got), ctypes.c_int64(x.size))
    expected = torch.from_numpy(x).to(dtype).view(torch.int16).numpy().view(np.uint16)
    assert (got == expected).all(), x[got != expected][:5]
