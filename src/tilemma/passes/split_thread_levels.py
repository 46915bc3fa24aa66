"""Splits thread levels that hold roles: operations of a whole group leave the `: thread` level.

``parallel wg by 3 : group-4, t by 128 : thread`` is the usual way to write warp specialization in Croqtile.  Its
body mixes statements of one lane (element stores, scalars that depend on `t`) with roles, waits, copies and
multiplies.  This pass moves the latter to the level around, where later passes and the reference find them:

* A role whose condition holds for all lanes or for none is a role of the group.
* A role that picks one lane becomes a role of the group with that lane's number in place of the index.  At the
  level of the group each statement runs once, so one wait, one trigger and one copy are executed, as by the lane.
* A role that picks several lanes is executed by the warps that hold them.  Statements of single lanes in it keep
  the lanes' condition.

The remaining operations are split into several `: thread` levels with the same lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.effects import Execution, assigned, declared, name_of
from tilemma.ir.expr import Binary, Const, Expr, Index, add, binary, const, floordiv, mod, mul, substitute
from tilemma.ir.types import GROUP, THREAD, WARP, WARPGROUP, Space
from tilemma.ir.walk import bodies, expressions, map_expressions, touched, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.index_values import Ints, evaluate
from tilemma.passes.scope import Dependence, control, count, kind, names
from tilemma.records import record

# Operations that single lanes execute.
_OF_LANES = (Execution.LANE, Execution.LANES, Execution.CONTROL)


class RoleOfLanes(CompileError):
    code = "role-of-lanes"
    found = "`{what}` is in a role of {picked} of the {lanes} lanes of `{level}`"
    expected = "all lanes of a warp or warpgroup: they execute a multiply and its loads and stores together"
    fix = "leave the lane out of the role's condition, or move the statement out of the role"


@record(slots=False)
class SplitThreadLevels:
    """Moves roles, and the group operations beside them, out of `: thread` levels.

    A level without roles, and one whose statements cannot be classified at compile time, is unchanged.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises RoleOfLanes."""
        if not any(
            isinstance(op, t.Parallel) and op.level == THREAD and _has_roles(op) for op in walk(kernel.body)
        ):
            return kernel
        taken = {x.name for op in walk(kernel.body) if isinstance(op, t.Parallel) for x in op.indices}
        return replace(kernel, body=_Splitter(taken, log).body(kernel.body, ()))


def _has_roles(level: t.Parallel) -> bool:
    """Whether ``level`` has a role that a group, or one lane for it, executes."""
    lanes = {i.name for i in level.indices}
    for op in walk(level.body):
        if isinstance(op, t.InThreads) and op.asynchronous:
            return True
        if isinstance(op, (t.InThreads, t.If)) and names(op.cond) & lanes and not _of_lanes(op):
            return True
    return False


def _of_lanes(op: t.Op) -> bool:
    """Whether single lanes execute ``op`` and all in it."""
    if isinstance(op, t.Alloc):
        return op.buffer.space is Space.LOCAL
    return op.execution in _OF_LANES and all(_of_lanes(x) for _, inner in bodies(op) for x in inner)


class _NotSplit(Exception):
    """The level stays as it is."""


class _Splitter:
    def __init__(self, taken: set[str], log: list[Decision]) -> None:
        self.taken, self.log = taken, log
        self.reused: set[str] = set()

    def body(self, ops: t.Body, around: tuple[t.Parallel, ...]) -> t.Body:
        """``ops`` with the levels in it split; ``around``: the parallels below the block that enclose it."""
        out: list[t.Op] = []
        for op in ops:
            if isinstance(op, t.Parallel) and op.level == THREAD:
                out += self.level(op, around) if _has_roles(op) else (op,)
            else:
                inner = (*around, op) if isinstance(op, t.Parallel) and kind(op) == "group" else around
                out.append(with_bodies(op, lambda body, inner=inner: self.body(body, inner)))  # type: ignore[misc]
        return tuple(out)

    def level(self, op: t.Parallel, around: tuple[t.Parallel, ...]) -> t.Body:
        """``op`` split, or unchanged if its statements cannot be classified."""
        try:
            if around:
                found = Lanes(op, around, self, lambda names: False).split()
            else:
                grouped, inner = self.in_groups(op)
                body = Lanes(inner, (grouped,), self, lambda names: False).split()
                found = (replace(grouped, body=body),)
        except _NotSplit:
            return (op,)
        text = "roles and the statements of whole groups moved to the level around"
        self.log.append(Decision("thread levels", f"parallel {', '.join(i.name for i in op.indices)}", text))
        return found

    def in_groups(self, op: t.Parallel) -> tuple[t.Parallel, t.Parallel]:
        """For a level of threads directly in a block: the level of its warps or warpgroups, and of their lanes."""
        lanes = count(op)
        wide = WARPGROUP if lanes and lanes % WARPGROUP.threads == 0 else GROUP
        if not lanes or lanes % wide.threads:
            raise _NotSplit
        group = Index(self.fresh("group"), const(lanes // wide.threads))
        lane = Index(self.fresh("lane"), const(wide.threads))
        table = _numbered(op, add(mul(group, wide.threads), lane))
        inner = replace(op, indices=(lane,), body=_substituted(op.body, table))
        return replace(op, indices=(group,), level=wide, body=()), inner

    def fresh(self, name: str) -> str:
        """A name of an index that the kernel does not have, made of ``name``."""
        n = 1
        while f"{name}.{n}" in self.taken:
            n += 1
        self.taken.add(f"{name}.{n}")
        return f"{name}.{n}"


def _numbered(op: t.Parallel, number: Expr) -> dict[str, Expr]:
    """The indices of ``op`` for the instance with that number (row-major, the last index fastest)."""
    found: dict[str, Expr] = {}
    rest = prod(_extents(op))
    for i, extent in zip(op.indices, _extents(op), strict=True):
        rest //= extent
        outer = floordiv(number, rest)
        found[i.name] = outer if i is op.indices[0] else mod(outer, extent)
    return found


def _extents(op: t.Parallel) -> list[int]:
    return [int(i.extent.value) for i in op.indices if isinstance(i.extent, Const)]


def _substituted(ops: t.Body, table: dict[str, Expr]) -> t.Body:
    def changed(op: t.Op) -> t.Op:
        return with_bodies(map_expressions(op, lambda e: substitute(e, table)), each)

    def each(body: t.Body) -> t.Body:
        return tuple(changed(op) for op in body)

    return each(ops)


def _conjuncts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op == "land":
        yield from _conjuncts(e.a)
        yield from _conjuncts(e.b)
    else:
        yield e


def _all_of(parts: Sequence[Expr]) -> Expr:
    found: Expr = const(True)
    for n, part in enumerate(parts):
        found = part if n == 0 else binary("land", found, part)
    return found


@record(slots=False)
class Picked:
    """The lanes for which a condition holds.  ``others``: the condition without the lane; ``own``: with it."""

    lanes: tuple[int, ...]
    others: Expr
    own: Expr


class Lanes:
    """The split of a `: thread` level inside a group, or of a role in it.

    ``outer``: whether any of the given names, which are declared outside, differs between lanes.  ``own``: the
    condition of the lanes that execute the statements of single lanes.
    """

    def __init__(
        self,
        op: t.Parallel,
        around: tuple[t.Parallel, ...],
        splitter: _Splitter,
        outer: Callable[[set[str]], bool],
        own: Expr | None = None,
    ) -> None:
        self.op, self.around, self.splitter, self.outer, self.own = op, around, splitter, outer, own
        self.indices = {i.name for i in op.indices}
        self.depends = Dependence((op,))
        self.declared = {name_of(d) for x in walk(op.body) for d in declared(x)} | self.indices
        level = around[-1].level
        if level is None or count(op) != level.threads or any(count(p) is None for p in around):
            raise _NotSplit
        self.lanes: int = level.threads

    def split(self) -> t.Body:
        found = self.hoisted(self.op.body)
        _check_locals(found)
        return found

    # ---- statements ----------------------------------------------------------------------------------------

    def hoisted(self, ops: t.Body) -> t.Body:
        """``ops`` at the level of the group."""
        out: list[t.Op] = []
        waiting: list[t.Op] = []
        for op in ops:
            if self.stays(op):
                waiting.append(op)
                continue
            out += self.level_of(waiting)
            waiting = []
            out += self.statement(op)
        out += self.level_of(waiting)
        return tuple(_merged(out))

    def stays(self, op: t.Op) -> bool:
        """Whether ``op`` remains a statement of each lane."""
        if isinstance(op, t.Declare):
            return False
        if isinstance(op, (t.Assign, t.Copy)):
            return self.by_lane(op)
        return _of_lanes(op) and not any(True for _ in _jumps_out(op))

    def statement(self, op: t.Op) -> t.Body:
        """``op``, which a group executes, at its level."""
        if isinstance(op, (t.InThreads, t.If)) and self.varies(names(op.cond)):
            return self.role(op)
        if isinstance(op, t.Declare):
            if not self.by_lane(op):
                return (op,)
            zero = Const(0.0 if op.var.type.is_float else 0, op.var.type)
            return (replace(op, value=zero), *self.level_of([t.Assign(op.var, op.value, span=op.span)]))
        if self.by_lane(op) or isinstance(op, t.Parallel):
            raise _NotSplit
        if op.execution is Execution.COLLECTIVE:
            # The lanes divide the elements of an `apply` among them: its body has no statements of single lanes.
            if any(self.by_lane(x) for x in walk((op,))):
                raise _NotSplit
            return (op,)
        return (with_bodies(op, self.hoisted),)

    def level_of(self, ops: Sequence[t.Op]) -> t.Body:
        """The statements of single lanes, in a `: thread` level of their own."""
        if not ops:
            return ()
        body = tuple(ops)
        if self.own is not None:
            body = (t.If(self.own, body, span=ops[0].span),)
        if not self.indices & self.splitter.reused:
            self.splitter.reused |= self.indices
            return (replace(self.op, body=body),)
        renamed = tuple(Index(self.splitter.fresh(i.name), i.extent) for i in self.op.indices)
        table: dict[str, Expr] = {i.name: new for i, new in zip(self.op.indices, renamed, strict=True)}
        return (replace(self.op, indices=renamed, body=_substituted(body, table)),)

    # ---- roles ---------------------------------------------------------------------------------------------

    def role(self, op: t.InThreads | t.If) -> t.Body:
        """A role, or a branch, whose condition depends on the lane."""
        if isinstance(op, t.If) and op.otherwise:
            raise _NotSplit
        picked = self.picked(op.cond)
        field = "then" if isinstance(op, t.If) else "body"
        body: t.Body = getattr(op, field)
        if not picked.lanes:
            return ()
        if len(picked.lanes) < self.lanes:
            self.check_role(op, picked)
            self.check_variables(op)
        if len(picked.lanes) == 1:
            inner = _substituted(body, _numbered(self.op, const(picked.lanes[0])))
            if any(isinstance(x, t.Alloc) and x.buffer.space is Space.LOCAL for x in walk(inner)):
                raise _NotSplit
            # At the level of the group each statement runs once.
            return (replace(op, cond=picked.others, **{field: inner}),)  # type: ignore[arg-type]
        if len(picked.lanes) < self.lanes and self.own is not None:
            raise _NotSplit
        warps = sorted({lane // WARP for lane in picked.lanes})
        if len(warps) * WARP < self.lanes:
            return self.in_warps(op, picked, body, field, warps)
        own = self.own if len(picked.lanes) == self.lanes else picked.own
        level = replace(self.op, body=body)
        inner = Lanes(level, self.around, self.splitter, self.varies, own).hoisted(body)
        return (replace(op, cond=picked.others, **{field: inner}),)  # type: ignore[arg-type]

    def in_warps(
        self, op: t.InThreads | t.If, picked: Picked, body: t.Body, field: str, warps: list[int]
    ) -> t.Body:
        """A role of some warps of a larger group: in a level of warps."""
        warp = Index(self.splitter.fresh("warp"), const(self.lanes // WARP))
        lane = Index(self.splitter.fresh("lane"), const(WARP))
        table = _numbered(self.op, add(mul(warp, WARP), lane))
        own = None if len(picked.lanes) == len(warps) * WARP else substitute(picked.own, table)
        level = replace(self.op, indices=(warp,), level=GROUP, body=())
        lanes = replace(self.op, indices=(lane,), body=_substituted(body, table))
        inner = Lanes(lanes, (*self.around, level), self.splitter, self.varies, own).hoisted(lanes.body)
        cond = _all_of([picked.others, _among(warp, warps)])
        role = replace(op, cond=cond, **{field: inner})  # type: ignore[arg-type]
        return (replace(level, body=(role,)),)

    def picked(self, cond: Expr) -> Picked:
        """Which lanes ``cond`` picks; the same ones in every instance in which it picks any."""
        parts = list(_conjuncts(cond))
        own = [p for p in parts if self.varies(names(p))]
        levels = (*self.around, self.op)
        index = _all_values(levels)
        holds = np.ones(prod(count(p) or 1 for p in levels), dtype=bool)
        for part in own:
            value = evaluate(part, index)
            if value is None:
                raise _NotSplit
            holds &= np.broadcast_to(np.asarray(value).astype(bool), holds.shape)
        rows = holds.reshape(-1, self.lanes)
        some = rows[rows.any(axis=1)]
        if not len(some):
            return Picked((), cond, cond)
        if (some != some[0]).any():
            raise _NotSplit
        lanes = tuple(int(x) for x in np.flatnonzero(some[0]))
        table = _numbered(self.op, const(lanes[0]))
        return Picked(lanes, _all_of([substitute(p, table) for p in parts]), _all_of(own))

    def check_role(self, op: t.InThreads | t.If, picked: Picked) -> None:
        """Raises RoleOfLanes if a part of a warp would execute an operation of the whole warp."""
        if len(picked.lanes) == WARP * len({lane // WARP for lane in picked.lanes}):
            return
        for x in walk((op,)):
            if x.execution is Execution.COLLECTIVE:
                level, n = self.around[-1].level, len(picked.lanes)
                raise RoleOfLanes(x.span, what=_spelled(x), picked=n, lanes=self.lanes, level=level)

    def check_variables(self, op: t.InThreads | t.If) -> None:
        """A variable that some lanes assign has its old value in the others: they must not use it."""
        inside = list(walk((op,)))
        own = {name_of(d) for x in inside for d in declared(x)}
        changed = {v.name for x in inside for v in assigned(x)} - own
        mine = {id(x) for x in inside}
        others = (x for x in walk(self.op.body) if id(x) not in mine and not isinstance(x, t.Declare))
        if any(changed & {n for e in expressions(x) for n in names(e)} for x in others):
            raise _NotSplit

    # ---- dependence on the lane ------------------------------------------------------------------------------

    def varies(self, found: set[str]) -> bool:
        """Whether any of these names differs between lanes."""
        reached = self.depends.closure(found)
        return bool(reached & self.indices) or Dependence.MEMORY in reached or self.outer(reached - self.declared)

    def by_lane(self, op: t.Op) -> bool:
        """Whether the operands of ``op``, or how often its body runs, depend on the lane."""
        return self.varies({n for e in expressions(op) for n in names(e)} | control(op))


def _spelled(op: t.Op) -> str:
    """The statement, as both languages name it."""
    word = type(op).__name__.lower()
    return {"scalemma": "mma.scale"}.get(word, f"mma.{word}" if word in ("fill", "load", "store") else word)


def _among(index: Index, values: list[int]) -> Expr:
    """Whether ``index`` is one of ``values``, which are sorted."""
    if all(b == a + 1 for a, b in pairwise(values)):
        return _all_of([binary("ge", index, values[0]), binary("le", index, values[-1])])
    found: Expr = binary("eq", index, values[0])
    for v in values[1:]:
        found = binary("lor", found, binary("eq", index, v))
    return found


def _all_values(levels: tuple[t.Parallel, ...]) -> dict[str, Ints]:
    """The values of the levels' indices in every combination, the innermost level fastest."""
    indices = [i for p in levels for i in p.indices]
    shape = [n for p in levels for n in _extents(p)]
    values = np.unravel_index(np.arange(prod(shape), dtype=np.int64), shape)
    return {i.name: np.asarray(v) for i, v in zip(indices, values, strict=True)}


def _jumps_out(op: t.Op) -> Iterator[t.Op]:
    """The jumps in ``op`` that leave a loop around it."""
    if isinstance(op, (t.Break, t.Continue)):
        yield op
    if not isinstance(op, (t.For, t.While)):
        for _, inner in bodies(op):
            for x in inner:
                yield from _jumps_out(x)


def _merged(ops: list[t.Op]) -> Iterator[t.Op]:
    """Levels of warps that follow each other as one: their roles run at the same time."""
    last: t.Op | None = None
    for op in ops:
        if (
            isinstance(op, t.Parallel)
            and isinstance(last, t.Parallel)
            and op.level == last.level == GROUP
            and [i.extent for i in op.indices] == [i.extent for i in last.indices]
        ):
            table: dict[str, Expr] = {a.name: b for a, b in zip(op.indices, last.indices, strict=True)}
            last = replace(last, body=(*last.body, *_substituted(op.body, table)))
            continue
        if last is not None:
            yield last
        last = op
    if last is not None:
        yield last


def _check_locals(ops: t.Body) -> None:
    """A lane's local buffer is used in one part of the level only.  Raises _NotSplit."""
    everything = list(walk(ops))
    for level in everything:
        if isinstance(level, t.Parallel) and level.level == THREAD:
            inside = list(walk(level.body))
            own = {x.buffer.name for x in inside if isinstance(x, t.Alloc)}
            if any(own & _bases(x) for x in everything) and _uses(everything, own) != _uses(inside, own):
                raise _NotSplit


def _bases(op: t.Op) -> set[str]:
    return {v.base.name for v in touched(op)}


def _uses(ops: list[t.Op], buffers: set[str]) -> int:
    return sum(bool(buffers & _bases(op)) for op in ops)
