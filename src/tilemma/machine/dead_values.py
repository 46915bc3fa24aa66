"""Races that read a value which the reading lane does not use: `x += 1` by one thread, where all threads load `x`.

Compilers let every thread of a CTA load a scalar, compute with it, and guard only the store by one thread.  The
load of the other threads may see the old value or the new one; nothing depends on which.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.machine.program import ALU, Program, Step
from tilemma.machine.syntax import Address, Instruction, Operand, Register, Special, Vector

# What an address that is the same in all threads is computed with.
_SAME_IN_ALL = ("mov", "add", "cvta", "cvt")


def only_stored(program: Program, load: Instruction, store: Instruction) -> bool:
    """Whether the value of ``load`` flows through arithmetic into the data of ``store`` alone, which stores to one
    address for all threads, after the load and without a barrier or a loop in between.

    A lane that executes the store too would race with the other store to the same address, which is reported.
    """
    if load.parts[0] != "ld" or store.parts[0] != "st" or load.line > store.line:
        return False
    known = program.dead_loads.get((load.line, store.line))
    if known is None:
        known = program.dead_loads[load.line, store.line] = _only_stored(program, load, store)
    return known


def _only_stored(program: Program, load: Instruction, store: Instruction) -> bool:
    target = store.operands[0]
    if not isinstance(target, Address) or not _same_in_all(program, target.base, set()):
        return False
    steps = program.steps
    between = [s for s in steps if load.line <= s.instruction.line <= store.line]
    if any(s.instruction.parts[0] in ("bar", "barrier") for s in between) or _in_loop(steps, load, store):
        return False
    carried, found = set(_registers(load.operands[0])), True
    while found:
        found = False
        for s in steps:
            used = _used(s.instruction) & carried
            if not used:
                continue
            if s.instruction is store and not used & _of_place(store):
                continue
            if s.kind != ALU or (s.instruction.guard is not None and s.instruction.guard.register.name in carried):
                return False
            new = set(_registers(s.instruction.operands[0])) - carried
            carried, found = carried | new, found or bool(new)
    return True


def _in_loop(steps: list[Step], load: Instruction, store: Instruction) -> bool:
    """Whether a branch after ``store`` leads to or before ``load``."""
    back = (s for s in steps if s.instruction.line > store.line)
    lines = (steps[t].instruction.line for s in back for t in (s.target, *s.targets) if 0 <= t < len(steps))
    return any(line <= load.line for line in lines)


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Register(name=name):
            yield name
        case Vector(items=items):
            for x in items:
                yield from _registers(x)
        case Address(base=Register(name=name)):
            yield name
        case _:
            # Other operands are Pair, Not, Selected, Negative: their registers stand in fields of their own.
            for field in ("first", "second", "operand", "register"):
                inner = getattr(operand, field, None)
                if inner is not None:
                    yield from _registers(inner)


def _used(ins: Instruction) -> set[str]:
    """The registers that ``ins`` reads: all of a store, the sources of others; the guard too."""
    first = ins.operands if ins.parts[0] in ("st", "red") else ins.operands[1:]
    guard = {ins.guard.register.name} if ins.guard is not None else set()
    places = (x for x in ins.operands[:1] if isinstance(x, Address))
    return {name for x in (*first, *places) for name in _registers(x)} | guard


def _of_place(store: Instruction) -> set[str]:
    """The registers of a store's address and guard."""
    guard = {store.guard.register.name} if store.guard is not None else set()
    return {*_registers(store.operands[0])} | guard


def _same_in_all(program: Program, operand: Operand, seen: set[str]) -> bool:
    """Whether an address is computed from parameters and constants alone."""
    if isinstance(operand, Special):
        return False
    for name in _registers(operand):
        if name in seen:
            continue
        seen.add(name)
        for s in program.steps:
            ins = s.instruction
            if not ins.operands or name not in set(_registers(ins.operands[0])) or ins.parts[0] in ("st", "red"):
                continue
            parameter = ins.parts[:2] == ("ld", "param")
            if not parameter and ins.parts[0] not in _SAME_IN_ALL:
                return False
            if not parameter and not all(_same_in_all(program, x, seen) for x in ins.operands[1:]):
                return False
    return True
