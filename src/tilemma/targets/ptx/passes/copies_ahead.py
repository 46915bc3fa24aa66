"""The copies of a loop that all threads of a block issue ahead by cp.async, and what is against the others.

`pipeline_legality` says which copies may be ahead of their iteration on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Element, Expr, Index, Var, value_of
from tilemma.ir.expr import walk as terms
from tilemma.ir.ranges import interval
from tilemma.ir.types import Space
from tilemma.ir.walk import bodies, expressions, trip_count, walk
from tilemma.passes.pipeline_legality import LoopCopies, Obstacle
from tilemma.passes.scope import kind, names

# Branches, each inside the one before: the operation, and the field of the body.
Branches: TypeAlias = tuple[tuple[t.If, str], ...]
_DIVIDING = ("floordiv", "cdiv", "div", "mod", "floormod")


def multiplies(loop: t.Op) -> bool:
    return any(isinstance(op, t.Mma) for op in walk((loop,)))


def multiplies_by_warps(loop: t.Op) -> bool:
    """Whether ``loop`` multiplies, and no multiply reads shared memory by itself, as wgmma does."""
    atoms = [catalogue[op.atom] for op in walk((loop,)) if isinstance(op, t.Mma) and op.atom is not None]
    return bool(atoms) and not any(isinstance(a, MmaAtom) and a.asynchronous for a in atoms)


def block_wide(found: LoopCopies, group: t.Parallel | None) -> tuple[tuple[t.Copy, ...], list[Obstacle]]:
    """The copies ahead that all threads of the block execute by cp.async, and what is against the others."""
    loop, obstacles = found.loop, list[Obstacle]()
    if not found.ahead:
        return (), []
    inside = [p for p in found.parents if isinstance(p, (t.Parallel, t.InThreads))]
    while inside and isinstance(inside[0], t.Parallel) and kind(inside[0]) != "block":
        inside.pop(0)  # the cluster
    scoped = inside[1:] == ([] if group is None else [group])
    if not scoped or (group is not None and not distributes(group, loop)):
        text = "the loop is inside a `parallel` or a role that cannot be split at the loop"
        fix = "put the loop directly into the block, and the work of the warps into a `parallel` inside it"
        return (), [Obstacle("scope", text, fix, loop.span)]
    kept = []
    assert isinstance(loop, t.For)
    instances = set() if group is None else {i.name for i in group.indices}
    for c, between in zip(found.ahead, found.between, strict=True):
        name = c.dst.base.name
        if c.engine == "tma":
            text = f"the copy into `{name}` is a `tma.copy`, which only a role of its own issues ahead"
            fix = "use `dma.copy`, or multiply at `group-4` on sm_90a"
            obstacles.append(Obstacle("no-cp-async", text, fix, c.span))
        elif c.plan is None or c.plan.engine != "cp.async":
            width = 1 if c.plan is None else c.plan.vector
            text = f"the copy into `{name}` moves {width} bytes at a time, and cp.async at least 4"
            fix = "let rows of the tile follow rows of the array, and start on multiples of 4 bytes"
            if width >= 4:
                text = f"the copy into `{name}` moves {width} bytes at a time, which take less time in registers"
                fix = "`stages` asks for cp.async"
            obstacles.append(Obstacle("no-cp-async", text, fix, c.span))
        elif c.plan.level.kind != "block" or any(
            isinstance(op, t.If) and names(op.cond) & instances for op in between
        ):
            text = f"each warp copies its own tile into `{name}`"
            fix = "copy the tiles of all warps at once, before the `parallel`"
            obstacles.append(Obstacle("copy-by-instances", text, fix, c.span))
        elif any(isinstance(x, Var) and x.name in found.stepped for e in c.src.expressions() for x in terms(e)):
            text = f"the place of the tile for `{name}` is a variable that the loop changes"
            fix = "compute the place from the index of the loop"
            obstacles.append(Obstacle("address-from-variable", text, fix, c.span))
        else:
            kept.append(c)
    return tuple(kept), obstacles


def blocking(loop: t.For | t.While, ahead: tuple[t.Copy, ...]) -> Obstacle | None:
    """A copy by cp.async in each iteration of ``loop`` that it waits for, and for all issued before it."""

    def every(body: t.Body) -> Iterator[t.Op]:
        for op in body:
            yield op
            runs = isinstance(op, t.For) and (trip_count(op) or 0) > 0
            if runs or not isinstance(op, (t.If, t.InThreads, t.For, t.While)):
                for _, inner in bodies(op):
                    yield from every(inner)

    for op in every(loop.body):
        if isinstance(op, t.Copy) and op.plan is not None and op.plan.engine == "cp.async" and op not in ahead:
            text = f"every iteration waits for the copy into `{op.dst.base.name}`, which stays where it is"
            return Obstacle(
                "waits-anyway", text, "make all copies of the loop such that they can be ahead", op.span
            )
    return None


def distributes(group: t.Parallel, loop: t.Op) -> bool:
    """Whether ``group`` may be replaced by one `parallel` for each part of its body around ``loop``."""
    if not isinstance(loop, t.For) or group.asynchronous or kind(group) != "group":
        return False
    if not any(op is loop for op in group.body):
        return False
    limits = set().union(*(names(e) for e in (loop.start, loop.stop, loop.step)))
    if limits & {i.name for i in group.indices}:
        return False
    # Scalars and local buffers are private to an instance and cannot connect two parallels.
    private = (op for op in (*group.body, *loop.body) if isinstance(op, (t.Declare, t.Alloc)))
    return all(isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED for op in private)


def may_overrun(copy: t.Copy, index: Index) -> bool:
    """Whether ``copy`` is valid for iterations after the last: its tile crosses upper edges of its array only."""
    if copy.src.static_shape is None or copy.src.reshape is not None or copy.src.base.space is not Space.GLOBAL:
        return False
    held = [x for e in expressions(copy) for x in terms(e)]
    if any(isinstance(x, (Element, Var)) for x in held):
        return False
    axes = {a.dim for a in copy.src.axes}
    for dim, offset in enumerate(copy.src.offsets):
        if interval(offset)[0] < 0 or (dim not in axes and index.name in names(offset)):
            return False
    return True


def branches(copy: t.Copy, around: t.Op) -> Branches:
    """The branches inside ``around`` that contain ``copy``, outermost first."""
    for name, body in bodies(around):
        for op in body:
            if op is copy or any(x is copy for x in walk((op,))):
                here = ((around, name),) if isinstance(around, t.If) else ()
                return (*here, *(() if op is copy else branches(copy, op)))
    return ()


def in_branch(copy: t.Copy) -> Obstacle:
    text = f"the copy into `{copy.dst.base.name}` is in a branch, which may be seldom taken"
    return Obstacle("branch", text, "ask for copies ahead by `pipeline` where it is taken mostly", copy.span)


def is_total(cond: Expr) -> bool:
    """Whether ``cond`` has a value for iterations after the last: it reads no array, and divides by constants."""
    found = list(terms(cond))
    divisors = [x.b for x in found if isinstance(x, Binary) and x.op in _DIVIDING]
    return not any(isinstance(x, (Element, Var)) for x in found) and all(value_of(x) for x in divisors)
