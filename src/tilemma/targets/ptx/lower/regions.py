"""Lane IR under construction: registers, common subexpression elimination (CSE), loop-invariant code motion.

The program under construction is a stack of open regions, the innermost last.  A *pure* instruction (a function of
its operands, without traps) is looked up in the CSE tables of the open regions first; a new one is hoisted out of
every loop that changes none of its operands.  An instruction that reads a mutable register (one that is assigned
more than once) is not hoisted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from typing import Any, Literal, TypeVar

from tilemma.errors import Span
from tilemma.ir import lane
from tilemma.records import record, replace
from tilemma.targets.ptx.lower.linear import Linear

_T = TypeVar("_T")
Value = lane.Reg | lane.Imm
Range = tuple[int, int]
ANYTHING = (-(2**31), 2**31 - 1)

# Names that PTX reserves for its special registers (PTX ISA, Special Registers).
_SPECIAL = frozenset(
    [
        *("tid", "ntid", "laneid", "warpid", "nwarpid", "ctaid", "nctaid", "smid", "nsmid", "gridid", "clusterid"),
        *("nclusterid", "cluster_ctaid", "clock", "clock_hi", "clock64", "globaltimer", "dynamic_smem_size"),
        *("total_smem_size", "aggr_smem_size"),
    ]
)


@record(frozen=False, slots=False)
class Region:
    """An open list of operations with its CSE tables, whose keys are value numbers.

    ``cse_registers``: pure instructions and their result registers.  ``cse_results``: the results of
    `Regions.cse`. ``cse_mutable``: instructions that read mutable registers, each with the number of assignments
    to these registers before it.
    """

    kind: Literal["root", "loop", "branch", "cold"]
    ops: list[lane.LaneOp] = field(default_factory=list)
    cse_registers: dict[int, lane.Reg] = field(default_factory=dict)
    cse_results: dict[int, Any] = field(default_factory=dict)
    cse_mutable: dict[int, tuple[tuple[int, ...], lane.Reg]] = field(default_factory=dict)


_OPERANDS: dict[type[lane.LaneOp], tuple[str, ...]] = {}


def _operand_names(kind: type[lane.LaneOp]) -> tuple[str, ...]:
    """The fields that hold the operation's own operands, without those of nested operations."""
    inside = ("then", "otherwise", "setup", "body", "span")
    return tuple(name for name in kind.__dataclass_fields__ if name not in inside)


@cache
def _identifier(hint: str) -> str:
    if hint.isidentifier() and hint.isascii():
        return hint
    return re.sub(r"[^A-Za-z0-9_]", "_", hint) or "r"


class Regions:
    """A stack of open regions, and the registers and instructions written to them."""

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
        self._mutable_reads = 0

    # ---- registers -------------------------------------------------------------------------------------

    def reg(self, hint: str, type: str, *, uniform: bool = False, mutable: bool = False) -> lane.Reg:
        """A new register, defined in the innermost open region."""
        made = lane.Reg(self._name(hint), type, uniform)
        self._depth[made.name] = len(self.regions) - 1
        if mutable:
            self._mutable.add(made.name)
        return made

    def regs(self, hint: str, type: str, count: int, *, mutable: bool = False) -> tuple[lane.Reg, ...]:
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

    def bounded(self, reg: lane.Reg, low: int, high: int) -> lane.Reg:
        """``reg``, whose value range is intersected with [low, high]."""
        least, most = self._range.get(reg.name, ANYTHING)
        low, high = max(low, least), min(high, most)
        if low <= high:  # else the code is never reached
            self._range[reg.name] = low, high
        return reg

    def range_of(self, x: Linear | Value) -> Range:
        """Inclusive bounds of the exact value, which a register holds modulo 2**32; unknown: those of s32."""
        if isinstance(x, lane.Reg):
            return self._range.get(x.name, ANYTHING)
        if not isinstance(x, Linear):
            return int(x.value), int(x.value)
        low = high = x.const
        for r, f in x.terms:
            a, b = self._range.get(r.name, ANYTHING)
            if f < 0:
                a, b = b, a
            low, high = low + a * f, high + b * f
        return low, high

    def depth(self, x: lane.LaneOperand) -> int:
        """The region (from 0, outermost) in which ``x`` is defined; the innermost for a mutable register."""
        match x:
            case lane.Reg():
                return len(self.regions) - 1 if x.name in self._mutable else self._depth.get(x.name, 0)
            case lane.Mem():
                return self.depth(x.base)
            case lane.Vec():
                return max((self.depth(r) for r in x.regs), default=0)
        return 0

    # ---- operations ------------------------------------------------------------------------------------

    def add(self, op: lane.LaneOp) -> None:
        """Append ``op`` to the innermost region, with the current source position."""
        kind = type(op)
        names = _OPERANDS.get(kind) or _OPERANDS.setdefault(kind, _operand_names(kind))
        self._assign([getattr(op, name) for name in names])
        self.regions[-1].ops.append(replace(op, span=self.span) if op.span is None else op)

    def comment(self, text: str) -> None:
        self.regions[-1].ops.append(lane.Comment(text, span=self.span))

    def do(
        self,
        mnemonic: str,
        dst: Sequence[lane.Reg | lane.Vec] = (),
        src: Sequence[lane.LaneOperand] = (),
        *,
        guard: lane.Reg | None = None,
    ) -> None:
        """An instruction with an effect."""
        self._assign(dst)
        self.regions[-1].ops.append(lane.Instr(mnemonic, tuple(dst), tuple(src), guard, span=self.span))

    def pure(
        self, mnemonic: str, type: str, *src: lane.LaneOperand, hint: str = "t", uniform: bool | None = None
    ) -> lane.Reg:
        """The register with the result of a pure instruction."""
        key = self._numbers.setdefault((mnemonic, src), len(self._numbers))
        for region in reversed(self.regions):
            known = region.cse_registers.get(key)
            if known is not None:
                return known
        mutable: list[str] = []
        same, deepest = True, 0
        for s in src:
            if isinstance(s, lane.Imm):
                continue
            for r in (s,) if isinstance(s, lane.Reg) else lane.registers(s):
                name = r.name
                if name in self._mutable:
                    mutable.append(name)
                same = same and r.uniform
                deepest = max(deepest, self._depth.get(name, 0))
        versions = tuple(self._assigned.get(name, 0) for name in mutable)
        if mutable:
            self._mutable_reads += 1
            known = self._find_mutable(key, versions)
            if known is not None:
                return known
        at = len(self.regions) - 1 if mutable else self._hoist_depth(deepest)
        made = lane.Reg(self._name(hint), type, same if uniform is None else uniform)
        self._depth[made.name] = at
        self.regions[at].ops.append(lane.Instr(mnemonic, (made,), src, span=self.span))
        if mutable:
            self.regions[at].cse_mutable[key] = versions, made
        else:
            self.regions[at].cse_registers[key] = made
        return made

    def _find_mutable(self, key: int, versions: tuple[int, ...]) -> lane.Reg | None:
        """The result of the same instruction in this iteration of the innermost loop, if none of its registers has
        been assigned since."""
        for region in reversed(self.regions):
            found = region.cse_mutable.get(key)
            if found is not None and found[0] == versions:
                return found[1]
            if region.kind == "loop":
                break
        return None

    def _assign(self, operands: Iterable[Any]) -> None:
        """Count an assignment to each mutable register among ``operands``."""
        mutable, assigned = self._mutable, self._assigned
        for x in operands:
            kind = type(x)
            if kind is lane.Reg:
                if x.name in mutable:
                    assigned[x.name] = assigned.get(x.name, 0) + 1
            elif kind is tuple:
                if x:
                    self._assign(x)
            elif kind is lane.Vec:
                self._assign(x.regs)

    def cse(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result of ``make``, a function that emits pure instructions and that ``key`` identifies.

        ``make`` is called once while the region is open: a second call would find every instruction in the CSE
        tables.  If ``make`` reads mutable registers, it is called each time.
        """
        number = self._numbers.setdefault(key, len(self._numbers))
        for region in reversed(self.regions):
            if number in region.cse_results:
                known: _T = region.cse_results[number]
                return known
        before = self._mutable_reads
        made = make()
        if self._mutable_reads == before:
            self.regions[-1].cse_results[number] = made
        return made

    def cse_control_flow(
        self, key: Hashable, sources: Sequence[Value], make: Callable[[], tuple[lane.Reg, ...]]
    ) -> tuple[lane.Reg, ...]:
        """`cse` for a ``make`` that computes its registers from ``sources`` with loops or branches.

        ``make`` assigns to mutable registers; after it has returned they are never assigned again.
        """
        fixed = not any(isinstance(x, lane.Reg) and x.name in self._mutable for x in sources)
        number = self._numbers.setdefault(key, len(self._numbers))
        for region in reversed(self.regions) if fixed else ():
            if number in region.cse_results:
                known: tuple[lane.Reg, ...] = region.cse_results[number]
                return known
        made = make()
        self._mutable.difference_update(r.name for r in made)
        if fixed:
            self.regions[-1].cse_results[number] = made
        return made

    def _hoist_depth(self, available: int) -> int:
        """The outermost region for an instruction whose operands are defined from region ``available`` on."""
        last = len(self.regions) - 1
        home = next((i - 1 for i in range(available + 1, last + 1) if self.regions[i].kind == "loop"), last)
        if not self._cold:
            return home
        return max((i for i, r in enumerate(self.regions) if r.kind == "cold" and i > home), default=home)

    def at_root(self) -> _AtRoot:
        """Write to the outermost region: for values that every branch uses."""
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
    def branch(self, cond: lane.Reg, *, negate: bool = False, cold: bool = False) -> Iterator[None]:
        """Operations written inside run where ``cond`` holds.

        ``cold``: the branch is rarely taken, and nothing is hoisted out of it, which would cost registers.
        """
        with self._open("cold" if cold else "branch") as region:
            yield
        if region.ops:
            then, otherwise = (tuple(region.ops), ()) if not negate else ((), tuple(region.ops))
            self.add(lane.LaneIf(cond, then, otherwise, uniform=cond.uniform, span=self.span))

    @contextmanager
    def collect(self, kind: Literal["loop", "branch"] = "branch") -> Iterator[list[lane.LaneOp]]:
        """Operations written inside go to the yielded list; for building control operations by hand."""
        with self._open(kind) as region:
            yield region.ops

    def select_branch(self, cond: lane.Reg, then: lane.LaneBody, otherwise: lane.LaneBody) -> None:
        if then or otherwise:
            self.add(lane.LaneIf(cond, then, otherwise, uniform=cond.uniform, span=self.span))

    @contextmanager
    def loop(
        self, hint: str, start: Value, stop: Value, step: Value, *, unroll: int | None = 1, entered: bool = False
    ) -> Iterator[lane.Reg]:
        """A counted loop; yields its variable, which is constant within an iteration.

        ``entered``: the trip count is at least 1.
        """
        uniform = all(not isinstance(x, lane.Reg) or x.uniform for x in (start, stop, step))
        with self._open("loop") as region:
            var = self.reg(hint, "s32", uniform=uniform)
            low, high = self.range_of(start)[0], self.range_of(stop)[1] - 1
            if isinstance(start, lane.Imm) and isinstance(step, lane.Imm):
                high = low + (high - low) // max(1, int(step.value)) * int(step.value)
            self.bounded(var, low, max(low, high))
            yield var
        past = self.range_of(stop)[1] - 1 + self.range_of(step)[1] >= 2**31
        test = "" if not past else "unsigned" if self.range_of(start)[0] >= 0 else "wraps"
        self.add(lane.LaneFor(var, start, stop, step, tuple(region.ops), unroll, entered, test))

    def while_loop(self, setup: lane.LaneBody, cond: lane.Reg, body: lane.LaneBody) -> None:
        self.add(lane.LaneWhile(setup, cond, body))

    def until(self, body: lane.LaneBody, cond: lane.Reg) -> None:
        """Repeat ``body`` until ``cond``, which ``body`` computes, holds."""
        self.add(lane.LaneUntil(body, cond))


class _AtRoot:
    """The context manager of `Regions.at_root`: a class, which is faster than a generator."""

    __slots__ = ("_regions", "_stack")

    def __init__(self, regions: Regions) -> None:
        self._stack = regions
        self._regions = regions.regions

    def __enter__(self) -> None:
        self._stack.regions = self._regions[:1]

    def __exit__(self, *problem: object) -> None:
        self._stack.regions = self._regions
