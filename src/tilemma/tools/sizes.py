"""Problem sizes for `tilemma check` without `--shape`: the smallest ones that reach every path of a kernel.

A dimension gets one whole tile and a part of the next; one that bounds a loop gets enough tiles to fill each ring
of buffers and begin again.  One that no tile divides, such as the items of a batch, gets two.  A larger candidate
is taken only if a run on the PTX machine executes instructions that the smaller one does not.

Innermost dimensions are multiples of 16 elements, so that arrays have the alignment that the default of 1024
gives them.  Where a kernel refuses sizes that its tiles do not divide, whole tiles are taken; where its assertions
relate dimensions to each other (`K2 == cdiv(K, 2)`), those are changed that nothing divides.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tilemma import machine
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.effects import rotated
from tilemma.ir.expr import Binary, Const, Dim, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.walk import expressions, touched, walk
from tilemma.kernels import Kernel, facts_of
from tilemma.records import record
from tilemma.tools.conditions import fitted
from tilemma.tools.problem import dimensions, make_problem
from tilemma.tools.steering import scattering

# Elements: 16 bytes or more of every type of 8 bits, and twice that for narrower ones.
STEP, NARROW_STEP = 16, 32
# Multiples of the step that are tried: an extent that follows from another may be a part of it.
STEPS = (1, 2, 4)
# The tile of an innermost dimension that no expression divides and no window of constant extent moves along.
TILE = 32
# What a whole tile of an outer dimension lacks, where a part of one is wanted.
ODD = 3
# Warp instructions of one run beyond which no larger candidate is tried.
MOST = 200_000
# Warp instructions that a run may be expected to execute, if it is to be tried after a smaller one.
LONGEST = 2 * MOST

Sizes = dict[str, int]


@record
class _Tried:
    """A candidate, and what it executed."""

    sizes: Sizes
    lines: frozenset[int]
    instructions: int
    ok: bool


def smallest_sizes(
    kernel: Kernel, constants: Mapping[str, Any], arch: str, scalars: Mapping[str, Any]
) -> Sizes | None:
    """Extents of all dimensions that reach every path that larger ones reach; None if none could be run."""
    built = kernel.traced(**constants)
    search = _Search(kernel, constants, arch, scalars)
    for ragged in (True, False):
        best: _Tried | None = None
        for sizes in _candidates(built, ragged, scalars):
            if best is not None and _work(best, sizes) > LONGEST:
                break
            found = search.run(sizes)
            if found is None:
                continue
            if best is None or not found.lines <= best.lines:
                best = found
            # After a hazard there is nothing to look for: the check finds it with these sizes.
            if not found.ok or found.instructions > MOST or not search.all_lines - found.lines:
                break
        if best is not None:
            return best.sizes
    return None


def _work(tried: _Tried, sizes: Sizes) -> float:
    """About how many warp instructions a run with ``sizes`` executes, from those of another."""
    return tried.instructions * prod(extent / tried.sizes[name] for name, extent in sizes.items())


class _Search:
    """Runs of candidates on the machine."""

    def __init__(
        self, kernel: Kernel, constants: Mapping[str, Any], arch: str, scalars: Mapping[str, Any]
    ) -> None:
        self.kernel, self.constants, self.arch, self.scalars = kernel, constants, arch, scalars
        self.all_lines: frozenset[int] = frozenset()
        self._compiled: dict[Any, Compiled] = {}

    def run(self, sizes: Sizes) -> _Tried | None:
        """One run with ``sizes``; None where the kernel refuses them."""
        try:
            problem = make_problem(self.kernel.build(sizes=sizes, **self.constants), sizes, self.scalars, 0)
            facts = facts_of(problem.arrays)
            compiled = self.kernel.compile(self.arch, facts=facts, sizes=sizes, **self.constants)
            values = {**problem.arrays, **problem.scalars}
            lines: frozenset[int] = frozenset()
            every: frozenset[int] = frozenset()
            instructions, ok = 0, True
            for launch in compiled.launches:
                with contextlib.redirect_stdout(io.StringIO()):
                    verdict = machine.check(compiled.ptx, launch, values, schedules=1)
                assert verdict.coverage is not None
                lines |= verdict.coverage.ran
                every |= verdict.coverage.ran | frozenset(verdict.coverage.missed)
                instructions += verdict.instructions
                ok = ok and verdict.ok
        except TilemmaError:
            return None
        self.all_lines = every
        return _Tried(sizes, lines, instructions, ok)


def tile_extents(kernel: t.Kernel) -> Sizes:
    """The largest number that each dimension is divided by, else the largest window along it, in multiples of the
    step; 1 for one that is only counted (`_counted`)."""
    found = _divisors(kernel)
    for name, extent in _windows(kernel).items():
        found[name] = found[name] or extent
    step, counted = _step(kernel), _counted(kernel)
    return {n: 1 if n in counted else -(-(extent or TILE) // step) * step for n, extent in found.items()}


def _divisors(kernel: t.Kernel) -> Sizes:
    """The largest number that each dimension is divided by; 0 if none."""
    found = dict.fromkeys(dimensions(kernel), 0)
    for op in walk(kernel.body):
        if isinstance(op, t.Assert):
            continue
        extents = [i.extent for i in op.indices] if isinstance(op, t.Parallel) else []
        for x in (x for e in (*expressions(op), *extents) for x in parts(e)):
            match x:
                case Binary(op="cdiv" | "floordiv" | "mod", a=Dim(name=name), b=Const(value=int(n))):
                    found[name] = max(found[name], n)
    return found


def _windows(kernel: t.Kernel) -> Sizes:
    """The largest constant extent of a view along each dimension, where it is more than an element."""
    found: Sizes = {}
    for view in (v for op in walk(kernel.body) for v in touched(op)):
        for axis in view.axes:
            dim, extent = view.base_shape[axis.dim], value_of(axis.extent)
            if isinstance(dim, Dim) and extent is not None and extent > 1:
                found[dim.name] = max(found.get(dim.name, 0), extent)
    return found


def _innermost(kernel: t.Kernel) -> set[str]:
    """The dimensions on which the alignment of an array's rows depends."""
    shapes = [p.buffer.shape for p in kernel.arrays]
    return {x.name for shape in shapes if len(shape) > 1 for x in parts(shape[-1]) if isinstance(x, Dim)}


def _counted(kernel: t.Kernel) -> set[str]:
    """The dimensions that count items, blocks or iterations: no tile has a part of them."""
    tiled = {n for n, divisor in _divisors(kernel).items() if divisor} | _windows(kernel).keys()
    alone = {
        x.name for p in kernel.arrays if len(p.buffer.shape) == 1 for x in p.buffer.shape if isinstance(x, Dim)
    }
    others = {x.name for p in kernel.arrays for e in p.buffer.shape[:-1] for x in parts(e) if isinstance(x, Dim)}
    return set(dimensions(kernel)) - tiled - _innermost(kernel) - (alone - others)


def _step(kernel: t.Kernel) -> int:
    return NARROW_STEP if any(p.buffer.dtype.bits < 8 for p in kernel.arrays) else STEP


def _most_slots(kernel: t.Kernel) -> int:
    """The slots of the largest ring of buffers or events."""
    rings = [op.buffer.copies or 1 for op in walk(kernel.body) if isinstance(op, t.Alloc)]
    rings += [op.event.slots or 1 for op in walk(kernel.body) if isinstance(op, t.DeclareEvent)]
    rings += [len(rotated(op)) for op in walk(kernel.body)]
    return max(rings, default=1)


def _looped(kernel: t.Kernel) -> set[str]:
    """The dimensions that bound a loop alone: a loop over the tiles of several dimensions (a persistent kernel)
    would need many tiles of each."""
    bounds = [e for op in walk(kernel.body) if isinstance(op, t.For) for e in (op.start, op.stop)]
    named = [{x.name for x in parts(e) if isinstance(x, Dim)} for e in bounds]
    return {name for names in named if len(names) == 1 for name in names}


def _candidates(kernel: t.Kernel, ragged: bool, scalars: Mapping[str, Any]) -> Iterator[Sizes]:
    """Sizes from small to large for which the kernel's assertions hold."""
    slots, tiles = _most_slots(kernel), tile_extents(kernel)
    free = {name for name, divisor in _divisors(kernel).items() if not divisor}
    inner, step = _innermost(kernel), _step(kernel)
    for once, around in ((1, slots), (1, 2 * slots + 1), (2, 2 * slots + 1)):
        tried = (_multiples(kernel, tiles, once, around, ragged * more) for more in STEPS)
        found = [x for x in (fitted(kernel, sizes, scalars, free) for sizes in tried) if x is not None]
        yield from sorted(found, key=lambda sizes: any(sizes[n] % step for n in inner))[:1]


def _multiples(kernel: t.Kernel, tiles: Sizes, once: int, around: int, steps: int) -> Sizes:
    """``once`` (in loops ``around``) whole tiles of each dimension and ``steps`` of the next; a whole one if 0."""
    looped, counted, scattered = _looped(kernel), _counted(kernel), scattering(kernel)
    inner = _innermost(kernel)
    sizes = {}
    for name in dimensions(kernel):
        count = around if name in looped else once
        if name in counted:
            # Blocks whose place is read from data could write to the same one.
            sizes[name] = 1 if name in scattered else around + 1 if name in looped else 2
        else:
            part = steps * _step(kernel) or tiles[name]
            # Steps that are whole tiles leave no part of one; outer dimensions may have any extent.
            odd = steps and part % tiles[name] == 0 and name not in inner
            sizes[name] = count * tiles[name] + part - (ODD if odd else 0)
    return sizes


def around_rings(kernel: t.Kernel, decided: t.Kernel, sizes: Sizes) -> Sizes:
    """``sizes`` with as many whole tiles more that each loop fills each ring of the ``decided`` kernel and begins
    again."""
    tiles, slots = tile_extents(kernel), _most_slots(decided)
    more = {n: max(0, slots - sizes[n] // tiles[n]) * tiles[n] for n in _looped(kernel) & set(sizes)}
    return {n: extent + more.get(n, 0) for n, extent in sizes.items()}


def filling_sizes(kernel: t.Kernel, decided: t.Kernel) -> Sizes:
    """One tile of each dimension, and along one that bounds a loop as many as fill each ring of the decided kernel
    twice and begin again."""
    names = dimensions(kernel)
    tiles, slots = tile_extents(kernel), _most_slots(decided)
    return {name: tiles[name] * (2 * slots + 1 if name in _looped(kernel) else 1) for name in names}
