"""A construct of the language as a small kernel: what it is given, and what NumPy says it computes.

Each case is written in Python and, with ``co``, in Croqtile.  It runs on the CPU reference, on the decided IR of
each architecture, and on the PTX machine, its arrays surrounded by poison.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

import tilemma as tm
from tilemma import croqtile, dtypes
from tilemma.arithmetic.packing import pack
from tilemma.ir import tile as t
from tilemma.ir.canonical import canonical
from tilemma.ir.expr import Dim
from tilemma.kernels import Kernel
from tilemma.targets.cpu import execute
from tilemma.testing import guarded, random_array

ARCHS = ("sm_80", "sm_90a")
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``given``: every parameter's value, arrays that are only written included; ``expect`` computes from copies
    of them the arrays that change.  ``tolerance`` is relative to the largest magnitude (0: the same bits)."""

    name: str
    kernel: Kernel
    given: Mapping[str, Any]
    expect: Callable[..., Mapping[str, Any]]
    co: str | None = None
    archs: tuple[str, ...] = ARCHS
    tolerance: float = 0.0
    constants: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""

    def wanted(self) -> Arrays:
        copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self.given.items()}
        return dict(self.expect(**copies))

    def run(self, call: Callable[[Arrays], Any], what: str) -> None:
        """Run ``call`` on guarded copies of the arguments and compare."""
        arguments: Arrays = dict(self.given)
        guards = {k: guarded(v) for k, v in self.given.items() if isinstance(v, np.ndarray)}
        arguments.update({k: g.array for k, g in guards.items()})
        call(arguments)
        wanted = self.wanted()
        for name, g in guards.items():
            g.check()
            self.compare(f"{what}: {name}", g.array, wanted.get(name, self.given[name]))

    def compare(self, what: str, got: Any, wanted: Any) -> None:
        assert wanted.shape == got.shape and wanted.dtype == got.dtype, (what, wanted.shape, wanted.dtype)
        if self.tolerance == 0 or wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(got, wanted, err_msg=what)
            return
        scale = float(np.abs(wanted.astype(np.float64)).max(initial=1.0))
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=self.tolerance * scale, err_msg=what
        )

    # ---- the ways to run it ------------------------------------------------------------------------------

    def on_cpu(self) -> None:
        self.run(lambda a: self.kernel(**a, **self.constants), "CPU reference")

    def decided(self, arch: str) -> None:
        """The reference on the IR with every decision made gives the same."""
        compiled = self.kernel.compile(arch, sizes=self.sizes, **self.constants)
        self.run(lambda a: run_ir(compiled.kernel, a), f"decided IR for {arch}")

    def on_machine(self, arch: str) -> None:
        self.run(lambda a: self.kernel.on("machine", arch=arch)(**a, **self.constants), f"machine, {arch}")

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of the arrays, and the integer arguments."""
        shapes = ((p.buffer.shape, self.given[p.buffer.name].shape) for p in self.kernel.traced(**self.constants).arrays
                  if p.buffer.name in self.given)  # fmt: skip
        numbers = {name: int(v) for name, v in self.given.items() if isinstance(v, (int, np.integer))}
        return numbers | {
            d.name: n for dims, shape in shapes for d, n in zip(dims, shape, strict=True) if isinstance(d, Dim)
        }

    def croqtile(self) -> Kernel:
        assert self.co is not None
        module = croqtile.load(self.co, f"{self.name}.co", dict(self.constants))
        return Kernel(module.sources[self.name])

    def twins(self) -> bool:
        """Whether both spellings give the same tile IR."""
        return canonical(self.croqtile().build(sizes=self.sizes)) == canonical(
            self.kernel.build(sizes=self.sizes, **self.constants)
        )

    def croqtile_case(self) -> Case:
        return Case(self.name, self.croqtile(), self.given, self.expect, None, self.archs, self.tolerance)


def run_ir(kernel: t.Kernel, arguments: Arrays) -> None:
    arrays = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
    scalars = {k: v for k, v in arguments.items() if k not in arrays}
    dims: dict[str, int] = {}
    passed = [p for p in kernel.arrays if not p.scratch]
    for p in passed:
        for extent, n in zip(p.buffer.shape, arrays[p.buffer.name].shape, strict=True):
            if hasattr(extent, "name"):
                dims[extent.name] = n
    for p in passed:
        given = arrays[p.buffer.name]
        if p.buffer.dtype is dtypes.u8 and given.dtype != np.uint8:  # decided: elements are packed
            narrow = dtypes.from_numpy(given.dtype)
            assert narrow is not None
            arrays[p.buffer.name] = pack(given, narrow)
    execute(kernel, arrays, scalars, dims=dims)


# The files of this folder that define cases.
FILES = (
    *("combinations", "contraction", "control", "copying", "dialects", "epilogues", "lane_work", "pipelining"),
    *("reductions", "scalars", "spellings", "storage", "views"),
)
_CASES: dict[str, Case] = {}


def cases(*files: str) -> dict[str, Case]:
    """The cases of these files by name; those of all files, if none is named."""
    wanted = files or FILES
    for file in wanted:
        import_module(file)
    return {name: case for name, case in _CASES.items() if case.file in wanted}


def construct(
    *,
    given: Mapping[str, Any],
    expect: Callable[..., Mapping[str, Any]],
    co: str | None = None,
    archs: tuple[str, ...] = ARCHS,
    tolerance: float = 0.0,
    **constants: Any,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator: the function (or kernel) as a kernel, and a case of the file that is being imported."""
    file = sys._getframe(1).f_globals["__name__"]

    def add(function: Callable[..., Any]) -> Kernel:
        kernel = function if isinstance(function, Kernel) else tm.kernel(function)
        assert kernel.name not in _CASES, kernel.name
        _CASES[kernel.name] = Case(kernel.name, kernel, given, expect, co, archs, tolerance, constants, file)
        return kernel

    return add


def random(dtype: str, *shape: int, seed: int = 0, kind: str = "randn") -> Any:
    return random_array(shape, dtype, seed, kind)


def small(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Small integers: sums and products are exact in every type."""
    return random_array(shape, dtype, seed, "small_integers")


def unwritten(dtype: str, *shape: int) -> Any:
    """An array no element of which looks written."""
    kind = dtypes.dtype(dtype).numpy
    if kind.kind in "iu":
        return np.full(shape, np.iinfo(kind).max, kind)
    return np.full(shape, np.nan).astype(kind) if kind.kind != "b" else np.zeros(shape, kind)


def tiles(extent: int, size: int) -> Iterator[slice]:
    return (slice(i, i + size) for i in range(0, extent, size))
