"""tilemma: a language and compiler for 2D tensor contraction on tile-shaped operands.

import tilemma as tm
mod = tm.load("matmul.co")
mod.matmul(a, b, c)
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilemma import dtypes, machine, ops, sparse, targets, testing
    from tilemma.atoms import catalogue as atoms
    from tilemma.c_export import export
    from tilemma.errors import CompileError, LaunchError, TilemmaError, ToolError
    from tilemma.instructions import instruction
    from tilemma.kernels import Kernel, kernel
    from tilemma.lang.annotations import Bool, Double, Float, Global, Int, Int64, Scalar, Tile, Value
    from tilemma.lang.atomics import atomic
    from tilemma.lang.contraction import mma
    from tilemma.lang.control import bound, break_, continue_, else_, foreach, if_, inthreads, parallel, while_
    from tilemma.lang.copies import dma, tma
    from tilemma.lang.diagnostics import assert_
    from tilemma.lang.diagnostics import print_ as print
    from tilemma.lang.events import event, swap, sync, trigger, wait
    from tilemma.lang.functions import cdiv, compose, select, ubound
    from tilemma.lang.lanes import (
        lane,
        load_matrix_a,
        load_matrix_b,
        load_matrix_c,
        load_matrix_e,
        load_matrix_sfa,
        load_matrix_sfb,
        store_matrix_d,
    )
    from tilemma.lang.math import math as math
    from tilemma.lang.pipeline import Pipeline
    from tilemma.lang.registers import apply
    from tilemma.lang.storage import global_, local, shared, var
    from tilemma.lang.views import full
    from tilemma.measure import autotune, bench, report
    from tilemma.modules import load, loads
    from tilemma.quantized import Quantized, quantize

__version__ = "0.1.0"

# Public name -> (module, name there).  Looked up on first use: importing tilemma stays cheap.
_LANGUAGE = {
    "annotations": ("Bool", "Double", "Float", "Global", "Int", "Int64", "Scalar", "Tile", "Value"),
    "atomics": ("atomic",),
    "contraction": ("mma",),
    "control": (
        "bound", "break_", "continue_", "else_", "foreach", "if_", "inthreads", "parallel", "while_",
    ),
    "copies": ("dma", "tma"),
    "diagnostics": ("assert_",),
    "events": ("event", "swap", "sync", "trigger", "wait"),
    "functions": ("cdiv", "compose", "select", "ubound"),
    "lanes": (
        "lane", "load_matrix_a", "load_matrix_b", "load_matrix_c", "load_matrix_e", "load_matrix_sfa",
        "load_matrix_sfb", "store_matrix_d",
    ),
    "pipeline": ("Pipeline",),
    "registers": ("apply",),
    "storage": ("global_", "local", "shared", "var"),
    "views": ("full",),
}  # fmt: skip
_PUBLIC: dict[str, tuple[str, str | None]] = {
    **{name: (f"tilemma.lang.{module}", name) for module, names in _LANGUAGE.items() for name in names},
    "math": ("tilemma.lang.math", "math"),
    "print": ("tilemma.lang.diagnostics", "print_"),
    **{n: ("tilemma.errors", n) for n in ("CompileError", "LaunchError", "TilemmaError", "ToolError")},
    **{n: ("tilemma.kernels", n) for n in ("Kernel", "kernel")},
    **{n: ("tilemma.modules", n) for n in ("load", "loads")},
    "atoms": ("tilemma.atoms", "catalogue"),
    "instruction": ("tilemma.instructions", "instruction"),
    "ops": ("tilemma.ops", None),
    "targets": ("tilemma.targets", None),
    "testing": ("tilemma.testing", None),
    "machine": ("tilemma.machine", None),
    "sparse": ("tilemma.sparse", None),
    "autotune": ("tilemma.measure", "autotune"),
    "bench": ("tilemma.measure", "bench"),
    "export": ("tilemma.c_export", "export"),
    "report": ("tilemma.measure", "report"),
    **{n: ("tilemma.quantized", n) for n in ("Quantized", "quantize")},
    "dtypes": ("tilemma.dtypes", None),
}


# `print` and `math` stay out of `from tilemma import *`: they would hide Python's.
__all__ = [
    "Bool", "CompileError", "Double", "Float", "Global", "Int", "Int64", "Kernel", "LaunchError", "Pipeline",
    "Quantized", "Scalar", "Tile", "TilemmaError", "ToolError", "Value", "apply", "assert_", "atomic", "atoms",
    "autotune", "bench", "bound", "break_", "cdiv", "compose", "continue_", "dma", "dtypes", "else_", "event",
    "export", "foreach", "full", "global_", "if_", "instruction", "inthreads", "kernel", "lane", "load",
    "load_matrix_a", "load_matrix_b", "load_matrix_c", "load_matrix_e", "load_matrix_sfa", "load_matrix_sfb",
    "loads", "local", "machine", "mma", "ops", "parallel", "quantize", "report", "select", "shared", "sparse",
    "store_matrix_d", "swap", "sync", "targets", "testing", "tma", "trigger", "ubound", "var", "wait", "while_",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from tilemma.ir.spellings import python_form

        form = "" if name.startswith("_") else python_form(name) or _element_type(name)
        message = f"module 'tilemma' has no attribute {name!r}" + (f"; {form}" if form else "")
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    from tilemma.forking import collection_paused

    module, attribute = _PUBLIC[name]
    # A child forked while another thread is inside an import could never import that module.
    with collection_paused():
        known = len(sys.modules)
        value = importlib.import_module(module)
        if name == "kernel":
            importlib.import_module("tilemma.lang.source")  # the decorator reads functions with it
        if len(sys.modules) > known + 50:
            gc.collect(1)  # what so many modules hold stays: it becomes old at once, not by several collections
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def _element_type(name: str) -> str:
    """`write ...` for the name of an element type, such as ``float16``."""
    from tilemma.dtypes import BY_NAME, named_elsewhere

    found = name if name in BY_NAME else named_elsewhere(name)
    return f'write "{found}": element types are texts' if found else ""


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
