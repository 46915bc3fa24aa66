"""Waits that the assembler adds: registers of a wgmma touched before the wait that follows in the same block.

Triton and LLVM place copies, sums and unpacking of results between ``wgmma.mma_async`` and
``wgmma.wait_group``, because the wait does not name the registers.  The ISA's text leaves their values undefined;
ptxas sees the use, makes the wgmma complete before it (its notes C7510 and the like), and the program is right.
The machine does the same, and reports it as an error under ``strict`` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.machine.syntax import Entry, Immediate, Instruction, Operand, Register, Vector

# The instruction in front of the first use; no PTX text can hold it.
OPCODE = "wgmma.serialised"
_ISSUE, _WAIT = "wgmma.mma_async", "wgmma.wait_group"
_ENDS = ("bra", "brx", "ret", "exit", "trap", "call")


def serialised(entry: Entry) -> Entry:
    """``entry`` with the waits that ptxas adds."""
    if not any(ins.opcode.startswith(_ISSUE) for ins in entry.instructions):
        return entry
    before = set(_first_uses(entry.instructions, set(entry.labels.values())))
    if not before:
        return entry
    out: list[Instruction] = []
    moved: list[int] = []
    for i, ins in enumerate(entry.instructions):
        moved.append(len(out))
        if i in before:
            out.append(replace(ins, opcode=OPCODE, operands=(), guard=None))
        out.append(ins)
    moved.append(len(out))
    labels = {name: moved[at] for name, at in entry.labels.items()}
    return replace(entry, body=replace(entry.body, instructions=tuple(out), labels=labels))


def _first_uses(instructions: tuple[Instruction, ...], leaders: set[int]) -> Iterator[int]:
    """The first instructions that touch results of a wgmma issued before in their block, where the next
    instruction of wgmma but a commit is a wait for all groups, in that block."""
    issued: set[str] = set()
    found: int | None = None
    for i, ins in enumerate(instructions):
        if i in leaders or ins.parts[0] in _ENDS:
            issued, found = set(), None
        if ins.opcode.startswith(_ISSUE):
            # Further products between use and wait: a wait is missing.
            issued, found = issued | set(_registers(ins.operands[:1])), None
        elif ins.opcode.startswith(_WAIT):
            pending = ins.operands[0] if ins.operands else None
            if found is not None and isinstance(pending, Immediate) and pending.value == 0:
                yield found
            issued, found = set(), None
        elif found is None and issued and not issued.isdisjoint(_registers(ins.operands)):
            found = i


def _registers(operands: tuple[Operand, ...]) -> Iterator[str]:
    for operand in operands:
        for item in operand.items if isinstance(operand, Vector) else (operand,):
            if isinstance(item, Register):
                yield item.name
