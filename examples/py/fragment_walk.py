"""Walk over the fragments of an instruction, lane by lane.

Every matrix holds the numbers 0, 1, 2, ... row after row; what a lane prints is what its registers hold::

    $ python examples/py/fragment_walk.py
    thread 0 : a: 0, 1, 128, 129, 8, 9, 136, 137, b: 0, 1, 8, 9, d: 0, 1, 64, 65
    thread 1 : a: 2, 3, 130, 131, 10, 11, 138, 139, b: 2, 3, 10, 11, d: 2, 3, 66, 67

A is M x K, B is N x K (column n of the product's right factor is row n here), D is M x N.  No GPU is needed:
the record of the instruction knows it all.
"""

from __future__ import annotations

import sys

import numpy as np

import tilemma as tm


def walk(name: str) -> list[str]:
    """One line a lane."""
    atom = tm.atoms[name]
    fragments = {}
    for letter in "ABD":
        operand = atom.operands[letter]
        if operand.in_registers:
            matrix = np.arange(operand.shape[0] * operand.shape[1]).reshape(operand.shape)
            fragments[letter.lower()] = operand.gather(matrix)
    return [
        f"thread {lane} : " + ", ".join(f"{x}: {', '.join(map(str, f[lane]))}" for x, f in fragments.items())
        for lane in range(atom.threads)
    ]


if __name__ == "__main__":
    print(*walk(sys.argv[1] if len(sys.argv) > 1 else "SM80_16x8x16_F32BF16BF16F32_TN"), sep="\n")
