"""Writing a lane's program: fresh registers, folding, common subexpressions, and moving what does not change
out of loops.

The program under construction is a stack of open regions, the innermost last.  A *pure* instruction (a
function of its operands, without traps) is looked up in the open regions first; a new one is written to the
region just outside the outermost loop in which none of its operands changes.  Registers that are assigned
more than once (`mutable`) keep what is computed from them where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from typing import Any, Literal, TypeVar

from tilemma.errors import Span
from tilemma.ir.lane import (
    Comment,
    Imm,
    Instr,
    LaneBody,
    LaneFor,
    LaneIf,
    LaneOp,
    LaneOperand,
    LaneUntil,
    LaneWhile,
    Mem,
    Reg,
    Special,
    Vec,
    registers,
)
from tilemma.lower.linear import Linear
from tilemma.records import record

_T = TypeVar("_T")
Value = Reg | Imm
Range = tuple[int, int]
_ANYTHING = (-(2**31), 2**31 - 1)

# Names that PTX keeps for its special registers (PTX ISA, Special Registers).
_SPECIAL = frozenset(
    [
        "tid",
        "ntid",
        "laneid",
        "warpid",
        "nwarpid",
        "ctaid",
        "nctaid",
        "smid",
        "nsmid",
        "gridid",
        "clusterid",
        "nclusterid",
        "cluster_ctaid",
        "clock",
        "clock_hi",
        "clock64",
        "globaltimer",
        "dynamic_smem_size",
        "total_smem_size",
        "aggr_smem_size",
    ]
)


@record(frozen=False, slots=False)
class Region:
    """An open list of operations; ``table`` maps pure computations made in it to their registers, ``known`` what
    `Emitter.remembered` was asked for to what came of it, both by number.  ``passing``: of registers that change,
    with how often they had been assigned by then."""

    kind: Literal["root", "loop", "branch", "cold"]
    ops: list[LaneOp] = field(default_factory=list)
    table: dict[int, Reg] = field(default_factory=dict)
    known: dict[int, Any] = field(default_factory=dict)
    passing: dict[int, tuple[tuple[int, ...], Reg]] = field(default_factory=dict)


_OPERANDS: dict[type[LaneOp], tuple[str, ...]] = {}


def _operand_names(kind: type[LaneOp]) -> tuple[str, ...]:
    """The fields with registers that the operation itself names."""
    inside = ("then", "otherwise", "setup", "body", "span")
    return tuple(name for name in kind.__dataclass_fields__ if name not in inside)


@cache
def _identifier(hint: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", hint) or "r"


class Emitter:
    def __init__(self) -> None:
        self.regions = [Region("root")]
        self.span: Span | None = None
        self._names: dict[str, int] = {}
        self._depth: dict[str, int] = {}
        self._mutable: set[str] = set()
        self._assigned: dict[str, int] = {}
        self._range: dict[str, Range] = {}
        self._numbers: dict[Hashable, int] = {}
        self._loops = 0
        self._cold = 0
        self._unshared = 0

    # ---- registers -------------------------------------------------------------------------------------

    def reg(self, hint: str, type: str, *, uniform: bool = False, mutable: bool = False) -> Reg:
        """A new register that belongs to the innermost open region."""
        made = Reg(self._name(hint), type, uniform)
        self._depth[made.name] = len(self.regions) - 1
        if mutable:
            self._mutable.add(made.name)
        return made

    def regs(self, hint: str, type: str, count: int, *, mutable: bool = False) -> tuple[Reg, ...]:
        return tuple(self.reg(f"{hint}{i}", type, mutable=mutable) for i in range(count))

    def _name(self, hint: str) -> str:
        base = _identifier(hint)
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        name = base if count == 0 and base not in _SPECIAL else f"{base}_{count}"
        if name != base:
            if name in self._names:
                return self._name(hint)
            self._names[name] = 1
        return name

    def bounded(self, reg: Reg, low: int, high: int) -> Reg:
        """``reg``, known to stay within [low, high]."""
        self._range[reg.name] = (low, high)
        return reg

    def range_of(self, x: Linear | Value) -> Range:
        """Bounds, inclusive; those of a 32-bit integer where nothing is known."""
        if isinstance(x, Imm):
            return int(x.value), int(x.value)
        if isinstance(x, Reg):
            return self._range.get(x.name, _ANYTHING)
        low = high = x.const
        for r, f in x.terms:
            a, b = self._range.get(r.name, _ANYTHING)
            low, high = (low + a * f, high + b * f) if f > 0 else (low + b * f, high + a * f)
        return low, high

    def depth(self, x: LaneOperand) -> int:
        """The region (from 0, outermost) in which ``x`` is defined; the innermost for what may change."""
        match x:
            case Reg():
                return len(self.regions) - 1 if x.name in self._mutable else self._depth.get(x.name, 0)
            case Mem():
                return self.depth(x.base)
            case Vec():
                return max((self.depth(r) for r in x.regs), default=0)
        return 0

    # ---- operations ------------------------------------------------------------------------------------

    def add(self, op: LaneOp) -> None:
        """``op`` at the end of the innermost region, with the current source position."""
        kind = type(op)
        names = _OPERANDS.get(kind) or _OPERANDS.setdefault(kind, _operand_names(kind))
        self._assign([getattr(op, name) for name in names])
        self.regions[-1].ops.append(replace(op, span=self.span) if op.span is None else op)

    def comment(self, text: str) -> None:
        self.regions[-1].ops.append(Comment(text, span=self.span))

    def do(
        self,
        mnemonic: str,
        dst: Sequence[Reg | Vec] = (),
        src: Sequence[LaneOperand] = (),
        *,
        guard: Reg | None = None,
        negate: bool = False,
    ) -> None:
        """An instruction with an effect."""
        self._assign(dst)
        self.regions[-1].ops.append(Instr(mnemonic, tuple(dst), tuple(src), guard, negate, span=self.span))

    def pure(
        self, mnemonic: str, type: str, *src: LaneOperand, hint: str = "t", uniform: bool | None = None
    ) -> Reg:
        """The register with the result of a pure instruction."""
        key = self._numbers.setdefault((mnemonic, src), len(self._numbers))
        for region in reversed(self.regions):
            known = region.table.get(key)
            if known is not None:
                return known
        mutable: list[str] = []
        same, deepest = True, 0
        for s in src:
            for r in (s,) if isinstance(s, Reg) else registers(s):
                name = r.name
                if name in self._mutable:
                    mutable.append(name)
                same = same and r.uniform
                depth = self._depth.get(name, 0)
                if depth > deepest:
                    deepest = depth
        versions = tuple(self._assigned.get(name, 0) for name in mutable)
        if mutable:
            self._unshared += 1
            known = self._passing(key, versions)
            if known is not None:
                return known
        at = len(self.regions) - 1 if mutable else self._home(deepest)
        made = Reg(self._name(hint), type, same if uniform is None else uniform)
        self._depth[made.name] = at
        self.regions[at].ops.append(Instr(mnemonic, (made,), src, span=self.span))
        if mutable:
            self.regions[at].passing[key] = versions, made
        else:
            self.regions[at].table[key] = made
        return made

    def _passing(self, key: int, versions: tuple[int, ...]) -> Reg | None:
        """What this turn of the innermost loop has computed from registers that were not assigned since."""
        for region in reversed(self.regions):
            found = region.passing.get(key)
            if found is not None and found[0] == versions:
                return found[1]
            if region.kind == "loop":
                break
        return None

    def _assign(self, operands: Iterable[Any]) -> None:
        """Notes that the registers among ``operands`` may hold other values from here on."""
        mutable, assigned = self._mutable, self._assigned
        for x in operands:
            if isinstance(x, Reg):
                if x.name in mutable:
                    assigned[x.name] = assigned.get(x.name, 0) + 1
            elif isinstance(x, tuple):
                self._assign(x)
            elif isinstance(x, Vec):
                self._assign(x.regs)

    def remembered(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What ``make`` gives, the result of pure instructions that ``key`` stands for.

        Made once while the region is open: making it again would find every instruction.  (Not so those that
        read mutable registers: then it is made again.)
        """
        number = self._numbers.setdefault(key, len(self._numbers))
        for region in reversed(self.regions):
            if number in region.known:
                known: _T = region.known[number]
                return known
        before = self._unshared
        made = make()
        if self._unshared == before:
            self.regions[-1].known[number] = made
        return made

    def _home(self, available: int) -> int:
        """The region for a computation whose operands are there from region ``available`` on."""
        last = len(self.regions) - 1
        home = next((i - 1 for i in range(available + 1, last + 1) if self.regions[i].kind == "loop"), last)
        if not self._cold:
            return home
        return max((i for i, r in enumerate(self.regions) if r.kind == "cold" and i > home), default=home)

    def at_root(self) -> _AtRoot:
        """Write to the outermost region: for values that every branch wants."""
        return _AtRoot(self)

    # ---- control ---------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, kind: Literal["loop", "branch", "cold"]) -> Iterator[Region]:
        region = Region(kind)
        self.regions.append(region)
        self._cold += kind == "cold"
        try:
            yield region
        finally:
            self._cold -= kind == "cold"
            self.regions.pop()

    @contextmanager
    def branch(self, cond: Reg, *, negate: bool = False, cold: bool = False) -> Iterator[None]:
        """What is written inside runs where ``cond`` holds.

        ``cold``: so seldom that what it computes should not wait in registers, or be computed, outside.
        """
        with self._open("cold" if cold else "branch") as region:
            yield
        if region.ops:
            then, otherwise = (tuple(region.ops), ()) if not negate else ((), tuple(region.ops))
            self.add(LaneIf(cond, then, otherwise, uniform=cond.uniform, span=self.span))

    @contextmanager
    def collect(self, kind: Literal["loop", "branch"] = "branch") -> Iterator[list[LaneOp]]:
        """What is written inside goes to the list instead; for building control operations by hand."""
        with self._open(kind) as region:
            yield region.ops

    def select_branch(self, cond: Reg, then: LaneBody, otherwise: LaneBody) -> None:
        if then or otherwise:
            self.add(LaneIf(cond, then, otherwise, uniform=cond.uniform, span=self.span))

    @contextmanager
    def loop(
        self, hint: str, start: Value, stop: Value, step: Value, *, unroll: int | None = 1, entered: bool = False
    ) -> Iterator[Reg]:
        """A counted loop; gives its variable, which does not change within a turn.

        ``entered``: there is a turn for certain.
        """
        uniform = all(not isinstance(x, Reg) or x.uniform for x in (start, stop, step))
        with self._open("loop") as region:
            var = self.reg(hint, "s32", uniform=uniform)
            low, high = self.range_of(start)[0], self.range_of(stop)[1] - 1
            if isinstance(start, Imm) and isinstance(step, Imm):
                high = low + (high - low) // max(1, int(step.value)) * int(step.value)
            self.bounded(var, low, max(low, high))
            yield var
        self.add(LaneFor(var, start, stop, step, tuple(region.ops), unroll, entered))

    def while_loop(self, setup: LaneBody, cond: Reg, body: LaneBody) -> None:
        self.add(LaneWhile(setup, cond, body))

    def until(self, body: LaneBody, cond: Reg) -> None:
        """``body`` until ``cond``, which it computes, holds."""
        self.add(LaneUntil(body, cond))

    # ---- integers --------------------------------------------------------------------------------------

    def value(self, x: Linear, hint: str = "i") -> Value:
        """``x`` in a register or an immediate, computed in 32 bits; what changes least is added first."""
        if not x.terms:
            return Imm(x.const)
        terms: Sequence[tuple[Reg, int]] = x.terms
        if len(terms) > 1:
            terms = sorted(terms, key=lambda t: (self.depth(t[0]), t[1] == 1, t[0].name))
        low = high = 0
        total: Reg | None = None
        for i, (reg, factor) in enumerate(terms):
            a, b = self._range.get(reg.name, _ANYTHING)
            low, high = (
                (low + a * factor, high + b * factor) if factor > 0 else (low + b * factor, high + a * factor)
            )
            last = i == len(terms) - 1 and x.const == 0
            name = hint if last else "i"
            if total is None:
                total = reg if factor == 1 else self._scaled(reg, factor, name)
            elif factor == 1:
                total = self.pure("add.s32", "s32", total, reg, hint=name)
            elif factor == -1:
                total = self.pure("sub.s32", "s32", total, reg, hint=name)
            else:
                total = self.pure("mad.lo.s32", "s32", reg, Imm(factor), total, hint=name)
            self._note(total, low, high)
        assert total is not None
        if x.const:
            total = self.pure("add.s32", "s32", total, Imm(x.const), hint=hint)
            self._note(total, low + x.const, high + x.const)
        return total

    def register(self, x: Linear, hint: str = "i") -> Reg:
        """`value`, in a register even where it is a constant."""
        v = self.value(x, hint)
        return v if isinstance(v, Reg) else self.pure("mov.b32", "s32", v, hint=hint)

    def outside(self, x: Linear) -> Linear:
        """``x`` with all that does not change in the innermost loop, its constant too, in one register."""
        inner = max((i for i, r in enumerate(self.regions) if r.kind == "loop"), default=0)
        fixed = tuple(t for t in x.terms if self.depth(t[0]) < inner)
        if not fixed or (len(fixed) == 1 and not x.const):
            return x
        moving = Linear(tuple(t for t in x.terms if t not in fixed))
        return moving + self.register(Linear(fixed, x.const))

    def _note(self, reg: Reg, low: int, high: int) -> None:
        if low >= -(2**31) and high < 2**31 and reg.name not in self._range and reg.name not in self._mutable:
            self._range[reg.name] = (low, high)

    def _scaled(self, reg: Reg, factor: int, hint: str) -> Reg:
        if factor > 0 and factor & (factor - 1) == 0:
            return self.pure("shl.b32", "s32", reg, Imm(factor.bit_length() - 1), hint=hint)
        if factor == -1:
            return self.pure("neg.s32", "s32", reg, hint=hint)
        return self.pure("mul.lo.s32", "s32", reg, Imm(factor), hint=hint)

    def divide(self, x: Linear, by: int, hint: str = "q") -> tuple[Linear, Linear]:
        """(x // by, x mod by), rounding down.

        A negative ``x`` is no place in memory; where ``by`` is no power of two its quotient is far outside.
        """
        assert by > 0
        if by == 1:
            return x, Linear()
        high, low = x.split(by)
        bottom, top = self.range_of(low)
        if bottom >= 0 and top < by:
            return high.divided(by), low
        reg, power = self.register(low), by & (by - 1) == 0
        if power:
            shift = "shr.u32" if bottom >= 0 else "shr.s32"
            quotient = self.pure(shift, "s32", reg, Imm(by.bit_length() - 1), hint=hint)
            rest = self.pure("and.b32", "s32", reg, Imm(by - 1), hint=f"{hint}_rest")
        else:
            quotient = self.pure("div.u32", "s32", reg, Imm(by), hint=hint)
            rest = self.pure("rem.u32", "s32", reg, Imm(by), hint=f"{hint}_rest")
        if bottom < 0:
            self.bounded(quotient, *((bottom // by, top // by) if power else (0, (2**32 - 1) // by)))
            self.bounded(rest, 0, by - 1)
        else:
            self.bounded(quotient, 0, top // by)
            self.bounded(rest, 0, min(by - 1, top))
        return high.divided(by) + quotient, Linear.of(rest)

    # ---- predicates ------------------------------------------------------------------------------------

    def compare(
        self,
        op: str,
        a: Linear,
        b: Linear,
        *,
        unsigned: bool = False,
        also: Reg | bool = True,
        hint: str = "p",
    ) -> Reg | bool:
        """``a op b and also`` as a predicate, or the answer where it is known.  Unsigned: as 32-bit patterns."""
        if also is False:
            return False
        low, high = self.range_of(a - b)
        if not unsigned or (self.range_of(a)[0] >= 0 and self.range_of(b)[0] >= 0):
            known = {
                "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0), "gt": (low > 0, high <= 0),
                "ge": (low >= 0, high < 0), "eq": (low == high == 0, low > 0 or high < 0),
                "ne": (low > 0 or high < 0, low == high == 0),
            }[op]  # fmt: skip
            if known[0]:
                return also
            if known[1]:
                return False
        # Constants go to the right, where PTX takes an immediate.
        if b.known is not None and a.known is None:
            if not unsigned:
                a, b = a.variable, Linear(const=b.const - a.const)
        elif a.known is not None:
            op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(op, op)
            a, b = b, a
        kind = ("u32" if unsigned else "s32") if op not in ("eq", "ne") else "s32"
        left, right = self.register(a), self.value(b)
        if isinstance(also, Reg):
            return self.pure(f"setp.{op}.and.{kind}", "pred", left, right, also, hint=hint)
        return self.pure(f"setp.{op}.{kind}", "pred", left, right, hint=hint)

    def both(self, a: Reg | bool, b: Reg | bool, hint: str = "p") -> Reg | bool:
        if a is False or b is False:
            return False
        if a is True:
            return b
        if b is True or a == b:
            return a
        return self.pure("and.pred", "pred", a, b, hint=hint)

    def inverse(self, a: Reg | bool) -> Reg | bool:
        return (not a) if isinstance(a, bool) else self.pure("not.pred", "pred", a, hint="not")

    def pick(self, cond: Reg | bool, a: Value, b: Value, type: str = "s32", hint: str = "sel") -> Value:
        if isinstance(cond, bool):
            return a if cond else b
        if a == b:
            return a
        width = "b64" if type in ("s64", "u64", "b64") else "b32"
        if type in ("f32", "f64", "b16"):
            width = type
        return self.pure(f"selp.{width}", type, a, b, cond, hint=hint)

    # ---- the machine -----------------------------------------------------------------------------------

    def special(self, name: str, hint: str, limit: int, *, uniform: bool = False) -> Reg:
        """Special register ``name`` (such as tid.x), less than ``limit``, read once."""
        with self.at_root():
            reg = self.pure("mov.u32", "s32", Special(f"%{name}"), hint=hint, uniform=uniform)
        return self.bounded(reg, 0, limit - 1)


class _AtRoot:
    """A context manager; asked for with every address, it is no generator."""

    __slots__ = ("_emitter", "_regions")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._regions = emitter.regions

    def __enter__(self) -> None:
        self._emitter.regions = self._regions[:1]

    def __exit__(self, *problem: object) -> None:
        self._emitter.regions = self._regions
