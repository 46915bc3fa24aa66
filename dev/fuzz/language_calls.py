"""The functions of the language as the fuzzer of the API calls them: inside a traced kernel, and outside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tilemma as tm
from tilemma.lang import diagnostics


@dataclass(frozen=True, slots=True)
class Function:
    """A public function with arguments that it takes; those in ``fixed`` are left alone, those in ``called`` are
    functions of the caller's."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] | None = None
    fixed: tuple[int, ...] = ()
    called: tuple[int, ...] = ()


# The function that a kernel's body calls next.
_CALL: list[Callable[[Any], object]] = []


def body_calls(a: Any) -> None:
    _CALL[0](a)


_HOLDER = """import tilemma as tm
from dev.fuzz.language_calls import body_calls

@tm.kernel
def holder(a: tm.Global["f16", "M", "K"]):
    for _ in tm.parallel(4, level="block"):
        body_calls(a)
"""


@cache
def _holder() -> Any:
    """A kernel whose body is the function in ``_CALL``."""
    from tilemma.modules import load_python

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "holder.py")
        path.write_text(_HOLDER)
        return load_python(path).only()


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called in the body of a kernel that is traced."""

    def call(*args: Any, **keywords: Any) -> None:
        def inner(a: Any) -> None:
            result = function(*[a if isinstance(x, _Tile) else x for x in args], **keywords)
            if hasattr(result, "__enter__"):
                with result:
                    pass
            elif isinstance(result, Iterator):
                for _ in result:
                    pass

        _CALL[:] = [inner]
        tm.Kernel(_holder().source).build()

    return call


class _Tile:
    """A placeholder for the array parameter of the kernel that calls."""


def language() -> list[Function]:
    """The functions of the language, called inside a kernel and outside."""
    tile = _Tile()
    shared = ("f16", 4, 4)
    calls: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        ("shared", tm.shared, shared, {"copies": 2, "init": 0}),
        ("local", tm.local, shared, {"init": 0}),
        ("global_", tm.global_, shared, {}),
        ("var", tm.var, (1,), {}),
        ("select", tm.select, (True, 1, 2), {}),
        ("cdiv", tm.cdiv, (5, 2), {}),
        ("compose", tm.compose, (1, 2), {}),
        ("ubound", tm.ubound, (1,), {}),
        ("bound", tm.bound, (4,), {}),
        ("foreach", tm.foreach, (4,), {"start": 1, "unroll": True}),
        ("parallel", tm.parallel, (2,), {"level": "group"}),
        ("if_", tm.if_, (True,), {}),
        ("while_", tm.while_, (lambda: False,), {}),
        ("inthreads", tm.inthreads, (True,), {"async_": False}),
        ("event", tm.event, (2,), {}),
        ("wait", tm.wait, (1,), {}),
        ("trigger", tm.trigger, (1,), {"after": None}),
        ("swap", tm.swap, (1, 2), {}),
        ("assert_", tm.assert_, (True, "m"), {}),
        ("print", diagnostics.print_, (1, "x"), {}),
        ("dma.copy", tm.dma.copy, (tile,), {"to": "shared", "async_": False, "swizzle": 128}),
        ("tma.copy", tm.tma.copy, (tile,), {"to": "shared", "async_": False, "swizzle": 128}),
        ("mma.fill", tm.mma.fill, (0.0, "f32"), {}),
        ("mma.load", tm.mma.load, (tile,), {"swizzle": 128}),
        ("mma.store", tm.mma.store, (tile, tile), {"transp": False}),
        ("mma.row.row", tm.mma.row.row, (1, 2, 3), {}),
        ("mma.row.row.sp", tm.mma.row.row.sp, (1, 2, 3, 4), {}),
        ("mma.row.row.scale", tm.mma.row.row.scale, (1, 2, 3, tile, 1.0), {}),
        ("mma.scale", tm.mma.scale, (1, tile, 1.0), {}),
        ("apply", tm.apply, (tile,), {}),
        ("atomic.add", tm.atomic.add, (tile, 1), {}),
        ("math.exp", tm.math.exp, (1.0,), {}),
        ("subspan", lambda a, *x: a.subspan(*x), (tile, 4, 4), {}),
        ("subspan.at", lambda a, *x: a.subspan(4, 4).at(*x), (tile, 0, 0), {}),
        ("chunkat", lambda a, *x: a.chunkat(*x), (tile, 0, tm.full), {}),
        ("view", lambda a, *x: a.view(4, 4).from_(*x), (tile, 0, 0), {}),
        ("span_as", lambda a, *x: a.span_as(*x), (tile, [4, 4]), {}),
        ("tile[]", lambda a, *x: a[x], (tile, 0, 0), {}),
        ("load_matrix_a", tm.load_matrix_a[16, 8, 16], (tile, 0, 0), {}),
        ("load_matrix_b", tm.load_matrix_b[16, 8, 16], (tile, 0, 0), {}),
        ("load_matrix_c", tm.load_matrix_c[16, 8, 16], (tile, 0, 0), {}),
        ("load_matrix_e", tm.load_matrix_e[16, 8, 32], (tile, 0, 0), {}),
        ("load_matrix_sfa", tm.load_matrix_sfa[16, 8, 32], (tile, 0, 0), {}),
        ("load_matrix_sfb", tm.load_matrix_sfb[16, 8, 32], (tile, 0, 0), {}),
        ("store_matrix_d", tm.store_matrix_d[16, 8, 16], (tile, 1, 0, 0), {}),
        ("tile[]=", lambda a, x: a.__setitem__((0, 0), x), (tile, 1.0), {}),
    ]
    # A method is called on the tile that it belongs to.
    methods = {n: (0,) for n, f, *_ in calls if getattr(f, "__name__", "") == "<lambda>"}
    inside = [Function(f"inside: {n}", _inside(f), args, k, methods.get(n, ())) for n, f, args, k in calls]
    alone = [c for c in calls if not any(x is tile for x in c[2])]
    outside = [Function(f"outside: {n}", f, args, keywords) for n, f, args, keywords in alone]
    return inside + outside
