"""Variables of a module in the machine's global memory, with their initial values (PTX ISA, "Initializers")."""

from __future__ import annotations

import numpy as np

from tilemma.errors import Span
from tilemma.machine.decode import symbol_address
from tilemma.machine.memory import FUNCTION_WINDOW, SHARED_WINDOW, Allocation, GlobalMemory
from tilemma.machine.problems import BadOperand
from tilemma.machine.program import Program
from tilemma.machine.syntax import Variable


def place_variables(program: Program, memory: GlobalMemory) -> None:
    """Place the variables that the program names, and those whose addresses occur in their initial values."""
    left = [name for name in program.global_symbols if name in program.global_addresses]
    placed: set[str] = set()
    while left:
        name = left.pop()
        if name in placed:
            continue
        placed.add(name)
        variable = program.global_symbols[name]
        data = np.zeros(-(-max(variable.size, 1) // 32) * 32, np.uint8)
        data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
        for offset, target, addend, generic, width in variable.relocations:
            address = _address(program, variable, target, generic) + addend
            data[offset : offset + width] = np.frombuffer(address.to_bytes(8, "little")[:width], np.uint8)
            if target in program.global_symbols:
                left.append(target)
        address = program.global_addresses.setdefault(name, symbol_address(program, name))
        memory.add(Allocation(name, address, data, variable.size, writable=variable.space == "global"))


# The words of the address of a cooperative launch's memory.
WORKSPACE_HIGH, WORKSPACE_LOW = "%envreg1", "%envreg2"


def place_workspace(program: Program, memory: GlobalMemory) -> int:
    """The address of the memory in which the CTAs of a cooperative launch wait for each other (`grid.sync` of
    CUDA C++), 0 for a program that does not ask for it."""
    if not {WORKSPACE_HIGH, WORKSPACE_LOW} & set(program.special_rows.values()):
        return 0
    allocation = memory.allocate("the workspace of the grid", 32)
    allocation.data[:] = 0
    return allocation.base


def _address(program: Program, variable: Variable, target: str, generic: bool) -> int:
    """The address of a variable or function that an initial value names."""
    if target in program.global_symbols:
        return program.global_addresses.setdefault(target, symbol_address(program, target))
    if target in program.module.functions:
        return FUNCTION_WINDOW + 16 * list(program.module.functions).index(target)
    if target in program.shared_offsets:
        return program.shared_offsets[target] + (SHARED_WINDOW if generic else 0)
    span = Span(program.module.name, variable.line, 1, variable.line, 2)
    raise BadOperand(span, opcode=f".{variable.space}", what=f"the name `{target}` is not declared")
