"""A kernel compiled for the reference, and its execution on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilemma.errors import print_from_program
from tilemma.ir.operation import require_all
from tilemma.ir.tile import OPERATIONS, Copy, Kernel, Op
from tilemma.ir.types import Buffer
from tilemma.ir.usage import written
from tilemma.targets.cpu import contraction, control, element_work, elements, lane_work, lanes, moves, sync
from tilemma.targets.cpu.expressions import INSTANCE, Frame
from tilemma.targets.cpu.faults import ArgumentMisfit
from tilemma.targets.cpu.perturbation import Perturbation
from tilemma.targets.cpu.steps import Compiler, Scope
from tilemma.targets.cpu.storage import Storage
from tilemma.targets.cpu.tasks import Block, Instance
from tilemma.targets.cpu.values import scalar_value

TABLE: dict[type[Op], Any] = {
    **control.TABLE,
    **elements.TABLE,
    **contraction.TABLE,
    **element_work.TABLE,
    **lane_work.TABLE,
    **sync.TABLE,
    Copy: moves.copy,
}
require_all(TABLE, OPERATIONS, "the reference executor")


class Program:
    """``kernel``, compiled once, to be run any number of times."""

    def __init__(self, kernel: Kernel, perturbation: Perturbation | None = None) -> None:
        self.kernel = kernel
        self.compiler = Compiler(kernel, TABLE, lanes.COLLECTIVE, perturbation)
        self.body = control.body(self.compiler, kernel.body, Scope())
        # Only the statements of a block wait for each other: see `control.blocks`.
        assert not self.body.blocking, "a statement outside the blocks waits"
        self.written = written(kernel)
        self.scratch = {p.buffer.name for p in kernel.arrays if p.scratch}

    def run(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        scalars: Mapping[str, Any],
        dims: Mapping[str, int | float],
        seed: int = 0,
        out: Callable[[str], Any] | None = None,
    ) -> None:
        """See `tilemma.targets.cpu.execute`."""
        c = self.compiler
        block = Block({}, seed)
        c.slot("output", "print")
        # A launch plan counts scalars among its names; those that sizes are made of are integers.
        given = [(c.slot("dim", n), int(v)) for n, v in dims.items() if not isinstance(v, float)]
        given += [
            (c.slot("scalar", p.scalar.name), scalar_value(scalars[p.scalar.name], p.scalar.dtype))
            for p in self.kernel.scalars
        ]
        buffers = [p.buffer for p in self.kernel.arrays]
        if self.kernel.returns is not None and self.kernel.returns.name in arrays:
            buffers.append(self.kernel.returns)
        slots = [(c.slot("buffer", b.name), b) for b in dict.fromkeys(buffers)]
        # NumPy gives an array another shape in place only where it is contiguous.
        copies = {
            n: np.ascontiguousarray(arrays[n])
            for n in c.names.reshaped & arrays.keys()
            if not arrays[n].flags.c_contiguous
        }
        given_arrays, arrays = arrays, {**arrays, **copies}
        f: Frame = [None] * c.names.frame_size
        f[INSTANCE] = Instance(block, control.ALL_THREADS)
        f[c.slot("output", "print")] = out or print_from_program
        for slot, value in given:
            f[slot] = value
        for slot, b in slots:
            f[slot] = self._storage(b, arrays, f)
        with np.errstate(all="ignore"):
            self.body.run(f)
        block.finish()
        for name in copies.keys() & self.written:
            given_arrays[name][...] = copies[name]

    def _storage(self, b: Buffer, arrays: Mapping[str, np.ndarray[Any, Any]], f: Frame) -> Storage:
        a = arrays.get(b.name)
        name = self.kernel.name
        if a is None and b.name in self.scratch:
            a = np.empty(tuple(self.compiler.value(e)(f) for e in b.shape), b.dtype.numpy)
        if a is None:
            raise ArgumentMisfit(
                kernel=name, what=f"array `{b.name}` is missing", expected=f"an array for `{b.name}`"
            )
        shape = tuple(self.compiler.value(e)(f) for e in b.shape)
        if a.dtype != b.dtype.numpy or a.shape != shape:
            raise ArgumentMisfit(
                kernel=name, what=f"`{b.name}` is {a.dtype} {list(a.shape)}", expected=f"{b.dtype} {list(shape)}"
            )
        return Storage(b.name, b.dtype, b.space, a, b.copies, tracked=False)
