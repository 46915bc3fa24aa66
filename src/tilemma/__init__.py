"""tilemma: a language and compiler for 2D tensor contraction on tile-shaped operands.

import tilemma as tm
mod = tm.load("matmul.co")
mod.matmul(a, b, c)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilemma import dtypes, machine, testing
    from tilemma.atoms import catalogue as atoms
    from tilemma.errors import CompileError, LaunchError, TilemmaError, ToolError
    from tilemma.kernels import Kernel, kernel, load
    from tilemma.lang.annotations import Bool, Double, Float, Global, Int, Int64
    from tilemma.lang.constructs import (
        assert_,
        bound,
        cdiv,
        compose,
        dma,
        else_,
        event,
        foreach,
        if_,
        inthreads,
        local,
        mma,
        parallel,
        select,
        shared,
        swap,
        tma,
        trigger,
        ubound,
        var,
        wait,
        while_,
    )
    from tilemma.lang.constructs import print_ as print
    from tilemma.lang.values import full

__version__ = "0.1.0"

# Public name -> (module, name there).  Looked up on first use: importing tilemma stays cheap.
_CONSTRUCTS = (
    "assert_", "bound", "cdiv", "compose", "dma", "else_", "event", "foreach", "if_", "inthreads", "local", "mma",
    "parallel", "select", "shared", "swap", "tma", "trigger", "ubound", "var", "wait", "while_",
)  # fmt: skip
_PUBLIC: dict[str, tuple[str, str | None]] = {
    **{name: ("tilemma.lang.constructs", name) for name in _CONSTRUCTS},
    "print": ("tilemma.lang.constructs", "print_"),
    "full": ("tilemma.lang.values", "full"),
    **{n: ("tilemma.lang.annotations", n) for n in ("Bool", "Double", "Float", "Global", "Int", "Int64")},
    **{n: ("tilemma.errors", n) for n in ("CompileError", "LaunchError", "TilemmaError", "ToolError")},
    **{n: ("tilemma.kernels", n) for n in ("Kernel", "kernel", "load")},
    "atoms": ("tilemma.atoms", "catalogue"),
    "testing": ("tilemma.testing", None),
    "machine": ("tilemma.machine", None),
    "dtypes": ("tilemma.dtypes", None),
}


# `print` stays out of `from tilemma import *`: it would hide Python's.
__all__ = [name for name in _PUBLIC if name != "print"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tilemma' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = importlib.import_module(module)
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
