"""`dma` and `tma`: copies of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.errors import described
from tilemma.ir.constructs import CHOICES, SWIZZLES
from tilemma.ir.expr import Expr, value_of
from tilemma.ir.padding import Padding
from tilemma.ir.refusals import WrongValue
from tilemma.ir.specialise import open_dimensions
from tilemma.ir.types import Space
from tilemma.lang import scalars, spans
from tilemma.lang.namespaces import Namespace
from tilemma.lang.tracing import builder, trace
from tilemma.lang.views import EventHandle, FutureHandle, event_of, tile_of


def swizzle_of(x: Any) -> int | None:
    """Bytes of a swizzle, None where the compiler chooses."""
    return None if x is None else SWIZZLES[scalars.constant_operand(x, "swizzle")]


def _one_of(what: str, option: str, got: Any, wanted: str, fix: str) -> WrongValue:
    return WrongValue(
        spans.caller_span(), what=f"`{what}({option}=)`", got=f"{got!r}", wanted=wanted, fix_text=fix
    )


class CopyNamespace(Namespace):
    """`dma` and `tma`."""

    _forms = '`dma.copy(a, b)`, `tma.copy(a, b)`, or `dma.copy(a, to="shared")`'
    _own_names = ("load", "store", "async_copy", "memcpy")

    def __init__(self, engine: str) -> None:
        self._spelled = engine
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
        scalars.refuse_effect(running.pure, "memory")
        if (dst is None) == (to is None):
            raise WrongValue(
                b.span,
                what=f"`{what}`",
                got="both a destination and `to=`" if to else "no destination",
                wanted="a destination tile, or `to=` for a new buffer",
                fix_text='pass the tile, or to="shared"',
            )
        if isinstance(dst, str):
            raise scalars.refused("tile", what, scalars.article(dst), f'write `{what}(tile, to="{dst}")`')
        source = tile_of(src, what)
        target = _space(to, what) if to is not None else tile_of(dst, what)
        event = event_of(async_, "async_") if not isinstance(async_, bool) else None
        options: dict[str, Any] = {
            "swizzle": swizzle_of(swizzle),
            "zfill": scalars.flag(zfill, "zfill"),
            "multicast": scalars.flag(multicast, "multicast"),
            "promote": None if promote is None else scalars.constant_operand(promote, "promote"),
            "evict": _evict(evict),
            "pad_value": None
            if pad_value is None
            else scalars.operand_as(pad_value, source.view.dtype, f"{what}(pad_value=)"),
        }
        if after is not None:
            options["after"] = futures_of(after, f"{what}(after=)")
        future = b.copy(
            source,
            target,
            engine=self._engine,  # type: ignore[arg-type]
            name=next(iter(spans.bound_names()), None),
            asynchronous=event is not None or async_ is True,
            event=event,
            transpose=None if transp is None else _permutation(transp, what),
            pad=() if pad is None else _padding(pad, what),
            span=b.span,
            **options,
        )
        return FutureHandle(future)

    def any(self) -> None:
        """``f = dma.any()``: a name for a copy that is still to be made."""
        builder(f"{self._engine}.any")


def _space(to: Any, what: str) -> Space:
    try:
        space = Space(to if isinstance(to, str) else "")
    except ValueError:
        raise CHOICES["to"].refused(to if isinstance(to, str) else described(to), spans.caller_span()) from None
    if space is Space.GLOBAL:
        raise _one_of(what, "to", to, '"shared" or "local"', "copy into a parameter, or into `global_(...)`")
    return space


def _evict(x: Any) -> Any:
    if x is not None and x not in CHOICES["evict"].words:
        raise CHOICES["evict"].refused(str(x), spans.caller_span())
    return x


def _permutation(given: Any, what: str) -> tuple[int, ...]:
    if not isinstance(given, (tuple, list)):
        raise _one_of(what, "transp", given, "the source's dimensions in their new order", "write `transp=(1, 0)`")
    return tuple(scalars.python_int(x, f"{what}(transp=)") for x in given)


def _padding(given: Any, what: str) -> tuple[Padding, ...]:
    """(low, high, between) counts for each dimension of the source."""
    listed = isinstance(given, (tuple, list)) and all(isinstance(c, (tuple, list)) for c in given)
    if not given or not listed or any(len(counts) not in (2, 3) for counts in given):
        wanted = "(low, high, between) counts for each dimension of the source"
        fix = "write `pad=((0, 0, 0), (0, 1, 0))` for one element after each row of a matrix"
        raise _one_of(what, "pad", given, wanted, fix)
    numbers = [[_count(n) for n in counts] for counts in given]
    return tuple((n[0], n[1], n[2] if len(n) == 3 else 0) for n in numbers)


def _count(x: Any) -> int | Expr:
    """A constant, or what dimensions and parameters determine; NotConstant."""
    if (
        isinstance(x, scalars.Value)
        and x.dtype.is_integer
        and value_of(x.expr) is None
        and open_dimensions((x.expr,))
    ):
        return x.expr
    return scalars.constant_operand(x, "padding")


def handles_of(x: Sequence[Any], what: str) -> tuple[str, ...]:
    """The operands of `swap`: the futures of asynchronous copies, the buffers of synchronous ones."""
    for f in x:
        if not isinstance(f, FutureHandle):
            raise scalars.refused("copy", what, scalars.article(f))
    return tuple(f.future.name or f.future.data.view.base.name for f in x)


def futures_of(x: Any, what: str, kind: str = "future") -> tuple[str, ...]:
    """Names of the futures of asynchronous copies."""
    found = []
    for f in x if isinstance(x, (tuple, list)) else (x,):
        if not isinstance(f, FutureHandle):
            raise scalars.refused(kind, what, scalars.article(f))
        if not f.future.name:
            fix = "pass `async_=True` to the copy, or leave the waiting out"
            raise scalars.refused(kind, what, "a copy that is synchronous or completes an event", fix)
        found.append(f.future.name)
    return tuple(found)


dma = CopyNamespace("dma")
tma = CopyNamespace("tma")
