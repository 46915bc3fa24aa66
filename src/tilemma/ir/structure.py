"""A kernel under construction: its names and parameters, the open bodies, and the enclosing control flow.

`tilemma.ir.builder` adds the statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from typing import Any, Literal

from tilemma.dtypes import DType
from tilemma.errors import CompileError, Span
from tilemma.ir import tile as t
from tilemma.ir.constructs import LIMITS
from tilemma.ir.expr import Const, Dim, Expr, Index, Scalar, Var, add, cdiv, const, mul, value_of
from tilemma.ir.grid_barriers import GRID, launches
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.program_points import ProgramPoint, WriteLog
from tilemma.ir.ranges import count_check, loop_index
from tilemma.ir.ranked_clusters import RankedCluster, nested, surplus, without_surplus_writes
from tilemma.ir.refusals import BadParameter, NotBuiltYet, WrongValue
from tilemma.ir.tiles import Bounded, Scalarlike, Tile, extent_of, scalar
from tilemma.ir.types import BLOCK, CLUSTER, Buffer, Event, Level, Space
from tilemma.ir.usage import is_size
from tilemma.records import record, replace

# Each analysis of pending accesses takes twice as long for each nested loop.
MAX_LOOPS = 10


class ElseWithoutIf(CompileError):
    code = "else-without-if"
    found = "`else` does not follow an `if`"
    expected = "`else` directly after the block of its `if`"
    fix = "move it there, or remove it"
    python_fix = "write `with else_():` directly after the block of `with if_(c):`, or remove it"


class LoopsTooDeep(CompileError):
    code = "loops-too-deep"
    found = "more than {limit} loops in one another"
    expected = "at most {limit}: dependences on the previous iteration are followed through all of them"
    fix = "join loops: one over the product of their extents, `i / n` and `i % n` in place of two indices"
    python_fix = "join loops: one over the product of their extents, `i // n` and `i % n` in place of two indices"


@record(frozen=False, slots=False)
class ValueNumber:
    """Names, and the operations read so far, by the bodies that are open.

    ``span`` is the statement being read; operations take it unless a call gives another.
    """

    name: str
    span: Span | None = None
    params: list[t.Parameter] = field(default_factory=list)
    returns: Buffer | None = None
    pipeline: PipelineSettings | None = None
    # Variables that get their value once.
    fixed: set[str] = field(default_factory=set)
    _stack: list[list[t.Op]] = field(default_factory=lambda: [[]])
    _used: dict[str, int] = field(default_factory=dict)
    _levels: list[Level | None] = field(default_factory=list)
    # For each open level the start of its body, and the events of its named barriers.
    _starts: list[tuple[ProgramPoint, dict[int, Event]]] = field(default_factory=list)
    _history: WriteLog = field(default_factory=WriteLog)
    # Open operations that run their body any number of times: loops, and (once) the outermost parallel.
    _repeats: list[int] = field(default_factory=list)
    _loops: int = 0
    _cooperative: bool = False
    # Whether the current branch never runs: its condition is a constant.
    unreachable: bool = False
    # The clusters by rank whose grid follows.
    _ranked: RankedCluster | None = None

    # ---- names and parameters ----------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """``name``, or ``name.1``, ``name.2``, .. where it is taken."""
        count = self._used.get(name, -1) + 1
        self._used[name] = count
        return name if count == 0 else self.fresh_suffix(name, count)

    def fresh_suffix(self, name: str, count: int) -> str:
        candidate = f"{name}.{count}"
        self._used[candidate] = 0
        return candidate

    def array_param(
        self, name: str, dtype: DType, dims: Sequence[str | int | None], span: Span | None = None
    ) -> Tile:
        """An array parameter; a dimension is a name, a number, or None (its own, unnamed)."""
        most = LIMITS["rank"].most
        if len(dims) > most:
            problem, fix = f"has {len(dims)} dimensions", f"use at most {most} dimensions"
            raise BadParameter(span or self.span, name=name, problem=problem, fix_text=fix)
        shape: list[Expr] = []
        for i, d in enumerate(dims):
            if isinstance(d, int):
                shape.append(const(d))
                continue
            dim = Dim(d if d is not None else f"{name}_{i}")
            # No index or variable may take the name of a dimension.
            self._used.setdefault(dim.name, 0)
            shape.append(dim)
        buffer = Buffer(self.fresh(name), dtype, tuple(shape), Space.GLOBAL)
        self._add_parameter(t.ArrayParameter(buffer, span=span or self.span))
        return Tile.whole(buffer)

    def scalar_param(self, name: str, dtype: DType, span: Span | None = None) -> Scalar:
        s = Scalar(self.fresh(name), dtype)
        self._add_parameter(t.ScalarParameter(s, span=span or self.span))
        return s

    def _add_parameter(self, p: t.Parameter) -> None:
        LIMITS["parameters"].checked(len(self.params) + 1, f"`{self.name}`", p.span)
        self.params.append(p)

    @property
    def host_operations(self) -> list[t.Op]:
        """The operations at kernel level, to be rearranged."""
        return self._stack[0]

    def finish(self) -> t.Kernel:
        """The kernel read so far."""
        assert len(self._stack) == 1, "a body is still open"
        body = tuple(self._stack[0])
        params = tuple(
            replace(p, scratch=False) if isinstance(p, t.ArrayParameter) and p.buffer == self.returns else p
            for p in self.params
        )
        return t.Kernel(self.name, params, body, self.returns, self.pipeline, span=self.span)

    # ---- structure ---------------------------------------------------------------------------------------

    def emit(self, op: t.Op) -> t.Op:
        """Append ``op`` to the body being built; without a span it gets the current one."""
        if op.span is None:
            op = replace(op, span=self.span)
        self._stack[-1].append(op)
        self._history.note(op)
        return op

    # ---- points -----------------------------------------------------------------------------------------

    def point(self) -> ProgramPoint:
        """The current point of the program being built."""
        body = self._stack[-1]
        return ProgramPoint(body, len(body), self._history.count, tuple(self._repeats))

    def is_open(self, point: ProgramPoint) -> bool:
        """Whether the declarations visible at ``point`` are visible here."""
        return id(point.body) in map(id, self._stack)

    def may_differ(self, names: frozenset[str], point: ProgramPoint, memory: bool) -> bool:
        """Whether a read of ``names`` (``memory``: shared or global memory among them) may give another value here
        than at ``point``: a write occurred since, or a loop was entered, whose body may still write."""
        return tuple(self._repeats) != point.repeats or self._history.changed(names, point.count, memory)

    def emitted_since(self, point: ProgramPoint) -> int:
        """Operations since ``point``, without those put in at earlier points."""
        return self._history.emitted(point.count)

    def insert(self, point: ProgramPoint, ops: Sequence[t.Op]) -> None:
        """Put ``ops`` where ``point`` was taken."""
        self._history.insert(point, ops)

    def fix(self, e: Expr) -> Var:
        """A variable for the value of ``e``, which the caller declares; it is not assigned again."""
        var = Var(self.fresh("value"), e.type)
        self.fixed.add(var.name)
        return var

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Reads inside may run any number of times."""
        self._repeats.append(self._history.count)
        try:
            yield
        finally:
            self._repeats.pop()

    @contextmanager
    def _body(self) -> Iterator[list[t.Op]]:
        ops: list[t.Op] = []
        self._stack.append(ops)
        try:
            yield ops
        finally:
            self._stack.pop()

    @contextmanager
    def _loop(self, span: Span | None) -> Iterator[list[t.Op]]:
        if len(self._repeats) > MAX_LOOPS:
            raise LoopsTooDeep(span, limit=MAX_LOOPS)
        self._loops += 1
        try:
            with self.repeated(), self._body() as ops:
                yield ops
        finally:
            self._loops -= 1

    @property
    def inside_parallel(self) -> bool:
        return bool(self._levels)

    @property
    def in_loop(self) -> bool:
        """Whether a jump has a loop to leave, with no parallel between."""
        return self._loops > 0

    @property
    def level(self) -> Level | None:
        """The innermost parallel level that is open (None: at kernel level, or not annotated)."""
        return self._levels[-1] if self._levels else None

    def barrier(self, level: Level | None) -> None:
        """`sync.barrier`.  In a grid of cooperating blocks the level of blocks means all of them."""
        whole = self._cooperative and level == BLOCK
        if whole and self._ranked is not None:
            raise NotBuiltYet(
                self.span,
                what="a barrier of all blocks of a cooperative launch in clusters by rank",
                fix_text="divide the work into two `parallel`s, which run one after the other",
            )
        self.emit(t.Sync("barrier", GRID if whole else level))

    def named_barrier(self, number: int, threads: int, span: Span | None = None) -> Event:
        """The event whose generations are the uses of the block's barrier ``number``: ``threads`` threads arrive.

        Raises WrongValue where the barrier has another number of threads elsewhere.
        """
        blocks = [i for i, level in enumerate(self._levels) if level == BLOCK]
        outside = [i for i, level in enumerate(self._levels) if level is None or level.kind != "cluster"]
        start, events = self._starts[(blocks[-1:] or outside[:1])[0]]
        if number not in events:
            events[number] = Event(self.fresh(f"barrier_{number}"), 0, threads)
            self.insert(start, [t.DeclareEvent(events[number], span=span)])
        have = events[number].threads
        if have != threads:
            raise WrongValue(
                span,
                what=f"barrier {number}",
                got=f"{threads} threads, after {have}",
                wanted="one number of threads for each barrier of a block",
                fix_text="use a barrier of its own for each number of threads",
            )
        return events[number]

    @contextmanager
    def parallel(
        self,
        names: Sequence[str],
        extents: Sequence[Scalarlike],
        level: Level | None = None,
        *,
        asynchronous: bool = False,
        cooperative: bool = False,
        min_blocks: int | None = None,
        max_registers: int | None = None,
        overlap: bool | Literal["before"] = False,
        drained: bool = False,
        span: Span | None = None,
    ) -> Iterator[tuple[Bounded, ...]]:
        span = span or self.span
        if drained and level != CLUSTER:
            raise WrongValue(
                span,
                what="a level whose blocks end without a barrier (`drained`)",
                got="no clusters" if level is None else f"the level `{level}`",
                wanted="a level of clusters, whose blocks wait for each other where they end",
                fix_text="give it to the `parallel` of the clusters, or remove it",
            )
        outermost, loops, within = not self._levels, self._loops, self._cooperative
        ranked = self._ranked if outermost else None
        indices, places = self._indices(names, extents, level, ranked)
        self._levels.append(level)
        self._loops = 0
        self._cooperative = within or (cooperative and any(value_of(i.extent) != 1 for i in indices))
        try:
            with self.repeated() if outermost else nullcontext(), self._body() as ops:
                self._starts.append((self.point(), {}))
                yield places
        finally:
            self._levels.pop()
            del self._starts[len(self._levels) :]
            self._loops, self._cooperative = loops, within
        options: dict[str, Any] = {
            "asynchronous": asynchronous,
            "cooperative": cooperative,
            "min_blocks": min_blocks,
            "max_registers": max_registers,
            "overlap": overlap,
            "drained": drained,
        }
        if ranked is None:
            op = t.Parallel(indices, tuple(ops), level, **options, span=span)
            for launch in launches(op, self.fresh) if outermost else (op,):
                self.emit(launch)
            return
        body = tuple(ops)
        beyond = surplus(ranked.ranks, places)
        if beyond is not None:
            body, unguarded = without_surplus_writes(body, beyond[0])
            if unguarded:
                text = "blocks without work in a cluster would write to global memory asynchronously"
                self.require(beyond[1], text, span)
        self.emit(nested(ranked, indices, body, {"level": BLOCK, **options}, span))

    def _indices(
        self,
        names: Sequence[str],
        extents: Sequence[Scalarlike],
        level: Level | None,
        ranked: RankedCluster | None,
    ) -> tuple[tuple[Index, ...], tuple[Bounded, ...]]:
        """The indices of a level, and their values: of a grid in clusters by rank those of the clusters."""
        if ranked is None:
            indices = tuple(Index(self.fresh(n), extent_of(e)) for n, e in zip(names, extents, strict=True))
            return indices, tuple(Bounded.of(i) for i in indices)
        if ranked.used or level not in (None, BLOCK) or len(extents) < len(ranked.ranks):
            problem = "with a second level inside" if ranked.used else "with another level directly inside"
            raise ranked.refused(
                problem if level not in (None, BLOCK) or ranked.used else "with fewer indices inside"
            )
        ranked.used = True
        found: list[Index] = []
        places = []
        for i, (name, extent) in enumerate(zip(names, extents, strict=True)):
            count = extent_of(extent)
            if i >= len(ranked.ranks):
                found.append(Index(self.fresh(name), count))
                places.append(Bounded.of(found[-1]))
                continue
            rank = ranked.ranks[i]
            found.append(Index(self.fresh(f"{name}_cluster"), cdiv(count, rank.extent)))
            places.append(Bounded(add(mul(found[-1], rank.extent), rank), count))
        return tuple(found), tuple(places)

    @contextmanager
    def ranked_cluster(
        self, names: Sequence[str], extents: Sequence[Scalarlike], *, span: Span | None = None, **options: Any
    ) -> Iterator[tuple[Bounded, ...]]:
        """Clusters by rank (`ir.ranked_clusters`) around a grid; ``options`` are fields of `Parallel`."""
        ranks = tuple(Index(self.fresh(n), extent_of(e)) for n, e in zip(names, extents, strict=True))
        ranked = RankedCluster(ranks, {"level": CLUSTER, **options}, span or self.span)
        if self._levels or self._ranked is not None:
            raise ranked.refused("inside another level")
        self._ranked = ranked
        try:
            yield tuple(Bounded.of(i) for i in ranks)
        finally:
            self._ranked = None
        if not ranked.used:
            raise ranked.refused("without a grid inside")

    @contextmanager
    def foreach(
        self,
        name: str,
        extent: Scalarlike,
        *,
        start: Scalarlike = 0,
        stop: Scalarlike | None = None,
        step: Scalarlike = 1,
        unroll: int | None = None,
        vectorize: int | None = None,
        pipeline: PipelineSettings | None = None,
        span: Span | None = None,
    ) -> Iterator[Bounded]:
        """A loop over ``start .. stop`` (default: ``extent``) of an index bounded by ``extent``."""
        span = span or self.span
        most = extent_of(extent)
        end = most if stop is None else scalar(stop)
        check = count_check(scalar(start), end)
        checked = check is not None and is_size(check)
        if check is not None and checked:
            self.require(check, f"the loop over `{name}` counts to below 2**31", span)
        index = loop_index(self.fresh(name), most, scalar(start), end, checked)
        with self._loop(span) as ops:
            yield Bounded.of(index)
        body = tuple(ops)
        self.emit(t.For(index, scalar(start), end, scalar(step), body, unroll, vectorize, pipeline, span=span))

    @contextmanager
    def while_(self, cond: Expr, span: Span | None = None) -> Iterator[None]:
        span = span or self.span
        with self._loop(span) as ops:
            yield
        self.emit(t.While(cond, tuple(ops), span=span))

    @contextmanager
    def _branch(self, never: bool) -> Iterator[list[t.Op]]:
        """The body of a branch; ``never``: its condition is the constant false."""
        before = self.unreachable
        self.unreachable = before or never
        try:
            with self._body() as ops:
                yield ops
        finally:
            self.unreachable = before

    @contextmanager
    def if_(self, cond: Expr, span: Span | None = None) -> Iterator[None]:
        span = span or self.span
        with self._branch(isinstance(cond, Const) and not cond.value) as ops:
            yield
        self.emit(t.If(cond, tuple(ops), span=span))

    @contextmanager
    def else_(self, span: Span | None = None) -> Iterator[None]:
        """The other branch of the `If` just emitted; ElseWithoutIf when there is none."""
        before = self._stack[-1]
        last = before[-1] if before else None
        if not isinstance(last, t.If) or last.otherwise:
            raise ElseWithoutIf(span or self.span)
        with self._branch(isinstance(last.cond, Const) and bool(last.cond.value)) as ops:
            yield
        at = next(i for i, op in enumerate(before) if op is last)
        before[at] = replace(last, otherwise=tuple(ops))

    @contextmanager
    def inthreads(self, cond: Expr, asynchronous: bool = False, span: Span | None = None) -> Iterator[None]:
        span = span or self.span
        loops, self._loops = self._loops, 0
        with self._body() as ops:
            yield
        self._loops = loops
        self.emit(t.InThreads(cond, tuple(ops), asynchronous, span=span))

    # ---- requirements ------------------------------------------------------------------------------------

    def require(self, cond: Expr, message: str, span: Span | None = None) -> None:
        """Require ``cond``: checked at launch, or here if the sizes do not determine it."""
        op = t.Assert(cond, message, span=span or self.span)
        if not is_size(cond):
            self.emit(op)
        elif op not in self._stack[0]:
            self._stack[0].append(op)

    def check(self, cond: Expr, message: str) -> None:
        """An assertion of the program: checked at launch if every thread makes it and sizes determine it, else
        here."""
        if self._unconditional and is_size(cond):
            self.require(cond, message)
        else:
            self.emit(t.Assert(cond, message))

    @property
    def _unconditional(self) -> bool:
        """Whether only parallels are open."""
        return len(self._stack) == 1 + len(self._levels)
