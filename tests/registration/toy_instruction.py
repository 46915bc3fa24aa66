"""An instruction from outside of the package: the fragments of mma.m16n8k32, for a type that no GPU multiplies."""

from tensor_layouts import Layout

import tilemma as tm

E3M4_16x8x32 = tm.instruction(
    "TOY_16x8x32_F32E3M4",
    shape=(16, 8, 32),
    types=("f32", "f8_e3m4", "f8_e3m4"),
    layouts={
        "A": Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256))),
        "B": Layout(((4, 8), (4, 2)), ((32, 1), (8, 128))),
        "C": Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
    },
    ptx="toy.mma.sync.aligned.m16n8k32.e3m4 {d}, {a}, {b}, {c};",
)
