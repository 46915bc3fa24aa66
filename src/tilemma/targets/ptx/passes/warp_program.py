"""Work division among warpgroups: the program of one warpgroup of a block.

The levels inside a block are replaced by expressions of the warpgroup's number.  The copy of results by the whole
block is divided such that each warpgroup copies the part that it has stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilemma.errors import Span
from tilemma.ir import tile as t
from tilemma.ir.effects import Execution, old_values, written_views
from tilemma.ir.expr import Expr, Index, add, binary, const, floordiv, mod, mul, sub, substitute, value_of
from tilemma.ir.substitution import Substitution
from tilemma.ir.types import Space, View
from tilemma.ir.walk import bodies, expressions, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.pipeline_legality import Obstacle
from tilemma.passes.scope import count, names

WARPGROUP_THREADS = 128


class NotPipelined(Exception):
    """``obstacle``: why a block is left as it is."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(str(obstacle))
        self.obstacle = obstacle

    def decision(self, kernel: t.Kernel, left: str = "not pipelined by a producer") -> Decision:
        """The obstacle, for `explain`; ``left``: what it leaves as it is."""
        data = {"rule": self.obstacle.rule, "change": self.obstacle.change}
        text = f"{left}: {self.obstacle}"
        return Decision("pipeline", kernel.name, text, data, span=self.obstacle.span or kernel.span)


def refuse(rule: str, found: str, change: str, span: Span | None = None) -> NotPipelined:
    return NotPipelined(Obstacle(rule, found, change, span))


def outermost(body: t.Body) -> Iterator[t.Parallel]:
    """The parallels directly inside a block, seen through control flow."""
    for op in body:
        if isinstance(op, t.Parallel):
            yield op
        else:
            for _, inner in bodies(op):
                yield from outermost(inner)


def warpgroups(block: t.Parallel) -> int:
    """The number of warpgroups among which the levels inside ``block`` divide its work.  Raises NotPipelined."""
    found: set[int] = set()
    for p in outermost(block.body):
        n, level = count(p), p.level
        if n is None or level is None or level.kind == "block":
            raise refuse("level", "a level has no constant extent", "use a constant", p.span)
        if level.kind == "group" and 4 % level.warps:
            raise refuse(
                "level",
                f"a level of groups of {level.warps} warps does not divide into warpgroups",
                "use `group-4`, `group-2` or `group`",
                p.span,
            )
        found.add(n * level.threads)
    most = max(found, default=0)
    odd = [n for n in found if n % WARPGROUP_THREADS and n > WARPGROUP_THREADS]
    if not most or most % WARPGROUP_THREADS or odd:
        sizes = ", ".join(str(n) for n in sorted(found)) or "none"
        raise refuse(
            "level",
            f"the levels inside the block have these numbers of threads: {sizes}",
            "give each level a multiple of 128 threads, or fewer",
            block.span,
        )
    return most // WARPGROUP_THREADS


def flattened(body: t.Body, member: Expr, groups: int, fresh: FreshNames) -> t.Body:
    """``body`` as warpgroup number ``member`` of ``groups`` executes it.  Raises NotPipelined."""
    out: list[t.Op] = []
    for op in body:
        if isinstance(op, t.Parallel):
            out += _of_member(op, member, groups, fresh)
            continue
        if isinstance(op, t.InThreads) or (groups > 1 and old_values(op)):
            raise refuse(
                "block-statement",
                "a statement outside the inner levels is executed once by the whole block",
                "move it into one of the inner levels",
                op.span,
            )
        if groups > 1 and (isinstance(op, t.Print) or (op.execution is Execution.LANE and written_views(op))):
            out.append(_by_first(op, member))
            continue
        apart = op if isinstance(op, t.Apply) else with_bodies(op, lambda b: flattened(b, member, groups, fresh))
        out.append(apart)
    return tuple(out)


def _by_first(op: t.Op, member: Expr) -> t.InThreads:
    """``op`` by the first warpgroup alone, for the whole block."""
    return t.InThreads(binary("eq", member, 0), (op,), span=op.span)


def _of_member(op: t.Parallel, member: Expr, groups: int, fresh: FreshNames) -> t.Body:
    assert op.level is not None
    threads = (count(op) or 1) * op.level.threads
    if threads < WARPGROUP_THREADS:
        # Threads of the first warpgroup alone.
        return (op,) if groups == 1 else (_by_first(op, member),)
    members = min(threads // WARPGROUP_THREADS, groups)
    body = _of_each(op, member, members, fresh)
    return body if members == groups else (t.InThreads(binary("lt", member, members), body, span=op.span),)


def _of_each(op: t.Parallel, member: Expr, groups: int, fresh: FreshNames) -> t.Body:
    each = (count(op) or 1) // groups
    number, inner = member, None
    if each > 1:
        inner = Index(fresh(op.indices[0].name), const(each))
        number = add(mul(member, each), inner)
    values: dict[str, Expr] = {}
    for i in reversed(op.indices):
        values[i.name] = mod(number, i.extent) if i is not op.indices[0] else number
        number = floordiv(number, i.extent)
    body = Substitution(values).body(op.body)
    return body if inner is None else (replace(op, indices=(inner,), body=body),)


class FreshNames:
    """Names that a kernel does not use."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def __call__(self, name: str) -> str:
        stem, found, n = name.split(".")[0], name, 0
        while found in self._taken:
            n += 1
            found = f"{stem}.{n}"
        self._taken.add(found)
        return found


# ---- results -----------------------------------------------------------------------------------------------


def divided_copies(body: t.Body, wg: Index, groups: int) -> t.Body:
    """``body`` with each copy of the whole block divided among the warpgroups ``wg`` = 1 .. ``groups``.

    Results are copied by the warpgroup that stored them where each stores one part; other copies in parts of equal
    rows, or by the first warpgroup alone.  Copies of a part of the warpgroups are left to these.
    """

    def divided(op: t.Op) -> t.Op:
        if not isinstance(op, t.Copy) or any(wg.name in names(e) for e in expressions(op)):
            return op
        if Space.LOCAL in (op.src.base.space, op.dst.base.space):
            return op  # every thread has its own
        results = (op.src.base.space, op.dst.base.space) == (Space.SHARED, Space.GLOBAL)
        part = _stored_part(op, body, wg, groups) if results else None
        if part is None and groups == 1:
            return op
        part = part or _rows(op, wg, groups)
        if part is None:
            return _by_first(op, sub(wg, 1))
        load = part.base == op.dst.base
        there = op.src if load else op.dst
        for axis, offset in enumerate(part.offsets):
            there = there.shift(axis, offset)
        axes = tuple(replace(a, extent=p.extent) for a, p in zip(there.axes, part.axes, strict=True))
        there = replace(there, axes=axes)
        return replace(op, src=there, dst=part) if load else replace(op, src=part, dst=there)

    def visit(inner: t.Body) -> t.Body:
        return tuple(op if isinstance(op, t.InThreads) else divided(with_bodies(op, visit)) for op in inner)

    return visit(body)


def _rows(op: t.Copy, wg: Index, groups: int) -> View | None:
    """An equal part of the rows of the copied buffer, in whole swizzle atoms."""
    load = op.dst.base.space is Space.SHARED
    here, there = (op.dst, op.src) if load else (op.src, op.dst)
    base = here.base
    rows = value_of(base.shape[0]) if base.shape else None
    if not here.is_whole or rows is None or rows % (8 * groups) or len(there.axes) != base.rank:
        return None
    if base.space is not Space.SHARED or there.base.space is not Space.GLOBAL or op.pad or op.transpose:
        return None
    whole, n = base.whole(here.slot), rows // groups
    axes = (replace(whole.axes[0], extent=const(n)), *whole.axes[1:])
    return replace(whole, offsets=(mul(sub(wg, 1), n), *whole.offsets[1:]), axes=axes)


def _stored_part(op: t.Copy, body: t.Body, wg: Index, groups: int) -> View | None:
    """The part of the copied buffer that a warpgroup stores; None where the parts do not make up the buffer."""
    base = op.src.base
    writes = [x for x in walk(body) for v in written_views(x) if v.base.name == base.name]
    if not op.src.is_whole or len(op.dst.axes) != base.rank or op.pad or op.transpose or not writes:
        return None
    first = writes[0]
    if not all(isinstance(x, t.Store) and isinstance(first, t.Store) and x.dst == first.dst for x in writes):
        return None
    assert isinstance(first, t.Store)
    part, whole = first.dst, [value_of(e) for e in base.shape]
    shape = part.static_shape
    plain = [(a.dim, value_of(a.step)) for a in part.axes] == [(d, 1) for d in range(base.rank)]
    if shape is None or None in whole or part.slot is not None or part.reshape is not None or not plain:
        return None
    seen: set[tuple[int, ...]] = set()
    for w in range(1, groups + 1):
        at = [value_of(substitute(o, {wg.name: const(w)})) for o in part.offsets]
        ranges = [range(a, a + n) for a, n in zip(at, shape, strict=True) if a is not None]
        tiles = [range(r.start // n, r.stop // n) for r, n in zip(ranges, shape, strict=False) if r.start % n == 0]
        if len(tiles) != base.rank:
            return None
        seen |= set(product(*tiles))
    counts = [(n or 0) // s for n, s in zip(whole, shape, strict=True)]
    exact = all((n or 0) % s == 0 for n, s in zip(whole, shape, strict=True))
    total = 1
    for n in counts:
        total *= n
    return part if exact and len(seen) == groups == total else None
