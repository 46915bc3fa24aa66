"""Legality of software pipelining: the copies of a loop that may be issued iterations ahead, and what prevents it
for the others.

A copy from global into shared memory can be issued ahead if its buffer can have one copy for each stage: only this
copy writes the buffer, every read follows it in the same iteration, and nothing writes its source meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilemma.errors import Span
from tilemma.ir.effects import element_reads, read_views, variables_set, written_views
from tilemma.ir.expr import Element, Expr, FragmentElement, Var
from tilemma.ir.expr import walk as terms
from tilemma.ir.tile import (
    Alloc,
    ArrayParameter,
    Body,
    Commit,
    Copy,
    DeclareEvent,
    For,
    If,
    InThreads,
    Kernel,
    Load,
    Op,
    Parallel,
    SwapFutures,
    TriggerEvent,
    WaitEvent,
    WaitFuture,
    While,
)
from tilemma.ir.types import Space
from tilemma.ir.walk import jumps, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.scope import Site, sites
from tilemma.records import record

_HAND_WRITTEN = (DeclareEvent, WaitEvent, TriggerEvent, WaitFuture, SwapFutures, Commit)


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

    ``ahead``: those that may be issued iterations ahead, all directly in the loop's body.  ``obstacles``: one or
    more for each other copy.  ``stepped``: variables that the sources in ``ahead`` read and the loop assigns.
    ``parents``: the operations around the loop, outermost first.
    """

    loop: For | While
    parents: tuple[Op, ...]
    copies: tuple[Copy, ...]
    ahead: tuple[Copy, ...]
    obstacles: tuple[Obstacle, ...]
    stepped: frozenset[str]


def is_load(op: Op) -> bool:
    """Whether ``op`` copies from global into shared memory."""
    return isinstance(op, Copy) and (op.src.base.space, op.dst.base.space) == (Space.GLOBAL, Space.SHARED)


def loop_copies(kernel: Kernel) -> tuple[LoopCopies, ...]:
    """The analysis of each loop that is the innermost around a copy from global into shared memory."""
    legality = _Legality(kernel)
    return tuple(legality.loop(site) for site in legality.sites if _copies(site.op))


def _copies(loop: Op) -> tuple[tuple[Copy, tuple[Op, ...]], ...]:
    """The copies whose innermost loop is ``loop``, with the operations between."""
    if not isinstance(loop, (For, While)):
        return ()
    found = []
    for s in sites(loop.body):
        if isinstance(s.op, Copy) and is_load(s.op) and not any(isinstance(p, (For, While)) for p in s.parents):
            found.append((s.op, s.parents))
    return tuple(found)


class _Legality:
    """The accesses of a kernel, by buffer and fragment."""

    def __init__(self, kernel: Kernel) -> None:
        self.sites = tuple(sites(kernel.body))
        self.writes: dict[str, list[Op]] = {}
        self.reads: dict[str, list[Op]] = {}
        self.allocs: dict[str, Alloc] = {}
        self.fragments: dict[str, list[Op]] = {}
        for site in self.sites:
            op = site.op
            if isinstance(op, Alloc):
                self.allocs[op.buffer.name] = op
            for v in written_views(op):
                self.writes.setdefault(v.base.name, []).append(op)
            for v in read_views(op):
                self.reads.setdefault(v.base.name, []).append(op)
            used = {ref.name for _, ref in fragment_uses(op)}
            used |= {x.fragment for x in element_reads(op) if isinstance(x, FragmentElement)}
            for name in used:
                self.fragments.setdefault(name, []).append(op)
        self.parameters = {p.buffer.name for p in kernel.params if isinstance(p, ArrayParameter)}

    def loop(self, site: Site) -> LoopCopies:
        loop = site.op
        assert isinstance(loop, (For, While))
        found = _copies(loop)
        copies = tuple(copy for copy, _ in found)
        obstacles = list(_of_loop(loop, site.parents))
        ahead: list[Copy] = []
        if not obstacles:
            for copy, between in found:
                against = list(self._of_copy(copy, between, loop))
                obstacles += against
                if not against:
                    ahead.append(copy)
        assigned = {v.name for op in walk(loop.body) for v in variables_set(op)}
        read = {x.name for c in ahead for e in c.src.expressions() for x in terms(e) if isinstance(x, Var)}
        return LoopCopies(loop, site.parents, copies, tuple(ahead), tuple(obstacles), frozenset(assigned & read))

    def _of_copy(self, copy: Copy, between: tuple[Op, ...], loop: For | While) -> Iterator[Obstacle]:
        name, source = copy.dst.base.name, copy.src.base.name
        for op in between:
            if isinstance(op, (If, InThreads)):
                yield Obstacle(
                    "conditional-copy",
                    f"the copy into `{name}` is under a condition",
                    "copy in every iteration, and put the condition around the use of the tile",
                    op.span,
                )
            elif isinstance(op, Parallel):
                yield Obstacle(
                    "copy-by-instances",
                    f"each instance of a `parallel` inside the loop executes the copy into `{name}`",
                    "move the copy out of the `parallel`, and copy the tiles of all instances at once",
                    copy.span,
                )
        if not copy.dst.is_whole or copy.dst.slot is not None or copy.dst.base.copies:
            yield Obstacle(
                "part-of-a-buffer",
                f"the copy writes a part of `{name}`",
                "give the copied tile a shared buffer of its own",
                copy.span,
            )
        if not between:
            yield from self._of_buffer(copy, name, loop)
        for op in self.writes.get(source, ()):
            yield Obstacle(
                "source-written",
                f"`{source}`, from which the copy reads, is written by the kernel",
                "write the results to another array",
                op.span,
            )
        if any(self._changes(e) for e in copy.src.expressions()):
            yield Obstacle(
                "address-from-memory",
                f"the place in `{source}` is read from memory that the kernel writes",
                "compute it from indices and parameters",
                copy.span,
            )

    def _changes(self, e: Expr) -> bool:
        """Whether ``e`` reads memory other than parameters that the kernel only reads."""
        for x in terms(e):
            if isinstance(x, FragmentElement):
                return True
            if isinstance(x, Element):
                name = x.view.base.name
                if name not in self.parameters or name in self.writes:
                    return True
        return False

    def _of_buffer(self, copy: Copy, name: str, loop: For | While) -> Iterator[Obstacle]:
        for op in self.writes.get(name, ()):
            if op is not copy:
                yield Obstacle(
                    "written-elsewhere",
                    f"`{name}` is also written outside the copy",
                    "give the other data a shared buffer of its own",
                    op.span,
                )
        alloc = self.allocs.get(name)
        if alloc is not None and alloc.init is not None:
            yield Obstacle(
                "initialised-buffer",
                f"`{name}` is initialised where it is declared",
                "leave the initial value out: the copy writes all of the buffer",
                alloc.span,
            )
        at = next(i for i, op in enumerate(loop.body) if op is copy)
        after = {id(op) for op in walk(loop.body[at + 1 :])}
        for op in self.reads.get(name, ()):
            if id(op) in after:
                yield from self._of_load(op, name, after)
            elif any(op is x for x in walk(loop.body)):
                yield Obstacle(
                    "read-before-copy",
                    f"`{name}` is read before the copy: the data are from the iteration before",
                    "read the tile in the iteration that copies it",
                    op.span,
                )
            else:
                yield Obstacle(
                    "read-outside-loop",
                    f"`{name}` is read outside the loop that copies into it",
                    "copy the tile again where it is needed, into a buffer of its own",
                    op.span,
                )

    def _of_load(self, op: Op, name: str, after: set[int]) -> Iterator[Obstacle]:
        """A fragment may read its shared tile as late as its last use: that use has to be in the iteration."""
        if not isinstance(op, Load):
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


def by_hand(body: Body) -> tuple[Obstacle, ...]:
    """The first operation of ``body`` with which a program pipelines or specialises by itself, as an obstacle."""
    for op in walk(body):
        copy = isinstance(op, Copy) and (op.asynchronous or op.event or op.future or op.after)
        role = isinstance(op, (InThreads, Parallel)) and op.asynchronous
        if copy or role or isinstance(op, _HAND_WRITTEN):
            text = "the program has events, roles or asynchronous copies of its own"
            change = "use synchronous copies and no events, or write the whole pipeline by hand"
            return (Obstacle("hand-written", text, change, op.span),)
    return ()


def _of_loop(loop: For | While, parents: tuple[Op, ...]) -> Iterator[Obstacle]:
    if isinstance(loop, While):
        yield Obstacle(
            "while-loop", "the number of iterations is not known in advance", "use `foreach`", loop.span
        )
    elif jumps(loop):
        yield Obstacle(
            "early-exit",
            "a `break` or `continue` may end an iteration early",
            "let every iteration run to its end, and put a condition around the work",
            loop.span,
        )
    yield from by_hand(loop.body)
    if any(isinstance(p, InThreads) and p.asynchronous for p in parents):
        yield Obstacle(
            "role", "the loop is inside a role of the program", "write the kernel without roles", loop.span
        )
