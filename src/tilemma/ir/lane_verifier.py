"""Well-formedness of lane IR: registers written before they are read, operands of the instruction's types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NoReturn

from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.errors import CompileError
from tilemma.ir import lane
from tilemma.ir.printer import print_op


class InvalidLaneIR(CompileError):
    code = "invalid-lane-ir"
    found = "{what}, in `{operation}`"
    expected = "{rule}"
    fix = "this is a mistake in tilemma, not in your program: please report it with the program"


def verify_lane(kernel: lane.LaneKernel) -> None:
    """Check a lane kernel; InvalidLaneIR names the operation."""
    LaneVerifier(kernel).run()


# PTX ISA, Fundamental Types: width in bits and kind of each register type.
_TYPE = re.compile(r"(pred|[bsuf]8|[bsuf]16|[bsuf]32|[bsuf]64|b128|f16x2|bf16x2|bf16|e4m3x2|e5m2x2|tf32)")
_WIDTH = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16, "e4m3x2": 16, "e5m2x2": 16, "tf32": 32, "b128": 128}
# Instructions whose operands all have the type of the last suffix.
_SAME = frozenset(
    (
        *("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg"),
        *("and", "or", "xor", "not", "cnot"),
        *("ex2", "lg2", "sin", "cos", "sqrt", "rsqrt", "rcp", "tanh", "copysign"),
    )
)
# Instructions whose register may be wider than the type moved (PTX ISA, Operand Size Exceeding Instruction-Type
# Size).
_RELAXED = frozenset(["ld", "st", "ldu", "cvt"])


@cache
def width(t: str) -> int:
    """Bits of a register or instruction type."""
    return _WIDTH.get(t) or int(re.sub(r"\D", "", t))


@cache
def fits(register: str, instruction: str) -> bool:
    """Whether a register is legal as an operand of another type (PTX ISA, Operand Type Checking)."""
    if register == instruction:
        return True
    if "pred" in (register, instruction) or width(register) != width(instruction):
        return False
    kinds = {register[0], instruction[0]}
    return "b" in kinds or kinds <= {"s", "u"} or register.endswith("x2") or instruction.endswith("x2")


@cache
def wider(register: str, instruction: str) -> bool:
    """Whether a register is a wider one of which the instruction takes or fills the low part.

    Only integers and untyped bits are; PTX ISA, Operand Size Exceeding Instruction-Type Size.
    """
    if "pred" in (register, instruction) or width(register) < width(instruction):
        return False
    return register[0] == "b" or (register[0] in "su" and instruction[0] in "bsu")


@cache
def _taken_apart(mnemonic: str) -> tuple[str, list[str], list[str]]:
    """An instruction's name, all parts of its mnemonic, and the types among them."""
    parts = mnemonic.split(".")
    return parts[0], parts, [p for p in parts[1:] if _TYPE.fullmatch(p)]


class LaneVerifier:
    def __init__(self, kernel: lane.LaneKernel) -> None:
        self.kernel = kernel
        self.types: dict[str, str] = {}
        self.symbols = {"shared", *(p.name for p in kernel.params), *(x.name for x in kernel.locals)}
        self.loops = 0

    def fail(self, op: lane.LaneOp, what: str, rule: str) -> NoReturn:
        raise InvalidLaneIR(op.span, what=what, operation=print_op(op).split("\n")[0], rule=rule)

    def run(self) -> None:
        self.body(self.kernel.body, set())

    def body(self, ops: lane.LaneBody, written: set[str]) -> set[str]:
        """Adds the registers that ``ops`` write to ``written``, and returns it."""
        for op in ops:
            self.operation(op, written)
        return written

    def operation(self, op: lane.LaneOp, written: set[str]) -> None:
        match op:
            case lane.Instr():
                self.instruction(op, written)
            case lane.AtomInstr():
                self.atom(op, written)
            case lane.CopyInstr():
                self.copy(op, written)
            case lane.LaneFor():
                self.reads(op, written, op.start, op.stop, op.step)
                self.typed(op, op.var)
                known = op.var.name in written
                written.add(op.var.name)
                self.loop(op.body, written)
                if not known:
                    written.discard(op.var.name)
            case lane.LaneIf():
                self.predicate(op, op.cond, written)
                then = self.body(op.then, set(written))
                written |= then & self.body(op.otherwise, set(written))
            case lane.LaneWhile():
                self.body(op.setup, written)
                self.predicate(op, op.cond, written)
                self.loop(op.body, written)
            case lane.LaneUntil():
                self.loop(op.body, written)
                self.predicate(op, op.cond, written)
            case lane.LaneBreak() | lane.LaneContinue():
                if not self.loops:
                    self.fail(op, "no loop around it", "to stand inside a loop")
            case lane.LaneGuarded():
                for r in op.registers:
                    self.typed(op, r)
                written.update(r.name for r in op.registers)
            case lane.LanePrint():
                self.reads(op, written, *op.args)

    def loop(self, body: lane.LaneBody, written: set[str]) -> None:
        """A loop without iterations writes no register; a test of its bounds may write them on the other path."""
        self.loops += 1
        self.body(body, written)
        self.loops -= 1

    # ---- registers ----------------------------------------------------------------------------------------

    def typed(self, op: lane.LaneOp, r: lane.Reg) -> None:
        """A register has one type."""
        known = self.types.setdefault(r.name, r.type)
        if known != r.type:
            self.fail(op, f"register %{r.name} is {known} elsewhere and {r.type} here", "one type for a register")

    def reads(self, op: lane.LaneOp, written: set[str], *operands: Any) -> None:
        for x in operands:
            if not isinstance(x, (lane.Reg, lane.Mem, lane.Vec, lane.Coordinates)):
                continue
            for r in lane.registers(x):
                if self.types.get(r.name) != r.type:
                    self.typed(op, r)
                if r.name not in written:
                    self.fail(op, f"register %{r.name} is read before it is written", "a write on every path")
            if isinstance(x, lane.Mem) and isinstance(x.base, lane.Special):
                self.symbol(op, x.base)

    def symbol(self, op: lane.LaneOp, s: lane.Special) -> None:
        if not s.name.startswith("%") and s.name not in self.symbols:
            self.fail(op, f"the symbol `{s.name}` is unknown", f"one of {', '.join(sorted(self.symbols))}")

    def predicate(self, op: lane.LaneOp, r: lane.Reg, written: set[str]) -> None:
        self.reads(op, written, r)
        if r.type != "pred":
            self.fail(op, f"%{r.name} is {r.type}", "a predicate")

    # ---- instructions -------------------------------------------------------------------------------------

    def instruction(self, op: lane.Instr, written: set[str]) -> None:
        self.reads(op, written, *op.src)
        if op.guard is not None:
            self.predicate(op, op.guard, written)
        for d in op.dst:
            for r in lane.registers(d):
                self.typed(op, r)
        self.suffixes(op)
        written.update(r.name for d in op.dst for r in lane.registers(d))

    def suffixes(self, op: lane.Instr) -> None:
        """Checks operand types against the types in the mnemonic, for instructions with a known rule."""
        base, parts, types = _taken_apart(op.mnemonic)
        if not types:
            return
        rule = RULES.get(base) or (same_type if base in _SAME else None)
        if rule is None:
            return
        for x, wanted in rule(op, parts, types):
            for r in lane.registers(x) if not isinstance(x, lane.Mem) else ():
                if not fits(r.type, wanted) and not (base in _RELAXED and wider(r.type, wanted)):
                    self.fail(
                        op, f"%{r.name} is {r.type} where `{op.mnemonic}` takes {wanted}", f"a {wanted} register"
                    )

    def atom(self, op: lane.AtomInstr, written: set[str]) -> None:
        record = catalogue.get(op.atom)
        if not isinstance(record, MmaAtom):
            self.fail(op, f"`{op.atom}` is no multiplying instruction", "a name of the catalogue")
        for operand, given in ((record.d, op.d), (record.a, op.a), (record.b, op.b), (record.e, op.e)):
            if operand is not None:
                self.fragment(op, operand, given)
        if len(op.scales) != (2 if record.sfa is not None else 0):
            self.fail(
                op, f"{len(op.scales)} registers of scales", "one for A and one for B where the record has them"
            )
        for operand, reg in zip((record.sfa, record.sfb), op.scales, strict=False):
            self.fragment(op, operand, (reg,))
        self.reads(op, written, *op.a, *op.b, *op.e, *op.scales, *(x for _, x in op.immediates))
        if not self.first(op):
            self.reads(op, written, *op.c, *(op.d if record.in_place else ()))
        for r in op.d:
            self.typed(op, r)
        written.update(r.name for r in op.d)

    @staticmethod
    def first(op: lane.AtomInstr) -> bool:
        """Whether the accumulator may not be read: scale_d is a predicate, or 0."""
        return any(name == "scale_d" and (isinstance(x, lane.Reg) or x == 0) for name, x in op.immediates)

    def fragment(self, op: lane.LaneOp, operand: Any, given: tuple[lane.Reg, ...]) -> None:
        if len(given) != operand.registers:
            self.fail(
                op,
                f"operand {operand.name} has {len(given)} registers",
                f"{operand.registers} of {operand.register}",
            )
        for r in given:
            self.typed(op, r)
            if not fits(r.type, operand.register):
                self.fail(op, f"%{r.name} is {r.type}", f"{operand.register} for operand {operand.name}")

    def copy(self, op: lane.CopyInstr, written: set[str]) -> None:
        record = catalogue.get(op.atom)
        if not isinstance(record, CopyAtom):
            self.fail(op, f"`{op.atom}` is no copying instruction", "a name of the catalogue")
        if record.fragment is not None:
            self.fragment(op, record.fragment, op.registers)
        self.reads(op, written, op.address, op.source, op.source_size)
        if op.guard is not None:
            self.predicate(op, op.guard, written)
        if record.ptx.startswith("ldmatrix"):
            written.update(r.name for r in op.registers)
        else:
            self.reads(op, written, *op.registers)


# ---- the operand types that the suffixes of an instruction determine -----------------------------------------

Wants = Iterator[tuple[Any, str]]


def _operands(op: lane.Instr) -> tuple[Any, ...]:
    return tuple(x for x in (*op.dst, *op.src) if not isinstance(x, (lane.Imm, lane.Special)))


def same_type(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``add.s32 d, a, b``: all of one type, except the results of a widening multiply."""
    t = types[-1]
    if "wide" in parts:
        wide = t[0] + str(2 * width(t))
        yield from ((d, wide) for d in op.dst)
        yield from ((x, wide if i == 2 else t) for i, x in enumerate(op.src))
        return
    if len(types) > 1:  # mixed precision: fma.rn.f32.f16
        return
    yield from ((x, t) for x in _operands(op))


def compare(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``setp.lt.s32 p, a, b`` and ``setp.lt.and.s32 p, a, b, q``."""
    yield from ((x, "pred") for x in (*op.dst, *op.src[2:]))
    yield from ((x, types[-1]) for x in op.src[:2])


def select(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``selp.b32 d, a, b, p``."""
    yield from ((x, types[-1]) for x in (*op.dst, *op.src[:2]))
    yield from ((x, "pred") for x in op.src[2:])


def shift(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``shl.b64 d, a, n`` with n of 32 bits."""
    yield from ((x, types[-1]) for x in (*op.dst, *op.src[:1]))
    yield from ((x, "b32") for x in op.src[1:])


def convert(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``cvt.rn.f16.f32 d, a``."""
    if len(types) < 2:
        return
    yield from ((d, types[-2]) for d in op.dst)
    yield from ((x, types[-1]) for x in op.src)


def memory(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``ld.global.v4.b32 {..}, [a]``, ``st.shared.b16 [a], d``."""
    yield from ((x, types[-1]) for x in _operands(op))


def move(op: lane.Instr, parts: list[str], types: list[str]) -> Wants:
    """``mov.b32 d, a``; a vector on one side packs or unpacks."""
    vectors = [x for x in (*op.dst, *op.src) if isinstance(x, lane.Vec)]
    if vectors:
        part = f"b{width(types[-1]) // max(1, len(vectors[0].regs))}"
        yield from ((x, part if isinstance(x, lane.Vec) else types[-1]) for x in _operands(op))
    else:
        yield from ((x, types[-1]) for x in _operands(op))


RULES: dict[str, Callable[[lane.Instr, list[str], list[str]], Wants]] = {
    "setp": compare,
    "selp": select,
    "shl": shift,
    "shr": shift,
    "cvt": convert,
    "ld": memory,
    "st": memory,
    "mov": move,
}
