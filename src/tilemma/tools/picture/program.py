"""The page's part about the program: the warps with their roles, and the actions of each role, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilemma.ir import tile as t
from tilemma.ir.expr import Expr, const, substitute, value_of
from tilemma.ir.tiles import describe
from tilemma.ir.types import EventRef, View
from tilemma.records import record

# Names that the compiler makes: the slot or the register tile that an iteration keeps for the next, and a second
# index of one name.
_SLOT = re.compile(r"\[[A-Za-z_]\w*+\.held[0-9]++\]")
_TILE = re.compile(r"\b([A-Za-z_]\w*+)\.held\b")
_SECOND = re.compile(r"\b([A-Za-z_]\w*+)\.[0-9]++\b")


def in_words(text: str) -> str:
    """``text`` with the program's names where the compiler has made others from them."""
    text = _TILE.sub(r"\1 of the tile before", _SLOT.sub("[the slot before]", text))
    return _SECOND.sub(r"\1", text)


@record
class Act:
    """One thing that a role does: ``kind`` copy, multiply, store, wait, signal, compute; at a source line."""

    kind: str
    text: str
    line: int


@record
class Role:
    """Warps of a block that do the same; ``registers`` a thread, if the role has a number of its own."""

    name: str
    warps: tuple[int, ...]
    line: int
    registers: int | None
    solo: bool
    acts: tuple[Act, ...]


@record
class Level:
    """One `parallel` of the launch: its level, its indices with their extents, its source line."""

    level: str
    indices: tuple[str, ...]
    line: int


def line_of(op: t.Op) -> int:
    return op.span.line if op.span is not None else 0


def levels(block: t.Op) -> list[Level]:
    """The levels of a launch, outermost first, each once."""
    found = []
    for op in _deep((block,)):
        if isinstance(op, t.Parallel):
            indices = tuple(in_words(f"{i.name}: {describe(i.extent)}") for i in op.indices)
            found.append(Level(str(op.level), indices, line_of(op)))
    return list(dict.fromkeys(found))


def _deep(body: t.Body) -> Iterator[t.Op]:
    from tilemma.ir.walk import walk

    yield from walk(body)


def roles(block: t.Op, threads: int) -> list[Role]:
    """The roles of a launch's warps; one role of all warps where the program has none."""
    warps = tuple(range(-(-threads // 32)))
    found: list[Role] = []
    for op in _deep((block,)):
        if isinstance(op, t.Parallel) and op.level is not None and op.level.kind == "group":
            for inner in op.body:
                if isinstance(inner, t.InThreads) and inner.asynchronous:
                    own = tuple(w for w in warps if _admitted(op, inner.cond, w))
                    name = in_words(describe(inner.cond))
                    acts = tuple(acts_of(inner.body))
                    found.append(Role(name, own, line_of(inner), inner.registers, inner.solo, acts))
    if found:
        rest = tuple(w for w in warps if not any(w in r.warps for r in found))
        return [*found, *([Role("no role", rest, 0, None, False, ())] if rest else [])]
    return [Role("all warps", warps, line_of(block), None, False, tuple(acts_of((block,))))]


def _admitted(op: t.Parallel, cond: Expr, warp: int) -> bool:
    """Whether the instance of ``op`` that the warp belongs to meets the condition."""
    assert op.level is not None
    instance = warp // op.level.warps
    table: dict[str, Expr] = {}
    for index in reversed(op.indices):
        extent = value_of(index.extent)
        if extent is None:
            return False
        table[index.name] = const(instance % extent)
        instance //= extent
    return instance == 0 and bool(value_of(substitute(cond, table)))


def acts_of(body: t.Body) -> Iterator[Act]:
    """Each act of the operations, those of one line and text once."""
    seen = set()
    for op in _deep(body):
        act = _act(op)
        if act is not None and act not in seen:
            seen.add(act)
            yield act


def _act(op: t.Op) -> Act | None:
    found = _done(op)
    return None if found is None else Act(found[0], in_words(found[1]), line_of(op))


def _done(op: t.Op) -> tuple[str, str] | None:
    """The kind of an act and its text."""
    if isinstance(op, t.Copy):
        engine = op.plan.engine if op.plan is not None else op.engine
        return "copy", f"{engine}: {view(op.src)} => {view(op.dst)}"
    if isinstance(op, t.Mma):
        return "multiply", f"{op.acc.name} += A x B, {op.atom}"
    if isinstance(op, t.Store):
        method = op.plan.method if op.plan is not None else ""
        return "store", f"{op.fragment.name} => {view(op.dst)} ({method})"
    if isinstance(op, t.WaitEvent):
        return "wait", f"wait {event(op.event)}"
    if isinstance(op, t.TriggerEvent):
        return "signal", f"trigger {event(op.event)}"
    return None


def event(ref: EventRef) -> str:
    """An event with its slot, as the program writes it."""
    if ref.order is not None:
        return f"{ref.event.name}.at({describe(ref.order)})"
    return ref.event.name if ref.slot is None else f"{ref.event.name}[{describe(ref.slot)}]"


def view(v: View) -> str:
    """A view in short: the buffer, its slot, and the extents of a part."""
    slot = "" if v.slot is None else f"[{describe(v.slot)}]"
    return f"{v.base.name}{slot}" + ("" if v.is_whole else f" {' x '.join(describe(e) for e in v.shape)}")


def declared(block: t.Op) -> dict[str, int]:
    """The source lines of buffers, events and fragments, by name."""
    found = {}
    for op in _deep((block,)):
        if isinstance(op, t.Alloc):
            found[op.buffer.name] = line_of(op)
        elif isinstance(op, t.DeclareEvent):
            found[op.event.name] = line_of(op)
        elif isinstance(op, t.DeclareFragment):
            found[op.name] = line_of(op)
    return found
