"""Infers the level of each `parallel`, and checks that levels nest and fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import count as count_from

from tilemma.errors import CompileError, spelled
from tilemma.ir.constructs import LIMITS
from tilemma.ir.expr import Index, const
from tilemma.ir.tile import Body, Kernel, Op, Parallel
from tilemma.ir.tiles import describe
from tilemma.ir.types import BLOCK, CLUSTER, GROUP, THREAD, Level
from tilemma.ir.walk import bodies, walk, with_bodies, with_fields
from tilemma.passes.decision import Decision
from tilemma.passes.scope import block_threads, blocks, count, span_threads
from tilemma.records import record


class LevelNesting(CompileError):
    code = "level-nesting"
    found = "`parallel {names}` of level `{inner}` is inside one of level `{outer}`"
    expected = "levels from the outside in: cluster, block, group, thread; a group only inside a larger group"
    fix = "{remedy}"


class TooManyLevels(CompileError):
    code = "too-many-levels"
    found = "`parallel {names}` has no level left: it is inside `{outer}` and contains another `parallel`"
    expected = "at most block, group and thread inside one another"
    fix = "write the levels out, or merge two of the `parallel`s into one with several indices"


class LevelExtent(CompileError):
    code = "level-extent"
    found = "`parallel {names}` of level `{level}` counts {extent}, which is not known when compiled"
    expected = "a constant count: the threads of a block are fixed when it is compiled"
    fix = "use a constant there and loop over the rest, or move the run-time count to the `: block` level"
    python_fix = "use a constant there and loop over the rest, or move the run-time count to the level of blocks"


class EmptyLevel(CompileError):
    code = "level-empty"
    found = "`parallel {names}` of level `{level}` counts {extent}"
    expected = "at least one instance"
    fix = "make every extent at least 1"


class TooManyThreads(CompileError):
    code = "too-many-threads"
    found = "a block of this kernel has {have} threads: {product}"
    expected = "at most {limit} (CUDA C++ Programming Guide, Compute Capabilities)"
    fix = "use fewer or smaller groups, and give each more of the tile"


class LevelOverflow(CompileError):
    code = "level-overflow"
    found = "`parallel {names}` takes {have} threads inside one instance of `{outer}`, which has {limit}"
    expected = "inner levels that share out the threads of the group around them"
    fix = "make the product of the extents at most {most}"


def in_blocks(kernel: Kernel) -> Body:
    """The body of ``kernel`` with a block around each group or thread level outside any block."""
    taken = {i.name for op in walk(kernel.body) if isinstance(op, Parallel) for i in op.indices}

    def wrapped(op: Op) -> Op:
        if not isinstance(op, Parallel):
            return with_bodies(op, lambda body: tuple(wrapped(x) for x in body))
        if op.level is None or op.level.depth < BLOCK.depth + 1:
            return op
        name = next(n for n in (f"block.{i}" for i in count_from(1)) if n not in taken)
        taken.add(name)
        return Parallel((Index(name, const(1)),), (op,), BLOCK, span=op.span)

    return tuple(wrapped(op) for op in kernel.body)


def described(p: Parallel) -> str:
    """``p by n``, as messages spell a parallel."""
    names = ", ".join(i.source_name for i in p.indices)
    extents = ", ".join(describe(i.extent) for i in p.indices)
    return f"{{{names}}} by [{extents}]" if len(p.indices) > 1 else f"{names} by {extents}"


@record(slots=False)
class InferLevels:
    """Fills `Parallel.level`: the outermost is the block, the innermost the threads, one between them the warps.

    Checks that levels nest, that counts below the block are constants, and that a block's threads fit.
    """

    max_threads: int = LIMITS["threads"].most

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises LevelNesting, TooManyLevels, LevelExtent, EmptyLevel, LevelOverflow or TooManyThreads."""
        body = self._body(in_blocks(kernel), (), log)
        done = replace(kernel, body=body)
        limit = self.max_threads
        for block in blocks(done):
            have = block_threads(block)
            if have > limit:
                widest = max(
                    (p for p in walk(block.body) if isinstance(p, Parallel)), key=lambda p: span_threads(p)
                )
                product = f"`parallel {described(widest)} : {widest.level}`"
                raise TooManyThreads(widest.span, have=have, limit=limit, product=product)
            log.append(Decision("levels", described(block), f"{have} threads a block", {"threads": have}))
        return done

    def _body(self, body: Body, around: tuple[Parallel, ...], log: list[Decision]) -> Body:
        return tuple(self._op(op, around, log) for op in body)

    def _op(self, op: Op, around: tuple[Parallel, ...], log: list[Decision]) -> Op:
        if isinstance(op, Parallel):
            if op.level is None:
                level = _infer(op, around)
                log.append(Decision("levels", described(op), f"inferred `{level}`", {"level": str(level)}))
                op = replace(op, level=level)
            _check(op, around)
            around = (*around, op)
        changes = {name: self._body(inner, around, log) for name, inner in bodies(op)}
        return with_fields(op, changes)


def _infer(p: Parallel, around: tuple[Parallel, ...]) -> Level:
    inner = [q for q in walk(p.body) if isinstance(q, Parallel)]
    if not any(q.level is not None and q.level.kind == "block" for q in around):
        inner_block = any(q.level is not None and q.level.kind == "block" for q in inner)
        return CLUSTER if inner_block else BLOCK
    if not inner:
        return THREAD
    outer = around[-1].level
    if outer is not None and outer.kind == "block":
        return GROUP
    raise TooManyLevels(p.span, names=described(p), outer=outer)


def _check(p: Parallel, around: tuple[Parallel, ...]) -> None:
    level, outer = p.level, around[-1].level if around else None
    assert level is not None
    if outer is None:
        return
    smaller = level.kind == outer.kind == "group" and level.warps < outer.warps
    if level.depth <= outer.depth and not smaller:
        fix = "write one `parallel` with the indices of both" if level == outer else "swap them"
        inner = {"block": "group", "group": "thread"}.get(outer.kind)
        if inner is not None:
            fix += f", or make it {spelled(p.span, f'`: {inner}`', f'`level={chr(34)}{inner}{chr(34)}`')}"
        raise LevelNesting(p.span, names=described(p), inner=level, outer=outer, remedy=fix)
    if level.depth < 2:
        return
    n = count(p)
    if n is None or n < 1:
        extent = " x ".join(describe(i.extent) for i in p.indices)
        kind = LevelExtent if n is None else EmptyLevel
        raise kind(p.span, names=described(p), level=level, extent=extent)
    if outer.kind == "group" and n * level.threads > outer.threads:
        raise LevelOverflow(
            p.span,
            names=described(p),
            have=n * level.threads,
            outer=outer,
            limit=outer.threads,
            most=outer.threads // level.threads,
        )
