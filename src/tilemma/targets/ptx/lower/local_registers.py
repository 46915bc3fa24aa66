"""Scalar replacement: a lane-local buffer of which every access has a constant address becomes registers.

ptxas keeps such a buffer in memory.  Each element is a register then, unless it is accessed in parts or under
several types, or might be read before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from tilemma.ir.lane import Imm, Instr, LaneBody, LaneKernel, LaneLocal, LaneOp, LaneOperand, Mem, Reg, Special
from tilemma.ir.lane_verifier import InvalidLaneIR, verify_lane

_ACCESS = re.compile(r"(?:ld|st)\.local\.b(32|64)")


def with_locals_in_registers(kernel: LaneKernel) -> LaneKernel:
    """``kernel`` with those local buffers in registers that can be there."""
    for local in kernel.locals:
        kernel = _without(kernel, local) or kernel
    return kernel


def _without(kernel: LaneKernel, local: LaneLocal) -> LaneKernel | None:
    """``kernel`` with ``local`` in registers; None where it has to be in memory."""
    held: dict[int, Reg] = {}
    for op in _walk(kernel.body):
        for operand in _operands(op):
            if not _names(operand, local.name):
                continue
            if not isinstance(op, Instr) or not isinstance(operand, Mem):
                return None
            match = _ACCESS.fullmatch(op.mnemonic)
            if match is None or operand.offset % (int(match[1]) // 8):
                return None
            value = op.src[1] if op.mnemonic.startswith("st") else op.dst[0]
            if not isinstance(value, (Reg, Imm)) or value.type == "pred":
                return None
            register = Reg(f"{local.name}__{operand.offset}", value.type)
            if held.setdefault(operand.offset, register) != register:
                return None
    if len({r.type for r in held.values()}) > 1:
        return None

    def moved(op: LaneOp) -> LaneOp:
        if not isinstance(op, Instr) or not any(_names(x, local.name) for x in op.src):
            return op
        memory = next(x for x in op.src if isinstance(x, Mem))
        register, mnemonic = held[memory.offset], "mov." + op.mnemonic.rpartition(".")[2]
        if op.mnemonic.startswith("st"):
            return replace(op, mnemonic=mnemonic, dst=(register,), src=op.src[1:])
        return replace(op, mnemonic=mnemonic, src=(register,))

    rest = tuple(x for x in kernel.locals if x is not local)
    made = replace(kernel, body=_rewritten(kernel.body, moved), locals=rest)
    try:
        verify_lane(made)
    except InvalidLaneIR:
        return None
    return made


def _names(x: LaneOperand, name: str) -> bool:
    base = x.base if isinstance(x, Mem) else x
    return isinstance(base, Special) and base.name == name


def _operands(op: LaneOp) -> Iterator[LaneOperand]:
    for f in fields(op):
        value = getattr(op, f.name)
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, (Mem, Special)):
                yield x


def _bodies(op: LaneOp) -> Iterator[tuple[str, LaneBody]]:
    for f in fields(op):
        value = getattr(op, f.name)
        if isinstance(value, tuple) and value and isinstance(value[0], LaneOp):
            yield f.name, value


def _walk(body: LaneBody) -> Iterator[LaneOp]:
    for op in body:
        yield op
        for _, inner in _bodies(op):
            yield from _walk(inner)


def _rewritten(body: LaneBody, f: Callable[[LaneOp], LaneOp]) -> LaneBody:
    out = []
    for op in body:
        changes: dict[str, Any] = {name: _rewritten(inner, f) for name, inner in _bodies(op)}
        out.append(replace(op, **changes) if changes else f(op))
    return tuple(out)
