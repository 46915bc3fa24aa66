"""Software pipelining with double-buffered operand fragments: they are loaded one step ahead of the multiplies,
also across iterations of the loop over K.

A warp that waits for its copies, then for ldmatrix, leaves the tensor cores idle at the start of every iteration.
With two sets of operand registers the first step of the next iteration is loaded before the last multiplies of
this one::

    for k:                                       wait a; load f[0] <- a, step 0
        copy => b                                for k:
        wait a                                       copy => b
        for i in 0..n:                               for i in 0..n-1:
            load f <- a, step i            =>            load f[(i + 1) % 2] <- a, step i + 1
            multiply f                                   multiply f[i % 2]
        rotate a, b                                  rotate a, b
                                                     wait a; load f[0] <- a, step 0
                                                     multiply f[(n - 1) % 2]

The last iteration loads a step that no multiply uses.

With two buffers, an iteration waits for its own copies.  They are then issued where the buffer becomes free, a
step before the previous iteration ends, because they take nearly the time of an iteration::

    for k:                                       copy (first k) => b; wait a; load f[0] <- a, step 0
        copy (k) => b                            for k:
        ..                             =>            ..
        rotate a, b                                  rotate a, b
        wait a; load f[0] <- a, step 0               wait a; copy (k + 1) => b; load f[0] <- a, step 0
        multiply f[(n - 1) % 2]                      multiply f[(n - 1) % 2]

The last iteration copies a tile that no multiply uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir import tile as t
from tilemma.ir.effects import rotated, written_views
from tilemma.ir.expr import Element, Expr, Index, Var, binary, const, depends_on, substitute, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.ranges import interval
from tilemma.ir.types import Space
from tilemma.ir.walk import expressions, map_expressions, touched, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.rotations import Rotations
from tilemma.passes.scope import kind
from tilemma.records import record
from tilemma.targets.ptx.passes.names import Names
from tilemma.targets.ptx.target import Target

# Registers that addresses and counters of such a loop need besides the tiles.
OTHER_REGISTERS = 40


@record
class _Steps:
    """The K steps of one iteration: ``index`` counts ``trip_count`` of them; each loads and then multiplies."""

    index: Index
    trip_count: int
    declared: tuple[t.DeclareFragment, ...]
    loads: tuple[t.Load, ...]
    multiplies: tuple[t.Mma, ...]


@record
class _Iteration:
    """The loop's body: ``before``, ``waits`` and ``group`` (whose body is ``inner``), then ``after``."""

    before: t.Body
    waits: t.Body
    group: t.Parallel
    inner: t.For
    steps: _Steps
    after: t.Body


@record(slots=False)
class DoubleBufferFragments:
    """Rotates loops that wait for asynchronous copies and multiply by mma.sync."""

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        names = Names.of(kernel.body)

        def settle(body: t.Body, block: t.Body) -> t.Body:
            out: list[t.Op] = []
            for op in body:
                inside = op.body if isinstance(op, t.Parallel) and kind(op) == "block" else block
                op = with_bodies(op, partial(settle, block=inside))
                iteration = _iteration(op) if isinstance(op, t.For) else None
                if isinstance(op, t.For) and iteration is not None and _sound(op, iteration, out, block):
                    short = _short_of_registers(iteration, block, Target.of(self.arch))
                    text = "loaded a step ahead" if not short else f"not loaded ahead: {short}"
                    for d in iteration.steps.declared:
                        log.append(Decision("ahead", d.name, text, span=d.span))
                    early = not short and _two_buffers(op, iteration, block)
                    if early:
                        text = "copied into a buffer as soon as it is free"
                        log.append(Decision("early", op.index.name, text, span=op.span))
                    out += [op] if short else _rotated(op, iteration, names, early)
                else:
                    out.append(op)
            return tuple(out)

        return replace(kernel, body=settle(kernel.body, ()))


# ---- which loops -----------------------------------------------------------------------------------------


def _iteration(loop: t.For) -> _Iteration | None:
    """The parts of ``loop``'s body, if it has the form that the pass transforms."""
    groups = [i for i, op in enumerate(loop.body) if isinstance(op, t.Parallel)]
    if len(groups) != 1:
        return None
    at = groups[0]
    before, group, after = loop.body[:at], loop.body[at], loop.body[at + 1 :]
    assert isinstance(group, t.Parallel)
    waits = tuple(op for op in before if isinstance(op, t.WaitFuture))
    before = tuple(op for op in before if not isinstance(op, t.WaitFuture))
    if not waits or not all(_is_copy(op) for op in before):
        return None
    if not all(_is_copy(op) or rotated(op) for op in after):
        return None
    if len(group.body) != 1 or not isinstance(group.body[0], t.For):
        return None
    steps = _steps(group.body[0])
    return None if steps is None else _Iteration(before, waits, group, group.body[0], steps, after)


def _is_copy(op: t.Op) -> bool:
    """Whether ``op`` is an asynchronous copy, or declares the destination of one."""
    if isinstance(op, t.Copy):
        return op.future is not None and op.plan is not None and op.plan.engine == "cp.async" and not op.after
    return isinstance(op, t.Alloc) and op.init is None


def _steps(loop: t.For) -> _Steps | None:
    trip_count = value_of(loop.stop)
    if (
        value_of(loop.start) != 0
        or value_of(loop.step) != 1
        or trip_count is None
        or trip_count < 2
        or trip_count % 2
    ):
        return None
    declared = tuple(op for op in loop.body if isinstance(op, t.DeclareFragment))
    loads = tuple(op for op in loop.body if isinstance(op, t.Load))
    multiplies = tuple(op for op in loop.body if isinstance(op, t.Mma))
    rest = [op for op in loop.body if not isinstance(op, t.DeclareFragment)]
    own = {d.name for d in declared}
    if not multiplies or tuple(rest) != (*loads, *multiplies) or any(d.copies for d in declared):
        return None
    if {f.fragment.name for f in loads} != own or not all(_in_registers(d) for d in declared):
        return None
    for m in multiplies:
        operands = [x.name for x in (m.a, m.b, m.meta) if isinstance(x, t.FragmentRef)]
        if not set(operands) <= own or not (isinstance(m.a, t.FragmentRef) and isinstance(m.b, t.FragmentRef)):
            return None
        if m.scale_a is not None or m.future is not None or not _is_synchronous(m):
            return None
    return _Steps(loop.index, trip_count, declared, loads, multiplies)


def _in_registers(d: t.DeclareFragment) -> bool:
    return d.plan is not None and d.plan.residence == "registers"


def _is_synchronous(m: t.Mma) -> bool:
    atom = catalogue[m.atom] if m.atom is not None else None
    return isinstance(atom, MmaAtom) and not atom.asynchronous


def _sound(loop: t.For, iteration: _Iteration, earlier: Iterable[t.Op], block: t.Body) -> bool:
    """Whether the waits and first loads of an iteration may be moved before its copies, and before the loop.

    They move past copies into other buffers only, and every iteration loads data that has been copied.
    """
    sources = {load.src.base for load in iteration.steps.loads}
    if any(b.space is not Space.SHARED or b.copies for b in sources):
        return False
    names = {b.name for b in sources}
    moving = {loop.index.name}
    for load in iteration.steps.loads:
        if any(depends_on(e, moving) or _varies(e) for e in expressions(load)):
            return False
    inside = [op for op in (*iteration.before, *iteration.after) if isinstance(op, t.Copy)]
    first = [op for op in iteration.before if isinstance(op, t.Copy)]
    awaited = {name for w in iteration.waits if isinstance(w, t.WaitFuture) for name in w.futures}
    if any(c.dst.base.name in names for c in first):
        return False
    outside = [op for op in earlier if isinstance(op, t.Copy)]
    if not names <= {c.dst.base.name for c in outside} or not awaited <= {c.future for c in outside}:
        return False
    rotations = Rotations(block)
    filled = {c.dst.base.name for c in (*inside, *outside)}
    return all(rotations.group(name) <= filled for name in names)


def _two_buffers(loop: t.For, iteration: _Iteration, block: t.Body) -> bool:
    """Whether an iteration waits for its own copies, and they may be issued one iteration earlier and once more.

    The extra copy reads an array that nothing writes, and its destination is never read.
    """
    copies = [x for x in iteration.before if isinstance(x, t.Copy)]
    rotations = Rotations(block)
    if not copies or any(len(rotations.group(c.dst.base.name)) != 2 for c in copies):
        return False
    if value_of(loop.step) != 1 or not all(map(rotated, iteration.after)):
        return False
    if not all(_may_go_on(c, loop.index) for c in copies):
        return False
    written = {v.base.name for op in walk(block) for v in written_views(op)}
    targets = {c.dst.base.name for c in copies}
    elsewhere = {v.base.name for op in walk(block) if op not in copies for v in touched(op)}
    return not written & {c.src.base.name for c in copies} and not targets & elsewhere


def _may_go_on(copy: t.Copy, index: Index) -> bool:
    """Whether ``copy`` is valid one iteration past the last: its tile may then cross the array's upper edge
    only."""
    if copy.src.static_shape is None or any(_varies(e) or _reads(e) for e in expressions(copy)):
        return False
    if any(depends_on(e, {index.name}) for e in copy.dst.expressions()):
        return False
    return all(interval(e)[0] >= 0 for e in copy.src.offsets)


def _reads(e: Expr) -> bool:
    return any(isinstance(x, Element) for x in parts(e))


def _varies(e: Expr) -> bool:
    return any(isinstance(x, Var) for x in parts(e))


def _short_of_registers(iteration: _Iteration, block: t.Body, target: Target) -> str:
    """The reason why registers do not suffice for two sets of operands and the accumulators; empty if they do."""
    declared = {op.name: op for op in walk(block) if isinstance(op, t.DeclareFragment)}
    needed = registers_with_two_sets(declared.values(), iteration.steps.declared)
    level = iteration.group.level
    assert level is not None
    threads = prod(value_of(i.extent) or 1 for i in iteration.group.indices) * level.threads
    have = min(target.registers_per_thread, target.registers_per_sm // threads)
    return f"that takes {needed} registers of {have}" if needed > have else ""


def registers_with_two_sets(declared: Iterable[t.DeclareFragment], operands: Iterable[t.DeclareFragment]) -> int:
    """Registers of a thread for the accumulators among ``declared`` and two sets of ``operands``."""
    sums = sum(_registers(d) for d in declared if d.plan is not None and d.plan.role == "C")
    return sums + 2 * sum(_registers(d) for d in operands) + OTHER_REGISTERS


def registers_of_block(block: t.Parallel) -> int:
    """Registers of a thread of ``block`` for all accumulators and two sets of all operands."""
    fragments = [x for x in walk(block.body) if isinstance(x, t.DeclareFragment) and x.plan is not None]
    return registers_with_two_sets(fragments, [x for x in fragments if x.plan is not None and x.plan.role in "AB"])


def registers_of_multiplies(block: t.Parallel) -> int:
    """Registers of a thread for the operands and the accumulators of ``block``; 0 without multiplies of warps."""
    declared = [d for d in walk(block.body) if isinstance(d, t.DeclareFragment) and d.plan is not None]
    multiplied = [d for d in declared if d.plan is not None and isinstance(catalogue[d.plan.atom], MmaAtom)]
    if not multiplied or any(isinstance(op, t.InThreads) and op.asynchronous for op in walk(block.body)):
        return 0
    # Those with another role are vectors of a few registers.
    held = (
        d for d in multiplied if d.plan is not None and d.plan.residence == "registers" and d.plan.role in "ABC"
    )
    return sum(map(_registers, held)) + OTHER_REGISTERS


def _registers(d: t.DeclareFragment) -> int:
    assert d.plan is not None
    atom = catalogue[d.plan.atom]
    assert isinstance(atom, MmaAtom)
    return prod(d.plan.repeat) * atom.operands[d.plan.role].registers * prod(d.copies)


# ---- rotating --------------------------------------------------------------------------------------------


def _rotated(loop: t.For, iteration: _Iteration, names: Names, early: bool) -> list[t.Op]:
    steps = iteration.steps
    own = {d.name for d in steps.declared}
    last = steps.trip_count - 1
    ahead = binary("add", steps.index, const(1))
    first = tuple(_step(x, own, steps.index, const(0)) for x in steps.loads)
    rest = replace(
        iteration.inner,
        stop=const(last),
        body=(
            *(_step(x, own, steps.index, ahead) for x in steps.loads),
            *(_step(x, own, steps.index, steps.index) for x in steps.multiplies),
        ),
    )
    final = tuple(_step(x, own, steps.index, const(last)) for x in steps.multiplies)
    before: t.Body = ()
    behind: t.Body = ()
    end: t.Body = ()
    at_start = iteration.before
    if early:
        at_start = ()
        copies = tuple(x for x in iteration.before if isinstance(x, t.Copy))
        allocs = tuple(x for x in iteration.before if isinstance(x, t.Alloc))
        before = (*allocs, *(_at_iteration(x, loop, loop.start) for x in copies))
        behind = tuple(_at_iteration(x, loop, binary("add", loop.index, const(1))) for x in copies)
        # The extra copies have to complete before their shared memory is used again after the loop.
        end = (t.WaitFuture(tuple(x.future for x in copies if x.future is not None), span=loop.span),)
    body = (
        *at_start,
        replace(iteration.group, body=(rest,)),
        *iteration.after,
        *iteration.waits,
        *behind,
        names.renamed(replace(iteration.group, body=(*first, *final))),
    )
    declared = [replace(d, copies=(2,)) for d in steps.declared]
    start = names.renamed(replace(iteration.group, body=first))
    return [*declared, *before, *iteration.waits, start, replace(loop, body=body), *end]


def _at_iteration(op: t.Op, loop: t.For, at: Expr) -> t.Op:
    """``op`` of iteration ``at``."""
    return map_expressions(op, lambda e: substitute(e, {loop.index.name: at}))


def _step(op: t.Op, own: set[str], index: Index, at: Expr) -> t.Op:
    """``op`` of step ``at``, with the operand registers of that step."""
    slot = binary("mod", at, const(2))

    def moved(ref: t.FragmentRef) -> t.FragmentRef:
        return t.FragmentRef(ref.name, (slot,)) if ref.name in own else ref

    op = map_expressions(op, lambda e: substitute(e, {index.name: at}))
    if isinstance(op, t.Load):
        return replace(op, fragment=moved(op.fragment))
    assert isinstance(op, t.Mma)
    a, b = (moved(x) if isinstance(x, t.FragmentRef) else x for x in (op.a, op.b))
    return replace(op, a=a, b=b, meta=None if op.meta is None else moved(op.meta))
