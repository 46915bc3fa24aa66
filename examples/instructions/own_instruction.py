"""Instructions of one's own: declared by the program, and used like those of the catalogue.

    $ python examples/instructions/own_instruction.py       # NumPy arrays: the CPU reference

Three of them: a tensor-core instruction of sm_80, as if the catalogue lacked it; a unit of 8x8x32 that no GPU has;
and a systolic array of 128x128, whose sums keep 16 bits.  The last two have no PTX: the reference executes them.
"""

import numpy as np
from tensor_layouts import Layout

import tilemma as tm
from tilemma import dma, foreach, mma, parallel

# PTX ISA, fragments of mma.m16n8k16: (thread, value) to row + rows * column.
PAIRS = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))

HALF = tm.instruction(
    "MY_16x8x16_F16",
    shape=(16, 8, 16),
    types={"D": "f16", "A": "f16", "B": "f16"},
    layouts={
        "A": Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128))),
        "B": Layout(((4, 8), (2, 2)), ((16, 1), (8, 64))),
        "C": PAIRS,
    },
    ptx="mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c};",
    archs=("sm_80",),
    rank=-1,
)

# Eight rows of bytes a lane quad: lane l has 8 bytes of row l // 4, and two sums of row l // 4.
BYTES = Layout(((4, 8), 8), ((64, 1), 8))
UNIT = tm.instruction(
    "UNIT_8x8x32",
    shape=(8, 8, 32),
    types={"D": "s32", "A": "s8", "B": "u8"},
    layouts={"A": BYTES, "B": BYTES, "C": Layout(((4, 8), 2), ((16, 1), 8))},
    rank=-1,
)


def systolic(a, b, c):
    """Each cell adds one product a step, and keeps 16 bits of the sum."""
    for k in range(a.shape[1]):
        c = (c + np.outer(a[:, k], b[:, k])).astype(np.float16).astype(np.float64)
    return c


# Row t of each operand belongs to thread t.
ROWS = Layout((128, 128), (1, 128))
ARRAY = tm.instruction(
    "SYSTOLIC_128x128",
    shape=(128, 128, 128),
    types={"D": "f32", "A": "bf16", "B": "bf16"},
    layouts={"A": ROWS, "B": ROWS, "C": ROWS},
    meaning=systolic,
    rank=-1,
)


@tm.kernel
def product(
    lhs: tm.Global["T", "M", "K"],
    rhs: tm.Global["U", "N", "K"],
    output: tm.Global["ACC", "M", "N"],
    *,
    T="f16",
    U="f16",
    ACC="f16",
    ATOM="MY_16x8x16_F16",
    TILE=32,
    DEPTH=32,
    LEVEL="group",
):
    """output = lhs x rhs transposed, by the instruction ATOM alone; tiles of TILE x TILE, DEPTH of K at a time."""
    for i, j in parallel(tm.cdiv(lhs.shape[0], TILE), tm.cdiv(rhs.shape[0], TILE), level="block"):
        mc = mma.fill(0.0, ACC)
        for k in foreach(tm.cdiv(lhs.shape[1], DEPTH)):
            a = dma.copy(lhs.subspan(TILE, DEPTH).at(i, k), to="shared")
            b = dma.copy(rhs.subspan(TILE, DEPTH).at(j, k), to="shared")
            for _ in parallel(1, level=LEVEL):
                mma.row.row(mc, mma.load(a), mma.load(b), atom=ATOM)
        for _ in parallel(1, level=LEVEL):
            mma.store(mc, output.subspan(TILE, TILE).at(i, j))


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in "ab")
    c = np.zeros((64, 64), np.float16)
    product(a, b, c)
    print(f"{HALF.name}: largest error {np.abs(c - a.astype(float) @ b.T.astype(float)).max():.4f}")

    a, b = rng.integers(-128, 128, (64, 96), np.int8), rng.integers(0, 256, (64, 96), np.uint8)
    c = np.zeros((64, 64), np.int32)
    product(a, b, c, T="s8", U="u8", ACC="s32", ATOM=UNIT.name)
    print(f"{UNIT.name}: exact is {(c == a.astype(int) @ b.T.astype(int)).all()}")

    a, b = (rng.standard_normal((256, 256)).astype(tm.dtypes.bf16.numpy) for _ in "ab")
    c = np.zeros((256, 256), np.float32)
    product(a, b, c, T="bf16", U="bf16", ACC="f32", ATOM=ARRAY.name, TILE=128, DEPTH=128, LEVEL="group-4")
    error = np.abs(c - a.astype(float) @ b.T.astype(float)).max()
    print(f"{ARRAY.name}: 16-bit sums lose {error:.3f}")
