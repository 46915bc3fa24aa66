"""Checks that the elements that a kernel reads and writes have the type of the array that was passed.

A pointer parameter has no element type in PTX.  Where the registers of a load or store are used in arithmetic of
one floating-point type, and the array's elements are of another size, the call is wrong: NumPy's default, float64,
is easily passed where a kernel expects float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.arguments import refuse
from tilemma.machine.syntax import Instruction, Operand, Register, Vector

if TYPE_CHECKING:
    from tilemma.machine.program import Program

_FLOATS = {"f32": 4, "f64": 8}
_ARITHMETIC = {
    "add", "sub", "mul", "fma", "mad", "div", "neg", "abs", "min", "max", "sqrt", "rsqrt", "rcp", "ex2", "lg2",
    "setp", "sin", "cos", "tanh", "slct",
}  # fmt: skip


def float_registers(instructions: tuple[Instruction, ...]) -> dict[str, set[str]]:
    """For each register, the floating-point types of the arithmetic that reads or writes it."""
    found: dict[str, set[str]] = {}
    for ins in instructions:
        parts = ins.parts
        if parts[0] not in _ARITHMETIC or parts[-1] not in _FLOATS:
            continue
        for operand in ins.operands:
            if isinstance(operand, Register) and operand.type != "pred":
                found.setdefault(operand.name, set()).add(parts[-1])
    return found


def watch(program: Program, ins: Instruction, operand: Operand) -> Callable[[Any, int], None] | None:
    """A check of the array accessed by ``ins`` through registers ``operand``; None if its type is unknown."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    registers = [x for x in items if isinstance(x, Register)]
    kinds = set().union(*(program.float_registers.get(r.name, set()) for r in registers))
    declared = ins.parts[-1]
    if declared in _FLOATS:
        kinds = {declared}
    if len(kinds) != 1 or (declared not in _FLOATS and declared[0] != "b"):
        return None
    kind = kinds.pop()
    if declared not in _FLOATS and int(declared[1:]) != 8 * _FLOATS[kind]:
        return None
    seen: set[int] = set()

    def check(machine: Any, address: int) -> None:
        allocation = machine.memory.find(address)
        if allocation is None or allocation.base in seen:
            return
        seen.add(allocation.base)
        element = allocation.element
        if element is not None and element.kind == "f" and element.itemsize != _FLOATS[kind]:
            wanted = {"f32": np.float32, "f64": np.float64}[kind].__name__
            refuse(
                f"`{allocation.name}` holds {element}, and PTX line {ins.line} uses its elements as .{kind}",
                f"an array of {wanted}",
                f"convert it with `.astype(np.{wanted})`",
            )

    return check
