"""Legality of software pipelining: the copies of a loop that may be issued iterations ahead, and what prevents it
for the others.

A copy from global into shared memory can be issued ahead if its buffer can have one copy for each stage: every
other access to the buffer follows the copy in the same iteration, and nothing writes its source meanwhile.

The threads that multiply issue all copies between the beginning and the end of the loop.  They evaluate the
conditions around a copy for a later iteration, before they know whether a `break` comes first.  A role of its own
executes the control flow around its copies, and may be ahead of the other threads by any part of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilemma.errors import Span
from tilemma.ir import tile as t
from tilemma.ir.effects import element_reads, read_views, rotated, variables_set, written_views
from tilemma.ir.expr import Element, Expr, FragmentElement, Var
from tilemma.ir.expr import walk as terms
from tilemma.ir.types import Space
from tilemma.ir.walk import bodies, jumps, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.scope import Site, sites
from tilemma.records import record

_HAND_WRITTEN = (t.DeclareEvent, t.WaitEvent, t.TriggerEvent, t.WaitFuture, t.Commit)


@record
class Obstacle:
    """A reason why a copy, or every copy of a loop, is not issued ahead.

    ``rule`` is a short fixed name, ``found`` a sentence about the program, ``change`` what the program can do;
    ``span`` is the statement that stands in the way.
    """

    rule: str
    found: str
    change: str
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.found}; {self.change}"


@record(slots=False)
class LoopCopies:
    """The copies from global into shared memory of ``loop``, in program order.

    ``ahead``: those that may be issued iterations ahead.  ``obstacles``: one or more for each other copy.
    ``between``: for each of ``ahead``, the branches inside the loop that contain it, outermost first.
    ``stepped``: variables that the sources in ``ahead`` read and the loop assigns.  ``parents``: the operations
    around the loop, outermost first.
    """

    loop: t.For | t.While
    parents: tuple[t.Op, ...]
    copies: tuple[t.Copy, ...]
    ahead: tuple[t.Copy, ...]
    between: tuple[tuple[t.Op, ...], ...]
    obstacles: tuple[Obstacle, ...]
    stepped: frozenset[str]


def is_load(op: t.Op) -> bool:
    """Whether ``op`` copies from global into shared memory."""
    return isinstance(op, t.Copy) and (op.src.base.space, op.dst.base.space) == (Space.GLOBAL, Space.SHARED)


def loop_copies(kernel: t.Kernel, role: bool = False) -> tuple[LoopCopies, ...]:
    """The analysis of each loop that is the innermost around a synchronous copy from global into shared memory.

    ``role``: a role of its own issues the copies.
    """
    legality = _Legality(kernel, role)
    return tuple(legality.loop(site) for site in legality.sites if _copies(site.op))


def leaves(body: t.Body) -> t.Op | None:
    """The first `break` or `continue` in ``body`` of a loop around it."""
    for op in body:
        if isinstance(op, (t.Break, t.Continue)):
            return op
        if not isinstance(op, (t.For, t.While)):
            for _, inner in bodies(op):
                if (found := leaves(inner)) is not None:
                    return found
    return None


def _copies(loop: t.Op) -> tuple[tuple[t.Copy, tuple[t.Op, ...]], ...]:
    """The synchronous copies whose innermost loop is ``loop``, with the operations between."""
    if not isinstance(loop, (t.For, t.While)):
        return ()
    found = []
    for s in sites(loop.body):
        copy = isinstance(s.op, t.Copy) and is_load(s.op) and not s.op.asynchronous
        if copy and not any(isinstance(p, (t.For, t.While)) for p in s.parents):
            assert isinstance(s.op, t.Copy)
            found.append((s.op, s.parents))
    return tuple(found)


class _Legality:
    """The accesses of a kernel, by buffer and fragment; ``role``: see `loop_copies`."""

    def __init__(self, kernel: t.Kernel, role: bool) -> None:
        self.role = role
        self.sites = tuple(sites(kernel.body))
        self.writes: dict[str, list[t.Op]] = {}
        self.reads: dict[str, list[t.Op]] = {}
        self.fragments: dict[str, list[t.Op]] = {}
        self.registers: set[str] = set()
        for site in self.sites:
            op = site.op
            if isinstance(op, t.DeclareFragment) and op.plan is not None and op.plan.residence == "registers":
                self.registers.add(op.name)
            for v in written_views(op):
                self.writes.setdefault(v.base.name, []).append(op)
            for v in read_views(op):
                self.reads.setdefault(v.base.name, []).append(op)
            used = {ref.name for _, ref in fragment_uses(op)}
            used |= {x.fragment for x in element_reads(op) if isinstance(x, FragmentElement)}
            for name in used:
                self.fragments.setdefault(name, []).append(op)
        self.parameters = {p.buffer.name for p in kernel.params if isinstance(p, t.ArrayParameter)}

    def loop(self, site: Site) -> LoopCopies:
        loop = site.op
        assert isinstance(loop, (t.For, t.While))
        found = _copies(loop)
        obstacles = list(_of_loop(loop, site.parents, self.role))
        ahead: list[tuple[t.Copy, tuple[t.Op, ...]]] = []
        assigned: set[str] = set()
        if not obstacles:
            assigned = {v.name for op in walk(loop.body) for v in variables_set(op)}
            for copy, between in found:
                against = list(self._of_copy(copy, between, loop, assigned))
                obstacles += against
                if not against:
                    ahead.append((copy, between))
        read = {x.name for c, _ in ahead for e in c.src.expressions() for x in terms(e) if isinstance(x, Var)}
        copies, between_ = tuple(c for c, _ in ahead), tuple(b for _, b in ahead)
        stepped = frozenset(assigned & read)
        return LoopCopies(
            loop, site.parents, tuple(c for c, _ in found), copies, between_, tuple(obstacles), stepped
        )

    def _of_copy(
        self, copy: t.Copy, between: tuple[t.Op, ...], loop: t.For | t.While, assigned: set[str]
    ) -> Iterator[Obstacle]:
        """``assigned``: the variables that ``loop`` assigns."""
        name, source = copy.dst.base.name, copy.src.base.name
        # A role copies while the others execute any part of the block; without one, the loop contains all copies.
        meanwhile = None if self.role else {id(op) for op in walk(loop.body)}
        branches = True
        for op in between:
            known = self.role or (isinstance(op, t.If) and not self._is_settled_late(op.cond, meanwhile, assigned))
            if isinstance(op, t.InThreads) or (isinstance(op, t.If) and not known):
                why = " that is known in its own iteration only" * isinstance(op, t.If)
                yield Obstacle(
                    "conditional-copy",
                    f"the copy into `{name}` is under a condition{why}",
                    "copy in every iteration, and put the condition around the use of the tile",
                    op.span,
                )
            elif isinstance(op, t.Parallel):
                yield Obstacle(
                    "copy-by-instances",
                    f"each instance of a `parallel` inside the loop executes the copy into `{name}`",
                    "move the copy out of the `parallel`, and copy the tiles of all instances at once",
                    copy.span,
                )
            branches = branches and isinstance(op, t.If)
        if copy.dst.reshape is not None and copy.dst.slot is None and not copy.dst.base.copies:
            yield Obstacle(
                "other-shape",
                f"the copy writes `{name}` in another shape than it is declared with",
                "declare the buffer with the shape of the copy, and read it in the other one",
                copy.span,
            )
        elif not copy.dst.is_whole or copy.dst.slot is not None or copy.dst.base.copies:
            yield Obstacle(
                "part-of-a-buffer",
                f"the copy writes a part of `{name}`",
                "give the copied tile a shared buffer of its own",
                copy.span,
            )
        elif branches:
            around = between[-1] if between else loop
            yield from self._of_buffer(copy, name, next(b for _, b in bodies(around) if any(x is copy for x in b)))
        written = [op for op in self.writes.get(source, ()) if meanwhile is None or id(op) in meanwhile]
        place = "by the kernel" if meanwhile is None else "in the loop"
        for op in written:
            yield Obstacle(
                "source-written",
                f"`{source}`, from which the copy reads, is written {place}",
                "write the results to another array",
                op.span,
            )
        if any(self._changes(e, meanwhile) for e in copy.src.expressions()):
            yield Obstacle(
                "address-from-memory",
                f"the place in `{source}` is read from memory that is written {place}",
                "compute it from indices and parameters",
                copy.span,
            )

    def _is_settled_late(self, cond: Expr, meanwhile: set[int] | None, assigned: set[str]) -> bool:
        """Whether the operations ``meanwhile`` or the variables ``assigned`` may change ``cond``."""
        return self._changes(cond, meanwhile) or any(
            isinstance(x, Var) and x.name in assigned for x in terms(cond)
        )

    def _changes(self, e: Expr, meanwhile: set[int] | None) -> bool:
        """Whether ``e`` reads memory that the operations ``meanwhile`` write; None: memory that may not be read
        elsewhere, or that the kernel writes."""
        for x in terms(e):
            if isinstance(x, FragmentElement):
                return True
            if isinstance(x, Element):
                base = x.view.base
                writes = self.writes.get(base.name, ())
                if meanwhile is None and (base.name not in self.parameters or writes):
                    return True
                if base.space is Space.LOCAL or (meanwhile and any(id(op) in meanwhile for op in writes)):
                    return True
        return False

    def _of_buffer(self, copy: t.Copy, name: str, body: t.Body) -> Iterator[Obstacle]:
        """Whether all accesses to the buffer follow ``copy`` in ``body``, which directly contains it."""
        at = next(i for i, op in enumerate(body) if op is copy)
        after = {id(op) for op in walk(body[at + 1 :])}
        for op in self.writes.get(name, ()):
            if op is not copy and id(op) not in after:
                yield Obstacle(
                    "written-elsewhere",
                    f"`{name}` is also written elsewhere than after the copy, in the same iteration",
                    "give the other data a shared buffer of its own",
                    op.span,
                )
        for op in self.reads.get(name, ()):
            if id(op) in after:
                yield from self._of_load(op, name, after)
            elif any(op is x for x in walk(body)):
                yield Obstacle(
                    "read-before-copy",
                    f"`{name}` is read before the copy: the data are from the iteration before",
                    "read the tile in the iteration that copies it",
                    op.span,
                )
            else:
                branch = self._branch(body)
                instead = "copy in every iteration, and put the condition around the use of the tile"
                yield Obstacle(
                    "read-outside-loop",
                    f"`{name}` is read outside the {'branch' if branch else 'loop'} that copies into it",
                    instead if branch else "copy the tile again where it is needed, into a buffer of its own",
                    op.span,
                )

    def _branch(self, body: t.Body) -> bool:
        return any(isinstance(s.op, t.If) and (body is s.op.then or body is s.op.otherwise) for s in self.sites)

    def _of_load(self, op: t.Op, name: str, after: set[int]) -> Iterator[Obstacle]:
        """A fragment may read its shared tile as late as its last use: that use has to be in the iteration.

        One in registers reads it at once.
        """
        if not isinstance(op, t.Load) or op.fragment.name in self.registers:
            return
        fragment, seen = op.fragment.name, False
        for use in self.fragments.get(fragment, ()):
            seen = seen or use is op
            if id(use) not in after or not seen:
                yield Obstacle(
                    "fragment-used-later",
                    f"the tile that `{fragment}` loads from `{name}` is used in another iteration",
                    "use it in the iteration that loads it",
                    use.span,
                )
                return


def by_hand(body: t.Body) -> tuple[Obstacle, ...]:
    """The first operation of ``body`` with which a program pipelines or specialises by itself, as an obstacle."""
    for op in walk(body):
        copy = isinstance(op, t.Copy) and (op.asynchronous or op.event or op.future or op.after or op.multicast)
        role = isinstance(op, (t.InThreads, t.Parallel)) and op.asynchronous
        if copy or role or isinstance(op, _HAND_WRITTEN) or rotated(op):
            text = "the program has events, roles or asynchronous copies of its own"
            change = "use synchronous copies and no events, or write the whole pipeline by hand"
            return (Obstacle("hand-written", text, change, op.span),)
    return ()


def _of_loop(loop: t.For | t.While, parents: tuple[t.Op, ...], role: bool) -> Iterator[Obstacle]:
    if isinstance(loop, t.While) and not role:
        yield Obstacle(
            "while-loop", "the number of iterations is not known in advance", "use `foreach`", loop.span
        )
    elif jumps(loop) and not role:
        yield Obstacle(
            "early-exit",
            "a `break` or `continue` may end an iteration early",
            "let every iteration run to its end, and put a condition around the work",
            loop.span,
        )
    yield from by_hand(loop.body)
    if any(isinstance(p, t.InThreads) and p.asynchronous for p in parents):
        yield Obstacle(
            "role", "the loop is inside a role of the program", "write the kernel without roles", loop.span
        )
