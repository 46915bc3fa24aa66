"""The registers of single lanes: loads and stores of fragments become element statements, and every warp-wide
operation is checked to be executed by whole warps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import Operand
from tilemma.dtypes import u32
from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.effects import old_values, variables_set
from tilemma.ir.expr import (
    Binary,
    Cast,
    Element,
    Expr,
    FragmentElement,
    Index,
    Unary,
    Var,
    add,
    binary,
    children,
    const,
    floordiv,
    mod,
    mul,
    value_of,
)
from tilemma.ir.types import THREAD, WARP, Space, View
from tilemma.ir.walk import expressions, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.scope import count
from tilemma.records import record

_WARP_WIDE = (t.LaneMma, t.Exchange)
_LANE_WORK = (t.LaneLoad, t.LaneStore, *_WARP_WIDE)


class LaneScope(CompileError):
    code = "lane-scope"
    found = "`{what}` at {where}"
    expected = (
        "a `: thread` level of a multiple of 32 threads: the instruction has registers of all lanes of a warp"
    )
    fix = "put it in `parallel t by 32 : thread`"
    python_fix = 'put it in `for t in parallel(32, level="thread")`'


class LaneDivergence(CompileError):
    code = "lane-divergence"
    found = "`{what}` under a condition that depends on the lane"
    expected = "all lanes of a warp together: {rule}"
    fix = "move it out of the condition, and choose between results afterwards"


@record(slots=False)
class ExpandLaneWork:
    """Writes `LaneLoad` and `LaneStore` as element statements, and checks `LaneMma` and `Exchange`."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises LaneScope or LaneDivergence."""
        if not any(isinstance(op, _LANE_WORK) for op in walk(kernel.body)):
            return kernel
        return replace(kernel, body=_expanded(kernel.body, None))


def _expanded(body: t.Body, level: t.Parallel | None) -> t.Body:
    out: list[t.Op] = []
    for op in body:
        if isinstance(op, t.Parallel):
            if op.level == THREAD:
                _check_converged(op)
            out.append(replace(op, body=_expanded(op.body, op)))
        elif isinstance(op, _LANE_WORK):
            lane = _lane(op, level)
            out += _statements(op, lane)
        else:
            out.append(with_bodies(op, lambda inner: _expanded(inner, level)))
    return tuple(out)


def _lane(op: t.Op, level: t.Parallel | None) -> Expr:
    """The lane of the thread in its warp; LaneScope outside a level of whole warps."""
    if level is None or level.level != THREAD:
        where = "no level" if level is None or level.level is None else f"level `{level.level}`"
        raise LaneScope(op.span, what=spelled(op), where=where)
    threads = count(level)
    if threads is None or threads % WARP:
        raise LaneScope(op.span, what=spelled(op), where=f"a level of {threads} threads")
    thread: Expr = const(0)
    for i in level.indices:
        thread = add(mul(thread, i.extent), i)
    return thread if threads == WARP else mod(thread, WARP)


def _statements(op: t.Op, lane: Expr) -> Iterator[t.Op]:
    match op:
        case t.LaneLoad(operand="E", dst=dst, src=src):
            yield from _metadata(op, dst, src, lane)
        case t.LaneLoad(operand="SFA" | "SFB" as letter, dst=dst, src=src):
            operand = _operand(op.atom, letter)
            word: Expr = const(0, u32)
            for v in range(operand.values):
                code = Cast(Element(src.element(position(operand, lane, v))), u32)
                word = binary("or", word, binary("shl", code, const(operand.place(v)[1], u32)))
            yield t.SetElement(dst.element((const(0),)), word, span=op.span)
        case t.LaneLoad(operand=letter, dst=dst, src=src):
            operand, turned = _operand(op.atom, letter), letter == "B"
            for v in range(operand.values):
                value: Expr = Element(_at(src, operand, lane, v, turned))
                value = value if src.dtype == dst.dtype else Cast(value, dst.dtype)
                yield t.SetElement(dst.element((const(v),)), value, span=op.span)
        case t.LaneStore(src=src, dst=dst):
            operand = _operand(op.atom, "D")
            for v in range(operand.values):
                value = Element(src.element((const(v),)))
                value = value if src.dtype == dst.dtype else Cast(value, dst.dtype)
                yield t.SetElement(_at(dst, operand, lane, v, False), value, span=op.span)
        case _:
            yield op


def _metadata(op: t.LaneLoad, dst: View, src: View, lane: Expr) -> Iterator[t.Op]:
    """The lane's word of metadata: eight fields of 4 bits.

    A field of 0, which stands for a chunk of zeros, becomes one that the hardware takes (0b0100).
    """
    operand, per = _operand(op.atom, "E"), src.dtype.bits // 4
    assert operand.values == 8, operand
    word: Expr = const(0, u32)
    for v in range(operand.values):
        row, chunk = position(operand, lane, v)
        element: Expr = Cast(Element(src.element((row, floordiv(chunk, per)))), u32)
        shift = Cast(mul(mod(chunk, per), 4), u32)
        field = binary("and", binary("shr", element, shift), const(15, u32))
        word = binary("or", word, binary("shl", field, const(4 * v, u32)))
    target = dst.element((const(0),))
    yield t.SetElement(target, word, span=op.span)
    held: Expr = Element(target)
    some = binary("or", held, binary("shr", held, const(1, u32)))
    some = binary("or", some, binary("shr", some, const(2, u32)))
    none = binary("and", Unary("not", some), const(0x11111111, u32))
    yield t.SetElement(target, binary("or", held, binary("shl", none, const(2, u32))), span=op.span)


def _operand(atom: str, letter: str) -> Operand:
    found = catalogue[atom]
    assert isinstance(found, MmaAtom)
    return found.operands[letter]


def _at(view: View, operand: Operand, lane: Expr, value: int, turned: bool) -> View:
    """The element of ``view`` that is ``value`` of ``lane``."""
    row, col = position(operand, lane, value)
    return view.element((col, row) if turned else (row, col))


def position(operand: Operand, lane: Expr, value: int) -> tuple[Expr, Expr]:
    """(row, col) of ``value`` of ``lane``: sums of digits of the lane's number, as the layout has them."""
    return tuple(_coordinate(operand, lane, value, axis) for axis in (0, 1))  # type: ignore[return-value]


def _coordinate(operand: Operand, lane: Expr, value: int, axis: int) -> Expr:
    """The coordinate as a constant plus a multiple of each digit (a run of bits) of the lane's number."""
    places = [operand.coordinates(x, value)[axis] for x in range(operand.threads)]
    steps = [places[1 << bit] - places[0] for bit in range((operand.threads - 1).bit_length())]
    total: Expr = const(places[0])
    low = 0
    while low < len(steps):
        high = low + 1
        while high < len(steps) and steps[high] == steps[low] << (high - low):
            high += 1
        if steps[low]:
            digit = floordiv(lane, 1 << low) if low else lane
            digit = digit if high == len(steps) else mod(digit, 1 << (high - low))
            total = add(mul(digit, steps[low]), total)
        low = high
    assert all(p == places[0] + sum(s for b, s in enumerate(steps) if x >> b & 1) for x, p in enumerate(places)), (
        operand
    )
    return total


# ---- convergence -----------------------------------------------------------------------------------------


def _check_converged(level: t.Parallel) -> None:
    """LaneDivergence where lanes of one warp may not all reach a warp-wide operation."""
    if any(isinstance(op, _WARP_WIDE) for op in walk(level.body)):
        varying = _Varying(level)
        _visit(level.body, varying)


def _visit(body: t.Body, varying: _Varying) -> None:
    for op in body:
        if isinstance(op, (t.If, t.InThreads, t.For, t.While)) and varying.control(op):
            for x in walk((op,)):
                if isinstance(x, _WARP_WIDE):
                    raise LaneDivergence(x.span, what=spelled(x), rule=_RULES[type(x)])
        else:
            _visit(tuple(_inner(op)), varying)


def _inner(op: t.Op) -> Iterator[t.Op]:
    for name in type(op).body_fields:
        yield from getattr(op, name)


_RULES: dict[type[t.Op], str] = {
    t.LaneMma: "each holds a part of the operands (PTX ISA, mma)",
    t.Exchange: "each reads a register of another (PTX ISA, shfl.sync, vote.sync)",
}


class _Varying:
    """Which values may differ between the lanes of a warp."""

    def __init__(self, level: t.Parallel) -> None:
        self.level = level
        self.names = {i.name for i in level.indices}
        while True:
            before = len(self.names)
            self._collect(level.body, False)
            if len(self.names) == before:
                return

    def _collect(self, body: t.Body, divergent: bool) -> None:
        for op in body:
            for v in variables_set(op):
                if divergent or self._sets(op):
                    self.names.add(v.name)
            inside = divergent or (isinstance(op, (t.If, t.InThreads, t.For, t.While)) and self.control(op))
            if isinstance(op, t.For) and inside:
                self.names.add(op.index.name)
            self._collect(tuple(_inner(op)), inside)

    def _sets(self, op: t.Op) -> bool:
        match op:
            case t.Exchange(name="ballot"):
                return False
            case t.Exchange(name="shfl_idx", lane=lane):
                return lane is not None and self.of(lane)
        return bool(old_values(op)) or any(self.of(e) for e in expressions(op))

    def control(self, op: t.If | t.InThreads | t.For | t.While) -> bool:
        """Whether lanes of a warp may decide differently about the body of ``op``."""
        if isinstance(op, (t.If, t.InThreads)):
            return self.of(op.cond)
        bounds = (op.cond,) if isinstance(op, t.While) else (op.start, op.stop, op.step)
        return any(self.of(e) for e in bounds) or any(
            isinstance(x, (t.If, t.InThreads)) and self.of(x.cond) and _leaves(x) for x in walk(op.body)
        )

    def of(self, e: Expr) -> bool:
        match e:
            case Index() | Var():
                return e.name in self.names
            case FragmentElement():
                return True
            case Element(view=view) if view.base.space is Space.LOCAL:
                return True
            case Binary(op="floordiv" | "div", a=Index() as i, b=b) if self.level.indices == (i,):
                # The number of the warp.
                return (value_of(b) or 1) % WARP != 0
        return any(self.of(x) for x in children(e))


def _leaves(op: t.Op) -> bool:
    return any(isinstance(x, (t.Break, t.Continue)) for x in walk((op,)))


def spelled(op: t.Op) -> str:
    """The operation as the program names it."""
    match op:
        case t.LaneLoad(operand=letter):
            return f"load_matrix_{letter.lower()}"
        case t.LaneStore():
            return "store_matrix_d"
        case t.Exchange(name=name):
            return name
    return "mma"
