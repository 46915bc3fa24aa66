"""The operations of the tile IR: the statements of front ends, and the decisions of passes.

Operations are frozen; a body is a tuple of operations.  Entities (buffers, fragments, indices, events,
futures) are identified by name, unique within a kernel.  A field whose comment says "decided" is None until
the pass that decides it has run; the pass fills it in place, and lowering reads nothing else.

``syntax`` gives each operation's text, used by both printer and parser: ``$field`` stands for the field,
fields that the syntax does not mention follow as ``{name = value}`` when they differ from their default.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from tilemma.dtypes import DType
from tilemma.errors import Span
from tilemma.ir.effects import Acquires, Declares, Execution, Order, Reads, Receives, Releases, Updates, Writes
from tilemma.ir.expr import Expr, Index, Scalar, Var, add, mul, sub, value_of
from tilemma.ir.lane_work import Exchange as Exchange
from tilemma.ir.lane_work import LaneLoad as LaneLoad
from tilemma.ir.lane_work import LaneMma as LaneMma
from tilemma.ir.lane_work import LaneStore as LaneStore
from tilemma.ir.operation import Body as Body
from tilemma.ir.operation import FragmentName as FragmentName
from tilemma.ir.operation import Future as Future
from tilemma.ir.operation import Op as Op
from tilemma.ir.operation import require_all
from tilemma.ir.padding import Padding
from tilemma.ir.pipeline import PipelineSettings as PipelineSettings
from tilemma.ir.plans import ArrayFacts as ArrayFacts
from tilemma.ir.plans import CopyPlan, FragmentPlan, LoadPlan, SharedLayoutPlan, StorePlan
from tilemma.ir.synchronisation import Arriving as Arriving
from tilemma.ir.synchronisation import Barrier as Barrier
from tilemma.ir.synchronisation import BulkWait as BulkWait
from tilemma.ir.synchronisation import CopyCommit as CopyCommit
from tilemma.ir.synchronisation import CopyWait as CopyWait
from tilemma.ir.synchronisation import DeclareEvent as DeclareEvent
from tilemma.ir.synchronisation import MmaCommit as MmaCommit
from tilemma.ir.synchronisation import MmaFence as MmaFence
from tilemma.ir.synchronisation import MmaWait as MmaWait
from tilemma.ir.synchronisation import ProxyFence as ProxyFence
from tilemma.ir.synchronisation import SwapFutures as SwapFutures
from tilemma.ir.synchronisation import Sync as Sync
from tilemma.ir.synchronisation import TriggerEvent as TriggerEvent
from tilemma.ir.synchronisation import WaitEvent as WaitEvent
from tilemma.ir.synchronisation import WaitFuture as WaitFuture
from tilemma.ir.types import Buffer, Contract, EventRef, Level, View
from tilemma.records import record

# ---- control ---------------------------------------------------------------------------------------------


@record
class Parallel(Op):
    """``body`` once for each combination of the indices, all at the same time.

    ``level`` None: to be inferred.  Instances are numbered row-major over ``indices`` (the last fastest); inside
    a block instance i covers threads [i * level.threads, (i + 1) * level.threads) of the enclosing instance.
    ``overlap``: the blocks of a launch start while the one before ends, and wait for its end before they touch
    memory; "before": and those of the next launch start after the end of these.  ``clustered``: the index of the
    program in which the blocks of clusters of the compiler's choice differ; ``tiles``: its extent.  ``joined``:
    each block is two of the program, which is faster where this holds; ``apart``: no blocks are joined.
    ``drained``: before a block of a cluster ends, it has waited for all that others do to its shared memory.
    """

    syntax: ClassVar[str] = "parallel $indices : $level $body"
    execution: ClassVar[Execution] = Execution.LEVEL
    indices: Declares[tuple[Index, ...]]
    body: Body
    level: Level | None = None
    asynchronous: bool = False
    cooperative: bool = False
    min_blocks: int | None = None
    max_registers: int | None = None
    overlap: bool | Literal["before"] = False
    clustered: str | None = None
    tiles: Expr | None = None
    joined: Expr | None = None
    apart: bool = False
    drained: bool = False


@record
class For(Op):
    """``body`` for index = start, start + step, ... while index < stop.  index.extent bounds the index.

    ``pipeline``: see `ir.pipeline.effective`.  ``blocks``: the iterations were blocks of a grid, without an order.
    """

    syntax: ClassVar[str] = "for $index = $start to $stop step $step $body"
    execution: ClassVar[Execution] = Execution.CONTROL
    index: Declares[Index]
    start: Expr
    stop: Expr
    step: Expr
    body: Body
    unroll: int | None = None
    vectorize: int | None = None
    pipeline: PipelineSettings | None = None
    blocks: bool = False


@record
class While(Op):
    syntax: ClassVar[str] = "while $cond $body"
    execution: ClassVar[Execution] = Execution.CONTROL
    cond: Expr
    body: Body


@record
class If(Op):
    syntax: ClassVar[str] = "if $cond $then else $otherwise"
    execution: ClassVar[Execution] = Execution.CONTROL
    cond: Expr
    then: Body
    otherwise: Body = ()


@record
class InThreads(Op):
    """``body`` by those instances of the enclosing scope for which ``cond`` holds: a role when asynchronous.

    Decided: ``registers``, how many each thread of the role has (setmaxnreg); ``solo``: one elected thread of
    each instance does all of it.
    """

    syntax: ClassVar[str] = "inthreads $cond $body"
    execution: ClassVar[Execution] = Execution.CONTROL
    cond: Expr
    body: Body
    asynchronous: bool = False
    registers: int | None = None
    solo: bool = False


@record
class Break(Op):
    syntax: ClassVar[str] = "break"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.CONTROL


@record
class Continue(Op):
    syntax: ClassVar[str] = "continue"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.CONTROL


# ---- scalars and elements --------------------------------------------------------------------------------


@record
class Declare(Op):
    """A mutable scalar, private to each instance of the scope that declares it."""

    syntax: ClassVar[str] = "var $var = $value"
    execution: ClassVar[Execution] = Execution.LANE
    var: Declares[Var]
    value: Expr


@record
class Assign(Op):
    syntax: ClassVar[str] = "set $var = $value"
    execution: ClassVar[Execution] = Execution.LANE
    var: Writes[Var]
    value: Expr


@record
class SetElement(Op):
    """Write one element; ``view`` has no axes.  The value is converted as stores convert."""

    syntax: ClassVar[str] = "element $view = $value"
    execution: ClassVar[Execution] = Execution.LANE
    view: Writes[View]
    value: Expr


@record
class Atomic(Op):
    """``old = *view; *view = old OP value`` in one step; ``result`` receives the old value."""

    syntax: ClassVar[str] = "atomic.$name $view, $value"
    execution: ClassVar[Execution] = Execution.LANE
    name: Literal["add", "sub", "exch", "min", "max", "and", "or", "xor", "cas"]
    view: Updates[View]
    value: Expr
    compare: Expr | None = None
    result: Receives[Var] | None = None


# ---- storage ---------------------------------------------------------------------------------------------


@record
class Alloc(Op):
    """A shared or local buffer.

    ``swizzle``: bytes requested by the program (0: none), None: the compiler chooses.  Decided: ``layout``, the
    byte layout of one copy; ``offset``, bytes from the start of the CTA's dynamic shared memory.
    """

    syntax: ClassVar[str] = "alloc $buffer"
    execution: ClassVar[Execution] = Execution.INSTANCE
    buffer: Declares[Buffer]
    init: Expr | None = None
    swizzle: int | None = None
    layout: SharedLayoutPlan | None = None
    offset: int | None = None


@record
class Copy(Op):
    """Move the elements of ``src`` to ``dst``.

    ``engine`` is the program's choice.  ``event``: the copy's bytes complete a generation of it;
    ``future``: the name of the handle to wait for; neither: synchronous.  ``after``: futures to wait for first.
    ``transpose``: permutation of the source's axes; ``pad``: (low, high, inner) of each;
    ``pad_counts``: these as computations of dimensions and parameters, until `specialise` gives ``pad``.
    Decided: ``plan``.
    """

    syntax: ClassVar[str] = "copy.$engine $src => $dst"
    execution: ClassVar[Execution] = Execution.INSTANCE
    engine: Literal["dma", "tma"]
    src: Reads[View]
    dst: Writes[View]
    asynchronous: bool = False
    event: Releases[EventRef] | None = None
    future: Declares[Future] | None = None
    after: Acquires[tuple[Future, ...]] = ()
    swizzle: int | None = None
    zfill: bool = False
    multicast: bool = False
    promote: int | None = None
    evict: Literal["first", "last"] | None = None
    transpose: tuple[int, ...] | None = None
    pad: tuple[tuple[int, int, int], ...] = ()
    pad_counts: tuple[tuple[Expr, Expr, Expr], ...] = ()
    pad_value: Expr | None = None
    plan: CopyPlan | None = None

    @property
    def arriving(self) -> tuple[Expr, ...]:
        """The extents of the copied tile: the source's, transposed and padded."""
        order = self.transpose if self.transpose is not None else range(len(self.src.axes))
        found = [self.src.shape[i] for i in order]
        counts: tuple[Padding, ...] = self.pad_counts or self.pad
        for i, (low, high, inner) in enumerate(counts):
            found[i] = add(found[i], add(mul(sub(found[i], 1), inner), add(low, high)))
        return tuple(found)

    @property
    def rearranges(self) -> bool:
        """Whether axes of extent 1, which do not count, are at other positions on the two sides."""
        return [value_of(e) == 1 for e in self.arriving] != [value_of(e) == 1 for e in self.dst.shape]


# ---- contraction -----------------------------------------------------------------------------------------


@record
class FragmentRef:
    """A register tile, or one of an array of them (``mc[i][j]``; the subscripts are constants)."""

    name: str
    index: tuple[Expr, ...] = ()


@record
class DeclareFragment(Op):
    """Names a register tile [rows, columns], or a vector [rows] with a value for each row; ``copies`` for arrays.

    Decided: ``plan``; ``guarded``: conditions that only a write makes true stand around what reads it, so that
    it needs no first value.
    """

    syntax: ClassVar[str] = "fragment %$name"
    execution: ClassVar[Execution] = Execution.INSTANCE
    name: Declares[FragmentName]
    copies: tuple[int, ...] = ()
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None
    plan: FragmentPlan | None = None
    guarded: bool = False


@record
class Fill(Op):
    """Every element of the accumulator becomes ``value``; ``dtype`` None: inferred from the operands.  ``fast``:
    sums of products of 8-bit floats stay in the accumulator of the hardware."""

    syntax: ClassVar[str] = "fill $fragment, $value"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    fragment: Writes[FragmentRef]
    value: Expr
    dtype: DType | None = None
    fast: bool = False


@record
class Load(Op):
    """Snapshot of ``src`` as an operand tile (or as an accumulator, when a store or `Mma` uses it as one).
    ``dtype``, ``packed_dtype``: of the tile, and of elements packed in bytes, if not that of ``src``.  ``order``:
    that of prepacked metadata (`arithmetic.sparsity.ORDERS`)."""

    syntax: ClassVar[str] = "load $fragment, $src"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    fragment: Writes[FragmentRef]
    src: Reads[View]
    swizzle: int | None = None
    dtype: DType | None = None
    packed_dtype: DType | None = None
    order: str | None = None
    plan: LoadPlan | None = None  # decided

    @property
    def element(self) -> DType:
        return self.dtype or self.src.dtype

    @property
    def stored(self) -> DType:
        """The type of the elements in memory: not that of ``src`` where its bytes hold several."""
        return self.packed_dtype or (self.element if self.element.bits < 8 else self.src.dtype)


Operand = FragmentRef | View


@record
class Mma(Op):
    """``acc += a x b``; ``negated``: ``acc -= a x b``.  Operands are fragments, or shared views named directly.

    ``meta``: 2:4 metadata of A (``.sp``).  ``scale_a``, ``scale_b``, ``factor``: ``.scale``, see `ScaleMma`; the
    views may also have a number for each 128 columns of K, [M, ceil(K/128)] and [ceil(K/128), N or ceil(N/128)].
    ``future``: asynchronous, with this handle.  ``wanted``: the record that the program names.
    Decided: ``atom`` names the record; ``tiles``: atoms along M, N, K for one instance (one warp of it where the
    atom is a warp's).  ``accumulate``: unless it holds, the accumulator starts from zero (wgmma's scale-d).
    """

    syntax: ClassVar[str] = "mma.$contract $acc, $a, $b"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    contract: Contract
    acc: Updates[FragmentRef]
    a: Reads[Operand]
    b: Reads[Operand]
    meta: Reads[FragmentRef] | None = None
    scale_a: Reads[View] | None = None
    scale_b: Reads[View] | None = None
    factor: Expr | None = None
    future: Declares[Future] | None = None
    negated: bool = False
    k_order: tuple[int, ...] = ()
    wanted: str | None = None
    atom: str | None = None
    tiles: tuple[int, int, int] | None = None
    accumulate: Expr | None = None


@record
class ScaleMma(Op):
    """Retroactive ``mma.scale``: multiplies the sum accumulated since the last one, and adds it to what was scaled
    before.

    ``scale_a`` has a number for each row; ``scale_b`` one for each column, or for each 128 columns; ``factor`` is
    the product of the scales that are single numbers.
    """

    syntax: ClassVar[str] = "mma.scale $acc"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    acc: Updates[FragmentRef]
    scale_a: Reads[View] | None = None
    scale_b: Reads[View] | None = None
    factor: Expr | None = None


@record
class Store(Op):
    """Write the accumulator to ``dst``, converting; ``rows``/``columns`` of it are written (``.mask``).

    Decided: ``plan``; ``part``, the first column and the number of columns of the tile that this store writes,
    where it is one of several.
    """

    syntax: ClassVar[str] = "store $fragment, $dst"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    fragment: Reads[FragmentRef]
    dst: Writes[View]
    transpose: bool = False
    rows: Expr | None = None
    columns: Expr | None = None
    part: tuple[int, int] | None = None
    plan: StorePlan | None = None


@record
class Commit(Op):
    """``mma.commit``: the multiplies above have read the buffers that the next trigger releases."""

    syntax: ClassVar[str] = "mma.commit"
    execution: ClassVar[Execution] = Execution.INSTANCE
    order: ClassVar[Order] = Order.MULTIPLIES


@record
class Apply(Op):
    """``body`` for each element of a fragment, by its owner; indices are its row and column in the tile."""

    syntax: ClassVar[str] = "apply $indices in $fragment $body"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    fragment: Reads[FragmentRef]
    indices: Declares[tuple[Index, ...]]
    body: Body


@record
class SetFragmentElement(Op):
    """Inside `Apply`: the visited element of ``fragment`` becomes ``value``.

    ``fragment`` has the extents of the tile that `Apply` goes over, or is a vector with a value for each of its
    rows: then the element is that of the visited row.
    """

    syntax: ClassVar[str] = "fragment_element $fragment = $value"
    execution: ClassVar[Execution] = Execution.LANE
    fragment: Writes[FragmentRef]
    value: Expr


@record
class Reduce(Op):
    """Element i of the vector ``dst`` becomes the largest, the smallest, or the sum of the elements of row i of
    ``src``.  f16 and bf16 are summed in f32, and rounded once."""

    syntax: ClassVar[str] = "reduce.$name $dst, $src"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    name: Literal["max", "min", "sum"]
    dst: Writes[FragmentRef]
    src: Reads[FragmentRef]


# ---- diagnostics and results -----------------------------------------------------------------------------


@record
class Print(Op):
    """Prints its parts, strings and values, in order."""

    syntax: ClassVar[str] = "print $parts"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.OUTPUT
    parts: tuple[str | Expr, ...]
    newline: bool = False


@record
class Assert(Op):
    syntax: ClassVar[str] = "assert $cond, $message"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.OUTPUT
    cond: Expr
    message: str


# Every class of operation: tables with an entry for each are checked against it at import.
OPERATIONS: tuple[type[Op], ...] = tuple(
    c for c in dict(globals()).values() if isinstance(c, type) and issubclass(c, Op) and c is not Op
)
require_all({c: c for c in OPERATIONS if c.syntax}, OPERATIONS, "the text of operations")


# ---- kernels ---------------------------------------------------------------------------------------------


@record
class ArrayParameter:
    """``scratch``: a call allocates the array, and no caller receives it."""

    buffer: Buffer
    facts: ArrayFacts | None = None
    scratch: bool = False
    span: Span | None = field(default=None, compare=False, kw_only=True, repr=False)


@record
class ScalarParameter:
    scalar: Scalar
    span: Span | None = field(default=None, compare=False, kw_only=True, repr=False)


Parameter = ArrayParameter | ScalarParameter


@record
class Kernel:
    """A kernel: its parameters in the program's order, and its body: the launches and what they share.

    ``returns``: the buffer handed to the caller, allocated by the library with the shape of its type.
    ``pipeline``: what the program asks of automatic pipelining, for the grid and for each loop.
    """

    name: str
    params: tuple[Parameter, ...]
    body: Body
    returns: Buffer | None = None
    pipeline: PipelineSettings | None = None
    span: Span | None = field(default=None, compare=False, kw_only=True, repr=False)

    @property
    def arrays(self) -> tuple[ArrayParameter, ...]:
        return tuple(p for p in self.params if isinstance(p, ArrayParameter))

    @property
    def scalars(self) -> tuple[ScalarParameter, ...]:
        return tuple(p for p in self.params if isinstance(p, ScalarParameter))
