"""Evaluates a lane's integer code in Python: the addresses that it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilemma import dtypes
from tilemma.ir.expr import const
from tilemma.ir.lane import Imm, Instr, LaneFor, LaneIf, LaneOp, Mem, Reg, Special
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import Alloc, Kernel, Parallel
from tilemma.ir.types import BLOCK, Buffer, Space
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.control import block_instance

U32 = (1 << 32) - 1


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _trunc(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


INTEGER: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "neg": lambda a: -a,
    "not": lambda a: ~a,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
    "div": _trunc,
    "rem": lambda a, b: a - b * _trunc(a, b),
    "selp": lambda a, b, c: a if c else b,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


class Lane:
    """Registers of one lane; ``memory`` answers loads of parameters, ``special`` special registers by name."""

    def __init__(self, special: dict[str, int], params: dict[str, int] | None = None) -> None:
        self.special, self.params = special, params or {}
        self.values: dict[str, int] = {}

    def get(self, x: object) -> int:
        match x:
            case Reg():
                return self.values[x.name]
            case Imm():
                return int(x.value)
            case Special():
                return self.special[x.name]
            case Mem():
                return self.get(x.base) + x.offset
        raise AssertionError(x)

    def run(self, ops: Iterable[LaneOp]) -> None:
        for op in ops:
            match op:
                case Instr():
                    self.execute(op)
                case LaneIf():
                    self.run(op.then if self.get(op.cond) else op.otherwise)
                case LaneFor():
                    for i in range(self.get(op.start), self.get(op.stop), self.get(op.step)):
                        self.values[op.var.name] = i
                        self.run(op.body)

    def execute(self, op: Instr) -> None:
        name, *rest = op.mnemonic.split(".")
        bits = 64 if rest and "64" in rest[-1] else 32
        unsigned = bool(rest) and rest[-1][0] == "u"
        (dst,) = op.dst
        assert isinstance(dst, Reg)
        if name == "ld" and rest[0] == "param":
            self.values[dst.name] = self.params[op.src[0].base.name]
            return
        if name == "shfl":
            self.values[dst.name] = self.get(op.src[0])
            return
        values = [self.get(x) for x in op.src]
        if rest[-1] == "pred":
            self.values[dst.name] = int(INTEGER[name](*values)) & 1 if name != "not" else int(not values[0])
            return
        if "wide" in rest:
            self.values[dst.name] = signed(INTEGER[name](signed(values[0]), signed(values[1]), *values[2:]), 64)
            return
        view = (lambda v: v & ((1 << bits) - 1)) if unsigned else (lambda v: signed(v, bits))
        if name == "shr" and rest[-1][0] == "b":
            view = lambda v: v & ((1 << bits) - 1)  # noqa: E731
        if "hi" in rest:
            self.values[dst.name] = signed(INTEGER[name](*(view(v) for v in values)) >> bits, bits)
            return
        if name == "setp":
            a, b = (view(v) for v in values)
            self.values[dst.name] = int(COMPARE[rest[0]](a, b))
            return
        if name == "selp":
            self.values[dst.name] = values[0] if values[2] else values[1]
            return
        self.values[dst.name] = signed(int(INTEGER[name](*(view(v) for v in values))), bits)


def shared_buffer(plan: SharedLayoutPlan, rows: int, cols: int, t: dtypes.DType = dtypes.f16, offset: int = 0):
    """(lowering of a kernel with one such buffer, the buffer)."""
    buffer = Buffer("tile", t, (const(rows), const(cols)), Space.SHARED)
    body = (Alloc(buffer, layout=plan, offset=offset),)
    kernel = Kernel("k", (), (Parallel((), body, BLOCK),))
    lo = Lowering(kernel, "sm_90a", 128)
    lo.instances.append(block_instance(128))
    return lo, buffer


def runtime(lo: Lowering, name: str, low: int, high: int) -> Reg:
    """A register whose value is known only when the lane runs, within [low, high]."""
    return lo.e.bounded(lo.e.pure("mov.u32", "s32", Special(f"%{name}"), hint=name), low, high)
