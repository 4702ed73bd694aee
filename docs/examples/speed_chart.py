"""Draws the speed of fused and eager quasi-attention on this machine: python docs/examples/speed_chart.py speed.svg"""

import statistics
import sys
import time

import matplotlib.pyplot as plt
import torch

import qacg_kernels as qk

LENGTHS = (32, 128, 512)


def eager(q, k, v, qc, kc, lam):
    scale = q.shape[-1] ** -0.5
    maps = torch.softmax(q @ k.mT * scale, -1) + lam[..., None] * torch.sigmoid(qc @ kc.mT * scale)
    return maps @ v


def milliseconds(functions, inputs, repeats):
    """Returns the median time of each function; calls alternate, so that other programs slow all functions equally."""
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, found in zip(functions, times, strict=True):
            start = time.perf_counter()
            function(*inputs)
            found.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(found[1:]) for found in times]


def main(path, repeats=8):
    rows = []
    with torch.no_grad():
        for length in LENGTHS:
            inputs = [torch.randn(4, 12, length, 64) for _ in range(5)] + [torch.rand(4, 12, length)]
            torch.testing.assert_close(qk.quasi_attention(*inputs), eager(*inputs), rtol=1e-3, atol=1e-4)
            rows.append(milliseconds((eager, qk.quasi_attention), inputs, repeats))
            print(f"L = {length}: eager {rows[-1][0]:.2f} ms, fused {rows[-1][1]:.2f} ms")
    positions = range(len(LENGTHS))
    plt.bar([x - 0.2 for x in positions], [row[0] for row in rows], 0.4, label="eager PyTorch")
    plt.bar([x + 0.2 for x in positions], [row[1] for row in rows], 0.4, label="qacg_kernels")
    plt.xticks(positions, [f"{length} tokens" for length in LENGTHS])
    plt.yscale("log")
    plt.ylabel("ms, forward of (4, 12, L, 64) in float32")
    plt.legend()
    plt.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "speed.svg")
