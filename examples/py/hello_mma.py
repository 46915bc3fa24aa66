"""Hello, MMA: who owns the accumulators of one tensor-core instruction, and that instruction at work.

    $ python examples/py/hello_mma.py             # NumPy arrays: the CPU reference; pass CUDA arrays for a GPU

The twin of examples/co/hello_mma.co.  `tilemma show SM80_16x8x16_F32F16F16F32_TN` draws the same map.
"""

import numpy as np

import tilemma as tm
from tilemma import dma, foreach, mma, parallel


@tm.kernel
def mma_ownership_map(owner: tm.Global["s32", 16, 8]):
    """Each lane stamps its number on the accumulators that it holds."""
    for _ in parallel(1, level="block"):
        for lane in parallel(32, level="thread"):
            for i in foreach(4):
                owner[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = lane


@tm.kernel
def micro_gemm(a: tm.Global["f16", 16, 16], b: tm.Global["f16", 8, 16], c: tm.Global["f32", 16, 8]):
    """One warp, one instruction: c = a x b transposed."""
    for _ in parallel(1, level="block"):
        a_s = dma.copy(a, to="shared")
        b_s = dma.copy(b, to="shared")
        for _ in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a_s.data), mma.load(b_s.data))
            mma.store(mc, c)


def table(values, cell):
    """The 16x8 matrix as text, headed as in the PTX ISA's figures."""
    lines = ["       " + "".join(f"n={n:<5}" for n in range(8))]
    lines += [f"m={m:<5}" + "".join(f"{cell(x):<7}" for x in row) for m, row in enumerate(values.tolist())]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    owner = np.full((16, 8), -1, np.int32)
    mma_ownership_map(owner)
    print("=== Which lane owns which accumulator of SM80_16x8x16_F32F16F16F32_TN ===\n")
    print(table(owner, lambda lane: f"T{lane:02d}"))

    a, b, c = np.ones((16, 16), np.float16), np.ones((8, 16), np.float16), np.zeros((16, 8), np.float32)
    micro_gemm(a, b, c)
    print("\n=== C(16x8) = A(16x16) x B(8x16) transposed, all ones: each entry is K = 16 ===\n")
    print(table(c, str))
