"""What lowering knows while it walks one launch: values of names, storage, instances, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tilemma.errors import CompileError
from tilemma.ir import tile, walk
from tilemma.ir.expr import Expr, Var
from tilemma.ir.lane import Imm, LaneLocal, Reg, Special
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import Alloc, ArrayFacts, Kernel, Op
from tilemma.ir.types import Buffer, Contract, Level, View
from tilemma.ir.usage import nonzero
from tilemma.lower.alike import Structures
from tilemma.lower.emitter import Emitter, Value
from tilemma.lower.linear import Linear
from tilemma.lower.params import Parameters
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.lower.memory import Matrix


class NotLowered(CompileError):
    code = "not-lowered"
    found = "{what} has no machine code on {arch}"
    expected = "{expected_what}"
    fix = "{remedy}"


@record
class Instance:
    """The executing instance of a scope: ``threads`` threads of the CTA from ``first`` on.

    ``index`` counts it among its siblings.  ``first`` is a multiple of ``aligned``.
    """

    level: Level
    threads: int
    index: Linear
    first: Linear
    aligned: int


@record(frozen=False)
class RegisterTile:
    """A fragment in registers: those of each atom, by the atom's position along the tile's two axes."""

    plan: FragmentPlan
    regs: dict[tuple[int, int], tuple[Reg, ...]]


@record
class SharedTile:
    """An operand that the instruction reads from shared memory: the view, its indices already replaced."""

    plan: FragmentPlan
    view: View
    placed: Matrix


Tile = RegisterTile | SharedTile
FragmentKey = tuple[str, tuple[int, ...]]


@record
class Visit:
    """The element that `Apply` visits: which value of which atom, and the register holding it now."""

    fragment: FragmentKey
    atom: tuple[int, int]
    value: int
    register: Reg


@record
class Cluster:
    """The blocks of a cluster: how many, their indices' extents, and whether they reach each other's memory."""

    size: int
    extents: tuple[tuple[str, int], ...]
    speaks: bool


@record(frozen=False, slots=False)
class Lowering:
    """The state of one launch being lowered."""

    kernel: Kernel
    arch: str
    threads: int
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
    # What was read last from arrays that stay as they are, by address and predicate; None: nothing is known to.
    recent: dict[Any, Reg] | None = None
    # Holds where the expression being lowered is evaluated at all: the untaken side of `?:` reads nothing.
    guard: Reg | bool = True
    events: dict[str, tile.DeclareEvent] = field(default_factory=dict)
    # The parities of each event's next generations, a bit for each slot, or one where slots are taken in turn.
    phases: dict[str, Reg] = field(default_factory=dict)
    # Where the descriptors of operands that move alike count from, in bytes from the start of shared memory.
    anchors: dict[object, int] = field(default_factory=dict)
    # Where each buffer whose name rotates lies now, in bytes from the start of shared memory.
    rotating: dict[str, Reg] = field(default_factory=dict)
    structures: Structures = field(default_factory=Structures)
    cluster: Cluster | None = None
    # What each variable is set to after its declaration, and those that atomics set.
    assigned: dict[Var, list[Expr]] = field(default_factory=dict)
    from_atomics: set[Var] = field(default_factory=set)
    # The thread that acts in a role which one warp of the instance plays alone; whether roles change their
    # registers.
    solo: Reg | None = None
    reallocates: bool = False

    def __post_init__(self) -> None:
        from tilemma.lower import expressions

        self._expressions = expressions
        for op in walk.walk(self.kernel.body):
            match op:
                case tile.Assign():
                    self.assigned.setdefault(op.var, []).append(op.value)
                case tile.Atomic() if op.result is not None:
                    self.from_atomics.add(op.result)
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

    @property
    def thread(self) -> Reg:
        """The thread's number in the CTA."""
        return self.e.special("tid.x", "thread", self.threads)

    @property
    def lane(self) -> Linear:
        """The thread's number in its warp."""
        if self.threads <= 32:
            return Linear.of(self.thread)
        with self.e.at_root():
            lane = self.e.pure("and.b32", "s32", self.thread, Imm(31), hint="lane")
        return Linear.of(self.e.bounded(lane, 0, 31))

    @property
    def warp(self) -> Linear:
        """The warp's number in the CTA, in a register that the assembler sees to be the same in all lanes."""
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
        """The innermost instance of a block or a group: who executes a collective statement."""
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
        return self.e.compare("eq", self.thread_in(instance), Linear(), hint="first")

    def elect(self) -> Reg | bool:
        """Whether this thread acts for the innermost instance here."""
        return self.solo if self.solo is not None else self.elected(self.instance)

    @contextmanager
    def where(self, cond: Reg | bool) -> Iterator[None]:
        """What is read inside is read only where ``cond`` holds."""
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

    @property
    def shared(self) -> Reg:
        """Address of the CTA's dynamic shared memory, as the 32-bit address that shared accesses take."""
        with self.e.at_root():
            return self.e.pure("mov.u32", "b32", Special("shared"), hint="shared_base", uniform=True)

    @cached_property
    def nonzero(self) -> frozenset[str]:
        """The dimensions that are at least 1."""
        return nonzero(self.kernel)

    def facts(self, buffer: Buffer) -> ArrayFacts:
        """What is known of the array parameter ``buffer``; rows contiguous where nothing was said."""
        for p in self.kernel.arrays:
            if p.buffer.name == buffer.name and p.facts is not None:
                return p.facts
        return ArrayFacts(contiguous=buffer.rank - 1 if buffer.rank else None, alignment=1)

    # ---- expressions -----------------------------------------------------------------------------------

    def linear(self, x: Expr) -> Linear:
        """``x``, an integer of 32 bits, as a sum."""
        return self._expressions.linear(self, x)

    def scalar(self, x: Expr) -> Value:
        """``x`` in a register or an immediate of its type."""
        return self._expressions.scalar(self, x)

    def predicate(self, x: Expr) -> Reg | bool:
        return self._expressions.predicate(self, x)


Handler = Callable[[Lowering, Op], None]
HANDLERS: dict[type[Op], Handler] = {}
_O = TypeVar("_O", bound=Op)


def lowers(*kinds: type[Op]) -> Callable[[Callable[[Lowering, _O], None]], Callable[[Lowering, _O], None]]:
    """Registers the function that lowers operations of these classes."""

    def register(f: Callable[[Lowering, _O], None]) -> Callable[[Lowering, _O], None]:
        for kind in kinds:
            HANDLERS[kind] = f  # type: ignore[assignment]
        return f

    return register
