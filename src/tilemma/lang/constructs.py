"""The constructs of the language as Python functions: each adds to the kernel being traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tilemma.dtypes import DType
from tilemma.errors import nearest
from tilemma.ir.builder import Builder, element_type
from tilemma.ir.expr import Select
from tilemma.ir.expr import cdiv as _cdiv
from tilemma.ir.tile import Assert, Commit, Print, SwapFutures, TriggerEvent, WaitEvent, WaitFuture
from tilemma.ir.tiles import Bounded, Tile, scalar
from tilemma.ir.types import Contract, Level, Space
from tilemma.lang import spans
from tilemma.lang.tracing import WrongOperand, builder
from tilemma.lang.values import (
    EventHandle,
    Fragment,
    FutureHandle,
    TileValue,
    Value,
    Variable,
    boolean,
    event_of,
    fragment_of,
    number,
    tile_of,
    unwrap,
)

LEVELS = ("cluster", "block", "group-4", "group", "thread")


def _level(name: str | None, b: Builder) -> Level | None:
    if name is None:
        return None
    try:
        return Level.parse(name)
    except ValueError:
        near = nearest(name, LEVELS)
        raise WrongOperand(
            b.span,
            what="parallel(level=...)",
            got=f"`{name}`",
            wanted="one of cluster, block, group-4 (a warpgroup), group (a warp), group-N, thread",
            fix_text=f"did you mean `{near}`?" if near else "use one of these",
        ) from None


def _names(count: int, prefix: str) -> tuple[str, ...]:
    bound = spans.bound_names()
    return bound if len(bound) == count else tuple(f"{prefix}{i}" for i in range(count))


def parallel(
    *extents: Any,
    level: str | None = None,
    async_: bool = False,
    min_blocks: int | None = None,
    max_registers: int | None = None,
) -> Iterator[Any]:
    """``for i, j in parallel(a, b, level="block"):`` runs the body once for each (i, j), all at once.

    ``level`` is "cluster", "block", "group-4" (a warpgroup), "group" (a warp), "group-N" or "thread"; without
    one it is inferred: the outermost is block, the innermost thread.
    """
    b = builder("parallel")
    names, span, lv = _names(len(extents), "p"), b.span, _level(level, b)
    sizes = [number(e, "parallel") for e in extents]

    def run() -> Iterator[Any]:
        options = {"asynchronous": async_, "min_blocks": min_blocks, "max_registers": max_registers}
        with b.parallel(names, sizes, lv, span=span, **options) as indices:  # type: ignore[arg-type]
            yield _one_or_tuple(indices)

    return run()


def _one_or_tuple(indices: tuple[Bounded, ...]) -> Any:
    values = tuple(Value(i) for i in indices)
    return values[0] if len(values) == 1 else values


def foreach(
    *extents: Any, start: Any = 0, stop: Any = None, step: Any = 1, unroll: bool | int = False
) -> Iterator[Any]:
    """``for i in foreach(n):`` loops when the kernel runs; several extents nest, the last innermost.

    ``start``, ``stop`` and ``step`` are for a single extent; the index stays bounded by it.  An extent may be
    a bounded index itself (`bound`), whose range is looped over.
    """
    b = builder("foreach")
    names, span = _names(len(extents), "k"), b.span
    sizes = [x.extent if isinstance(x, Bounded) else x for x in (number(e, "foreach") for e in extents)]
    first, pace = number(start, "foreach(start=)"), number(step, "foreach(step=)")
    end = None if stop is None else number(stop, "foreach(stop=)")
    times = None if unroll is False else 0 if unroll is True else int(unroll)

    def run(i: int, outer: tuple[Bounded, ...]) -> Iterator[Any]:
        if i == len(sizes):
            yield _one_or_tuple(outer)
            return
        with b.foreach(names[i], sizes[i], start=first, stop=end, step=pace, unroll=times, span=span) as k:
            yield from run(i + 1, (*outer, k))

    return run(0, ())


def bound(n: Any) -> Value:
    """A bounded value that is 0 until a `foreach` loops over it (``with k in n``)."""
    builder("bound")
    return Value(Bounded(scalar(0), scalar(number(n, "bound"))))


def if_(cond: Any) -> AbstractContextManager[None]:
    """``with if_(c):`` the block runs where ``c`` holds; `else_` may follow."""
    b = builder("if_")
    return b.if_(boolean(cond, "if_"), span=b.span)


def else_() -> AbstractContextManager[None]:
    """``with else_():`` directly after the block of its `if_`."""
    b = builder("else_")
    return b.else_(span=b.span)


def while_(cond: Callable[[], Any]) -> AbstractContextManager[None]:
    """``with while_(lambda: x < n):`` repeats the block; the lambda is traced once."""
    b = builder("while_")
    if not callable(cond):
        raise WrongOperand(
            b.span,
            what="while_",
            got="a value",
            wanted="a function of no arguments: the condition is evaluated anew for each turn",
            fix_text="write `while_(lambda: ...)`",
        )
    return b.while_(boolean(cond(), "while_"), span=b.span)


def inthreads(cond: Any, *, async_: bool = False) -> AbstractContextManager[None]:
    """``with inthreads(wg == 0):`` only those threads take part; with ``async_`` they play a role of their own."""
    b = builder("inthreads")
    return b.inthreads(boolean(cond, "inthreads"), async_, span=b.span)


def var(value: Any, dtype: str | DType | None = None) -> Variable:
    """A mutable scalar, of the value's type or of ``dtype``."""
    b = builder("var")
    kind = None if dtype is None else element_type(str(dtype), b.span)
    return Variable(b.declare(_names(1, "x")[0], number(value, "var"), kind))


def _storage(space: Space, dtype: str | DType, shape: tuple[Any, ...], copies: int, init: Any) -> TileValue:
    b = builder(space.value)
    kind = element_type(str(dtype), b.span)
    sizes = [number(s, space.value) for s in shape]
    value = None if init is None else scalar(number(init, f"{space.value}(init=)"))
    buffer = b.alloc(_names(1, space.value)[0], space, kind, sizes, copies=copies, init=value, span=b.span)
    return TileValue(Tile.whole(buffer), copies)


def shared(dtype: str | DType, *shape: Any, copies: int = 0, init: Any = None) -> TileValue:
    """A buffer in the block's shared memory (``copies`` of it: `s[i]`); uninitialised without ``init``."""
    return _storage(Space.SHARED, dtype, shape, copies, init)


def local(dtype: str | DType, *shape: Any, copies: int = 0, init: Any = None) -> TileValue:
    """A buffer private to the threads that declare it."""
    return _storage(Space.LOCAL, dtype, shape, copies, init)


def compose(a: Any, b: Any) -> Value:
    """``a # b``: a * #b + b, bounded by #a * #b."""
    builder("compose")
    outer, inner = number(a, "compose"), number(b, "compose")
    if not isinstance(outer, Bounded) or not isinstance(inner, Bounded):
        raise WrongOperand(
            spans.caller_span(),
            what="compose",
            got="a value without an upper bound",
            wanted="two indices",
            fix_text="compose indices of parallel levels and loops",
        )
    return Value(outer.compose(inner))


def ubound(p: Any) -> Any:
    """``#p``: the number of values that index ``p`` takes."""
    x = number(p, "ubound")
    if not isinstance(x, Bounded):
        raise WrongOperand(
            spans.caller_span(),
            what="ubound",
            got="a value without an upper bound",
            wanted="an index",
            fix_text="take the bound of an index of a parallel level or a loop",
        )
    return unwrap(x.extent)


def cdiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up; works on Python ints too."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return unwrap(_cdiv(scalar(number(a, "cdiv")), scalar(number(b, "cdiv"))))


def select(cond: Any, x: Any, y: Any) -> Value:
    """``x`` where ``cond`` holds, else ``y``."""
    builder("select")
    return Value(Select(boolean(cond, "select"), scalar(number(x, "select")), scalar(number(y, "select"))))


class CopyNamespace:
    """`dma` and `tma`."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def copy(
        self,
        src: Any,
        dst: Any = None,
        *,
        to: str | None = None,
        async_: bool | EventHandle = False,
        swizzle: int | None = None,
        zfill: bool = False,
        multicast: bool = False,
        promote: int | None = None,
        evict: str | None = None,
        after: FutureHandle | None = None,
        transp: tuple[int, ...] | None = None,
    ) -> FutureHandle:
        """Copy ``src`` to ``dst``, or to a new buffer in ``to`` ("shared", "local").

        Synchronous unless ``async_``: True gives a future to `wait` for, an event is completed by the bytes.
        """
        b = builder(f"{self._engine}.copy")
        if (dst is None) == (to is None):
            raise WrongOperand(
                b.span,
                what=f"{self._engine}.copy",
                got="both a destination and `to=`" if to else "no destination",
                wanted="a destination tile, or `to=` for a new buffer",
                fix_text='pass the tile, or to="shared"',
            )
        source = tile_of(src, f"{self._engine}.copy")
        target = Space(to) if to is not None else tile_of(dst, f"{self._engine}.copy")
        event = event_of(async_, "async_") if isinstance(async_, EventHandle) else None
        options: dict[str, Any] = {
            "swizzle": swizzle,
            "zfill": zfill,
            "multicast": multicast,
            "promote": promote,
            "evict": evict,
        }
        if after is not None:
            options["after"] = (after.future.name,)
        future = b.copy(
            source,
            target,
            engine=self._engine,  # type: ignore[arg-type]
            name=next(iter(spans.bound_names()), None),
            asynchronous=bool(async_) if not isinstance(async_, EventHandle) else True,
            event=event,
            transpose=transp,
            span=b.span,
            **options,
        )
        return FutureHandle(future)


class _Row:
    """`mma.row` / `mma.col`: the second axis of the contract follows."""

    def __init__(self, first: str) -> None:
        self.row = _Multiply(Contract(f"{first}.row"))
        self.col = _Multiply(Contract(f"{first}.col"))


class _Multiply:
    """`mma.row.row(mc, ma, mb)` and its variants `.sp` and `.scale`."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract

    def __call__(self, acc: Any, a: Any, b: Any) -> None:
        self._emit(acc, a, b)

    def sp(self, acc: Any, a: Any, b: Any, meta: Any) -> None:
        """2:4 sparse A: ``a`` holds K/2 columns, ``meta`` says which."""
        self._emit(acc, a, b, meta=fragment_of(meta, "mma.sp").ref)

    def scale(self, acc: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
        """``acc += (a x b) * scale_a[row] * scale_b``."""
        self._emit(
            acc,
            a,
            b,
            scale_a=tile_of(scale_a, "mma.scale").settle().view,
            scale_b=scalar(number(scale_b, "mma.scale")),
        )

    def _emit(self, acc: Any, a: Any, b: Any, **options: Any) -> None:
        name = f"mma.{self._contract.value}"
        k = builder(name)
        operands = [x.fragment if isinstance(x, Fragment) else tile_of(x, name) for x in (a, b)]
        k.mma(self._contract, fragment_of(acc, name), operands[0], operands[1], **options)


class MmaNamespace:
    """`mma`: fill, load, multiply, store."""

    def __init__(self) -> None:
        self.row = _Row("row")
        self.col = _Row("col")

    def fill(self, value: Any, dtype: str | DType | None = None) -> Fragment:
        """An accumulator tile with every element ``value``; its type is inferred from the operands without one."""
        b = builder("mma.fill")
        kind = None if dtype is None else element_type(str(dtype), b.span)
        return Fragment(b.fill(_names(1, "acc")[0], number(value, "mma.fill"), kind))

    def load(self, src: Any, *, swizzle: int | None = None) -> Fragment:
        """A snapshot of ``src`` as an operand tile."""
        b = builder("mma.load")
        return Fragment(b.load(_names(1, "operand")[0], tile_of(src, "mma.load"), swizzle))

    def store(self, fragment: Any, dst: Any, *, transp: bool = False) -> None:
        """Write an accumulator, converting; ``transp`` swaps rows and columns."""
        b = builder("mma.store")
        b.store(fragment_of(fragment, "mma.store"), tile_of(dst, "mma.store"), transpose=transp)

    def commit(self) -> None:
        builder("mma.commit").emit(Commit())


def event(slots: int = 0, *, threads: int | None = None, ready: bool = False) -> EventHandle:
    """A ring of ``slots`` events (0: a single one), not ready at first unless ``ready``."""
    b = builder("event")
    return EventHandle(b.event(_names(1, "event")[0], slots, threads, ready))


def wait(*what: Any) -> None:
    """Wait for events (this waiter's next generation) or for the futures of asynchronous copies."""
    b = builder("wait")
    futures = tuple(x.future.name for x in what if isinstance(x, FutureHandle))
    if futures:
        b.emit(WaitFuture(futures))
    for x in what:
        if not isinstance(x, FutureHandle):
            b.emit(WaitEvent(event_of(x, "wait")))


def trigger(e: Any, *, after: Any = None) -> None:
    """Trigger an event; ``after`` futures: when their bytes have arrived."""
    b = builder("trigger")
    futures = (
        () if after is None else tuple(f.future.name for f in (after if isinstance(after, tuple) else (after,)))
    )
    b.emit(TriggerEvent(event_of(e, "trigger"), futures))


def swap(*futures: FutureHandle) -> None:
    """What the names stand for changes places: the first becomes the second, .., the last the first."""
    builder("swap").emit(SwapFutures(tuple(f.future.name for f in futures)))


def print_(*parts: Any) -> None:
    """Print strings and values when the kernel runs."""
    items = tuple(p if isinstance(p, str) else scalar(number(p, "print")) for p in parts)
    builder("print").emit(Print(items, newline=True))


def assert_(cond: Any, message: str = "") -> None:
    """Stop with ``message`` where ``cond`` does not hold when the kernel runs."""
    builder("assert_").emit(Assert(boolean(cond, "assert_"), message))


dma = CopyNamespace("dma")
tma = CopyNamespace("tma")
mma = MmaNamespace()
