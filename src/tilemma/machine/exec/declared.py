"""The execution of declared instructions (`tilemma.machine.declared`): registers to matrices, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine.declared import Declared, DeclaredOperand, Matrix
from tilemma.machine.decode import Decoder
from tilemma.machine.exec import aligned
from tilemma.machine.isa import fragments
from tilemma.machine.state import Frame


def decode(d: Decoder, found: Declared) -> None:
    """Decode the instruction of ``d`` as the declared one of its opcode."""
    d.used.update(d.mods)
    parts = {letter: _Registers(d, letter, o, write=letter == "D") for letter, o in found.operands.items()}
    target = parts["D"]
    if "C" not in parts:
        parts["C"] = _Registers(d, "C", found.operands["D"], write=False)
    a, b, c, ins = parts["A"], parts["B"], parts["C"], d.ins

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        target.store(f.w, found.function(a.load(f.w), b.load(f.w), c.load(f.w)))

    d.visible(run)


class _Registers:
    """The registers of one operand."""

    def __init__(self, d: Decoder, letter: str, operand: DeclaredOperand, *, write: bool) -> None:
        self.operand = operand
        t = dtype(operand.dtype)
        if len(operand.table) != 32:
            d.unsupported(f"operand {letter} is distributed over {len(operand.table)} threads, not over a warp")
        self.cls, kind = ("64", "f64") if t.bits == 64 else ("32", "b32")
        if operand.position >= len(d.operands):
            d.bad(f"{len(d.operands)} operands")
        items = d.items(d.operands[operand.position])
        self.rows = np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])
        if len(items) * (64 if t.bits == 64 else 32) != operand.table.shape[1] * t.bits:
            d.bad(f"{len(items)} registers for {operand.table.shape[1]} values of {t} a lane of {letter}")

    def load(self, w: Any) -> Matrix:
        """The matrix of values: floats in f64, integers in s64."""
        o = self.operand
        registers = np.ascontiguousarray(w.cta.registers[self.cls][w.index, self.rows].T)
        values = fragments.unpack(registers, o.dtype)
        flat = np.zeros(o.rows * o.cols, np.float64 if dtype(o.dtype).is_float else np.int64)
        flat[o.table] = values
        return flat.reshape((o.rows, o.cols), order="F")

    def store(self, w: Any, matrix: Matrix) -> None:
        """``matrix``, whose values are of the operand's type."""
        o = self.operand
        values = matrix.reshape(-1, order="F")[o.table]
        w.cta.registers[self.cls][w.index, self.rows] = fragments.pack(values, o.dtype).T
