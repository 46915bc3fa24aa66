"""The state of lowering one launch: values of names, storage, scope instances, parameters; the table of
handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeVar

from tilemma.arithmetic.integers import Range
from tilemma.forking import cached_property
from tilemma.ir import tile, walk
from tilemma.ir.expr import Expr
from tilemma.ir.lane import Imm, LaneLocal, Reg, Special
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.ranges import Known, factors
from tilemma.ir.tile import Alloc, ArrayFacts, Kernel, Op
from tilemma.ir.types import Buffer, Contract, Level, View
from tilemma.ir.usage import nonzero
from tilemma.ir.variables import variable_ranges
from tilemma.records import record
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.matrix import Matrix
from tilemma.targets.ptx.lower.params import Parameters
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.value_numbering import ValueNumbering


@record
class Instance:
    """The executing instance of a scope: ``threads`` threads of the CTA from ``first`` on.

    ``index``: its number among its siblings.  ``first`` is a multiple of ``aligned``.  ``acts``: for a single
    thread in an `Apply`, whether it acts for all lanes that hold the same element.
    """

    level: Level
    threads: int
    index: Linear
    first: Linear
    aligned: int
    acts: Reg | bool = True


@record(frozen=False)
class RegisterTile:
    """A fragment in registers: the registers of each atom, by the atom's position along the tile's two axes."""

    plan: FragmentPlan
    regs: dict[tuple[int, int], tuple[Reg, ...]]


@record
class SharedTile:
    """An operand that the instruction reads from shared memory: its view, and the view's position in the
    buffer."""

    plan: FragmentPlan
    view: View
    placed: Matrix


Tile = RegisterTile | SharedTile
FragmentKey = tuple[str, tuple[int, ...]]


@record
class Visit:
    """The element that `Apply` visits: its atom, its value number in the atom, and its register."""

    fragment: FragmentKey
    atom: tuple[int, int]
    value: int
    register: Reg


@record
class Cluster:
    """The blocks of a cluster: their number, the extents of their indices, and whether they use distributed shared
    memory."""

    size: int
    extents: tuple[tuple[str, int], ...]
    uses_distributed_shared_memory: bool


@record(frozen=False, slots=False)
class Lowering:
    """The state of one launch being lowered."""

    kernel: Kernel
    arch: str
    threads: int
    # The extents of the launch's blocks and clusters, and the dimensions that the enclosing loops prove to be at
    # least 1.
    grid: tuple[Expr, ...] = ()
    running: frozenset[str] = frozenset()
    e: Emitter = field(default_factory=Emitter)
    params: Parameters = field(default_factory=Parameters)
    indices: dict[str, Linear] = field(default_factory=dict)
    variables: dict[str, Reg] = field(default_factory=dict)
    allocs: dict[str, Alloc] = field(default_factory=dict)
    fragments: dict[FragmentKey, Tile] = field(default_factory=dict)
    declared: dict[str, tile.DeclareFragment] = field(default_factory=dict)
    contracts: dict[str, tuple[str, Contract]] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)
    locals: list[LaneLocal] = field(default_factory=list)
    visiting: Visit | None = None
    # The CSE table of loads from arrays that are not written meanwhile, by address and predicate; None: no CSE.
    cse_loads: dict[Any, Reg] | None = None
    # The predicate under which the current expression is evaluated: the untaken side of `?:` reads no memory.
    guard: Reg | bool = True
    events: dict[str, tile.DeclareEvent] = field(default_factory=dict)
    # The mbarrier phase parities that the next waits for each event use: a bit for each slot, or one bit for all.
    phases: dict[str, Reg] = field(default_factory=dict)
    # The constant part of the first descriptor with the same variable part, in bytes from the start of shared
    # memory.
    descriptor_bases: dict[object, int] = field(default_factory=dict)
    # What shared addresses that differ in constants alone have in common: see `memory.shared_address`.
    shared_families: dict[object, Any] = field(default_factory=dict)
    # The current offset of each buffer whose name rotates, in bytes from the start of shared memory.
    rotating: dict[str, Reg] = field(default_factory=dict)
    value_numbers: ValueNumbering = field(default_factory=ValueNumbering)
    # The number of blocks or clusters: the value number of the extent, its bounds and its special register.
    launched: tuple[int, Range, str] | None = None
    # Expressions that a register holds, by their value numbers.
    held: dict[int, Linear] = field(default_factory=dict)
    # By the index of a loop over tiles: the places of its first loads, computed at the kernel's start.
    first_places: dict[str, Any] = field(default_factory=dict)
    cluster: Cluster | None = None
    # Blocks for which a multiprocessor has registers.
    min_blocks: int = 1
    # The predicate of the elected thread in a role that one thread executes; whether roles use setmaxnreg.
    solo: Reg | None = None
    reallocates: bool = False

    def __post_init__(self) -> None:
        for op in walk.walk(self.kernel.body):
            match op:
                case Alloc():
                    self.allocs[op.buffer.name] = op
                case tile.DeclareFragment():
                    self.declared[op.name] = op
                case tile.DeclareEvent():
                    self.events[op.event.name] = op
                case tile.Mma():
                    for role, operand in (("A", op.a), ("B", op.b), ("C", op.acc)):
                        if isinstance(operand, tile.FragmentRef):
                            self.contracts.setdefault(operand.name, (role, op.contract))

    # ---- walking ---------------------------------------------------------------------------------------

    def body(self, ops: Iterable[Op]) -> None:
        """Lower ``ops`` in order at the end of the innermost open region."""
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        before = self.e.span
        if op.span is not None:
            self.e.span = op.span
        handler = HANDLERS.get(type(op))
        if handler is None:
            raise NotLowered(
                op.span,
                what=f"`{type(op).__name__}`",
                arch=self.arch,
                expected_what="an operation that this version generates code for",
                remedy="run it on the CPU reference, or express it with other operations",
            )
        try:
            handler(self, op)
        except NotLowered as e:
            e.span = e.span or op.span
            raise
        self.e.span = before

    # ---- threads ---------------------------------------------------------------------------------------

    @cached_property
    def thread(self) -> Reg:
        """The thread's number in the CTA."""
        return self.e.special("tid.x", "thread", self.threads)

    @cached_property
    def lane(self) -> Linear:
        """The thread's number in its warp."""
        if self.threads <= 32:
            return Linear.of(self.thread)
        with self.e.at_root():
            lane = self.e.pure("and.b32", "s32", self.thread, Imm(31), hint="lane")
        return Linear.of(self.e.bounded(lane, 0, 31))

    @cached_property
    def warp(self) -> Linear:
        """The warp's number in the CTA, in a register that ptxas knows to be uniform in the warp (after a
        shuffle)."""
        if self.threads <= 32:
            return Linear()
        with self.e.at_root():
            first = self.e.pure("shr.u32", "s32", self.thread, Imm(5), hint="warp_of_thread")
            same = self.e.pure(
                "shfl.sync.idx.b32", "s32", first, Imm(0), Imm(31), Imm(-1, "b32"), hint="warp", uniform=True
            )
        return Linear.of(self.e.bounded(same, 0, self.threads // 32 - 1))

    @property
    def instance(self) -> Instance:
        return self.instances[-1]

    @property
    def collective(self) -> Instance:
        """The innermost instance of a block or a group: its threads execute a collective statement."""
        return next(i for i in reversed(self.instances) if i.level.kind != "thread")

    def enclosing(self, level: Level) -> Instance:
        """The innermost enclosing instance of ``level``."""
        for i in reversed(self.instances):
            if i.level == level:
                return i
        raise AssertionError(f"no instance of {level} here")

    def thread_in(self, instance: Instance) -> Linear:
        """The thread's number within ``instance``."""
        n = instance.threads
        if n == 1:
            return Linear()
        if n == 32:
            return self.lane
        if instance.first.known == 0:
            return Linear.of(self.thread)
        if n & (n - 1) == 0 and instance.aligned % n == 0:
            local = self.e.pure("and.b32", "s32", self.thread, Imm(n - 1), hint=f"thread_of_{n}")
        else:
            local = self.e.register(Linear.of(self.thread) - instance.first, hint=f"thread_of_{n}")
        return Linear.of(self.e.bounded(local, 0, n - 1))

    def warp_in(self, instance: Instance) -> Linear:
        """The warp's number within ``instance``, which consists of whole warps."""
        assert instance.threads % 32 == 0
        n = instance.threads // 32
        if n == 1:
            return Linear()
        if instance.first.known == 0:
            return self.warp
        if n & (n - 1) == 0 and instance.aligned % instance.threads == 0:
            local = self.e.pure("and.b32", "s32", self.e.register(self.warp), Imm(n - 1), hint=f"warp_of_{n}")
        else:
            local = self.e.register(self.warp - instance.first.divided(32), hint=f"warp_of_{n}")
        return Linear.of(self.e.bounded(local, 0, n - 1))

    def elected(self, instance: Instance) -> Reg | bool:
        """Whether this thread is the first of ``instance``."""
        if instance.threads == 1:
            return instance.acts
        return self.e.compare("eq", self.thread_in(instance), Linear(), hint="first")

    def elect(self) -> Reg | bool:
        """Whether this thread acts for the innermost instance here."""
        return self.solo if self.solo is not None else self.elected(self.instance)

    @contextmanager
    def where(self, cond: Reg | bool) -> Iterator[None]:
        """Memory reads lowered inside are predicated by ``cond``."""
        before, self.guard = self.guard, self.e.both(self.guard, cond, hint="taken")
        try:
            yield
        finally:
            self.guard = before

    @contextmanager
    def within(self, instance: Instance) -> Iterator[None]:
        self.instances.append(instance)
        try:
            yield
        finally:
            self.instances.pop()

    # ---- storage ---------------------------------------------------------------------------------------

    @cached_property
    def shared(self) -> Reg:
        """Address of the CTA's dynamic shared memory, as the 32-bit address that shared accesses take."""
        with self.e.at_root():
            return self.e.pure("mov.u32", "b32", Special("shared"), hint="shared_base", uniform=True)

    @cached_property
    def nonzero(self) -> frozenset[str]:
        """The dimensions that are at least 1 in every block that runs."""
        return nonzero(self.kernel) | {d for extent in self.grid for d in factors(extent)}

    @cached_property
    def known(self) -> Known:
        """The bounds that hold wherever the kernel reads its variables."""
        return Known(self.nonzero, variable_ranges(walk.walk(self.kernel.body), self.nonzero))

    def interval(self, x: Expr) -> Range:
        """Bounds on ``x``, an integer or a condition."""
        return self.known.interval(x)

    def divisor_range(self, x: Expr, known: Range) -> Range:
        """``known``, the range of the divisor ``x``, without 0 where the enclosing loops prove that it is not 0.

        The result is valid for this evaluation only: it must not become the range of a register, which other code
        may read outside of these loops.
        """
        low, high = known
        if low <= 0 <= high:
            inside = Known(self.nonzero | self.running, self.known.variables)
            low = max(low, inside.interval(x)[0])
        return low, high

    @contextmanager
    def iterating(self, extent: Expr) -> Iterator[None]:
        """Inside, ``extent``, the trip count of a loop, is at least 1."""
        before, self.running = self.running, self.running | factors(extent)
        try:
            yield
        finally:
            self.running = before

    def facts(self, buffer: Buffer) -> ArrayFacts:
        """The facts about the array parameter ``buffer``; the default is contiguous rows, aligned to 1 byte."""
        for p in self.kernel.arrays:
            if p.buffer.name == buffer.name and p.facts is not None:
                return p.facts
        return ArrayFacts(contiguous=buffer.rank - 1 if buffer.rank else None, alignment=1)


Handler = Callable[[Lowering, Op], None]
HANDLERS: dict[type[Op], Handler] = {}
_O = TypeVar("_O", bound=Op)


def lowers(*kinds: type[Op]) -> Callable[[Callable[[Lowering, _O], None]], Callable[[Lowering, _O], None]]:
    """A decorator: registers the function that lowers operations of these classes."""

    def register(f: Callable[[Lowering, _O], None]) -> Callable[[Lowering, _O], None]:
        for kind in kinds:
            HANDLERS[kind] = f  # type: ignore[assignment]
        return f

    return register
