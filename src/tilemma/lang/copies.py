"""`dma` and `tma`: copies of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.errors import nearest
from tilemma.ir.types import Space
from tilemma.lang import spans
from tilemma.lang.scalars import article, operand, python_int, refuse_effect
from tilemma.lang.tracing import WrongOperand, builder, trace
from tilemma.lang.views import EventHandle, FutureHandle, event_of, tile_of

# The tutorial's numbers 1 to 3 stand for the widths in bytes; 0 is none.
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128, 32: 32, 64: 64, 128: 128}


def swizzle_of(x: Any, what: str) -> int | None:
    """Bytes of a swizzle, None where the compiler chooses."""
    if x is None:
        return None
    n = python_int(x, f"{what}(swizzle=)")
    if n not in SWIZZLES:
        raise _one_of(what, "swizzle", n, "32, 64, 128 (bytes), or 0 for none", "write `swizzle=128`")
    return SWIZZLES[n]


def _one_of(what: str, option: str, got: Any, wanted: str, fix: str) -> WrongOperand:
    return WrongOperand(
        spans.caller_span(), what=f"{what}({option}=)", got=f"{got!r}", wanted=wanted, fix_text=fix
    )


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
        after: Any = None,
        transp: Sequence[int] | None = None,
        pad: Sequence[Sequence[int]] | None = None,
        pad_value: Any = None,
    ) -> FutureHandle:
        """Copy ``src`` to ``dst``, or to a new buffer in ``to`` ("shared", "local").

        Synchronous unless ``async_``: True gives a future to `wait` for, an event is completed by the bytes.
        ``transp`` is a permutation of the source's dimensions, ``pad`` has (low, high, between neighbours) counts
        for each dimension, filled with ``pad_value`` (0).
        """
        what = f"{self._engine}.copy"
        b = builder(what)
        running = trace()
        assert running is not None
        refuse_effect(running.pure, "memory")
        if (dst is None) == (to is None):
            raise WrongOperand(
                b.span,
                what=what,
                got="both a destination and `to=`" if to else "no destination",
                wanted="a destination tile, or `to=` for a new buffer",
                fix_text='pass the tile, or to="shared"',
            )
        source = tile_of(src, what)
        target = _space(to, what) if to is not None else tile_of(dst, what)
        event = event_of(async_, "async_") if not isinstance(async_, bool) else None
        options: dict[str, Any] = {
            "swizzle": swizzle_of(swizzle, what),
            "zfill": bool(zfill),
            "multicast": bool(multicast),
            "promote": _choice(promote, (64, 128, 256), what, "promote"),
            "evict": _choice(evict, ("first", "last"), what, "evict"),
            "pad_value": None if pad_value is None else operand(pad_value, f"{what}(pad_value=)"),
        }
        if after is not None:
            options["after"] = futures_of(after, f"{what}(after=)")
        future = b.copy(
            source,
            target,
            engine=self._engine,  # type: ignore[arg-type]
            name=next(iter(spans.bound_names()), None),
            asynchronous=bool(async_) if event is None else True,
            event=event,
            transpose=None if transp is None else _permutation(transp, source.rank, what),
            pad=() if pad is None else _padding(pad, source.rank, what),
            span=b.span,
            **options,
        )
        return FutureHandle(future)

    def any(self) -> None:
        """``f = dma.any()``: a name for a copy that is still to be made."""
        builder(f"{self._engine}.any")


def _space(to: Any, what: str) -> Space:
    try:
        space = Space(to)
    except ValueError:
        near = nearest(str(to), ("shared", "local"))
        fix = f"did you mean `{near}`?" if near else "use one of these"
        raise _one_of(what, "to", to, '"shared" or "local"', fix) from None
    if space is Space.GLOBAL:
        raise _one_of(what, "to", to, '"shared" or "local"', "copy into a parameter, or into `global_(...)`")
    return space


def _choice(x: Any, legal: tuple[Any, ...], what: str, option: str) -> Any:
    if x is not None and x not in legal:
        raise _one_of(
            what, option, x, "one of " + ", ".join(map(repr, legal)), "use one of these, or leave it out"
        )
    return x


def _permutation(given: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    listed = given if isinstance(given, (tuple, list)) else ()
    found = tuple(python_int(x, f"{what}(transp=)") for x in listed)
    if sorted(found) != list(range(rank)):
        wanted = f"a permutation of {', '.join(map(str, range(rank)))}: the source's dimensions, each once"
        raise _one_of(what, "transp", given, wanted, "write `transp=(1, 0)` for a matrix")
    return found


def _padding(given: Sequence[Sequence[int]], rank: int, what: str) -> tuple[tuple[int, int, int], ...]:
    wanted = f"(low, high, between) counts of at least 0 for each of {rank} dimensions"
    fix = "write `pad=((0, 0, 0), (0, 1, 0))` for one element after each row of a matrix"
    found = []
    for counts in given if isinstance(given, (tuple, list)) else ():
        numbers = (
            tuple(python_int(x, f"{what}(pad=)") for x in counts) if isinstance(counts, (tuple, list)) else ()
        )
        if len(numbers) == 2:
            numbers = (*numbers, 0)
        if len(numbers) != 3 or min(numbers) < 0:
            raise _one_of(what, "pad", counts, wanted, fix)
        found.append((numbers[0], numbers[1], numbers[2]))
    if len(found) != rank:
        raise _one_of(what, "pad", given, wanted, fix)
    return tuple(found)


def handles_of(x: Sequence[Any], what: str) -> tuple[str, ...]:
    """What `swap` exchanges: the futures of asynchronous copies, the buffers of synchronous ones."""
    found = []
    for f in x:
        if not isinstance(f, FutureHandle):
            raise WrongOperand(
                spans.caller_span(),
                what=what,
                got=article(f),
                wanted="the result of a copy",
                fix_text="name the result of `dma.copy(...)`",
            )
        found.append(f.future.name or f.future.data.view.base.name)
    return tuple(found)


def futures_of(x: Any, what: str) -> tuple[str, ...]:
    """Names of the futures of asynchronous copies."""
    found = []
    for f in x if isinstance(x, (tuple, list)) else (x,):
        if not isinstance(f, FutureHandle):
            raise WrongOperand(
                spans.caller_span(),
                what=what,
                got=article(f),
                wanted="the future of an asynchronous copy",
                fix_text="name the result of `dma.copy(..., async_=True)`",
            )
        if not f.future.name:
            raise WrongOperand(
                spans.caller_span(),
                what=what,
                got="a copy that needs no waiting: it is synchronous, or completes an event",
                wanted="the future of an asynchronous copy",
                fix_text="pass `async_=True` to the copy, or leave the waiting out",
            )
        found.append(f.future.name)
    return tuple(found)


dma = CopyNamespace("dma")
tma = CopyNamespace("tma")
