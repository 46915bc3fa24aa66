"""Selection of ptxas's optimization level (-O2 or -O3) for a block.

For a loop with double-buffered mma.sync operands, also across iterations, ptxas 13.5 at -O3 searches for an order
of loads, copies and multiplies; the search takes half of the compile time.  All other code on mma.sync is the same
at -O2. At -O2 such a loop has its barrier later and reuses fewer operands.  On an H200 this costs nothing if there
are many multiplies between barriers and no wait for the most recent copies (`examples/py/multistage.py`: 128
multiplies in each of 8 warps, a block computes 128 x 256 of the result); with tiles half as wide or as deep it
costs 5 to 9 %, with A's tile the larger one (256 x 128) 5 %, with two buffers 8 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.expr import value_of
from tilemma.ir.tile import Body, CopyWait, For, FragmentRef, Load, Mma, Op, Parallel
from tilemma.ir.walk import walk

# The smallest measured configuration that loses no performance at -O2.
MULTIPLIES, THREADS = 128, 256


def optimization(block: Parallel, threads: int) -> int:
    """The optimization level of ptxas (-O) for a block of ``threads``, whose decisions are all made."""
    loops = (x for x in walk(block.body) if isinstance(x, For))
    return 2 if threads >= THREADS and any(_is_ordered(x) for x in loops) else 3


def _is_ordered(loop: For) -> bool:
    """Whether ``loop`` is as fast at -O2 as at -O3."""
    inside = list(walk(loop.body))
    several = any(isinstance(x, CopyWait) and x.pending > 0 for x in inside)
    return several and _multiplies(loop.body) >= MULTIPLIES and all(_is_wide(x, inside) for x in inside)


def _is_wide(op: Op, inside: Sequence[Op]) -> bool:
    """Whether the tile that ``op`` takes B from, if it is a multiply, is larger than A's."""
    if not (isinstance(op, Mma) and isinstance(op.a, FragmentRef) and isinstance(op.b, FragmentRef)):
        return True
    sizes = {
        x.fragment.name: math.prod(value_of(n) or 0 for n in x.src.base.shape)
        for x in inside
        if isinstance(x, Load)
    }
    return sizes.get(op.b.name, 0) > sizes.get(op.a.name, 0)


def _multiplies(body: Body) -> int:
    """Instructions of each warp in ``body`` that multiply operands loaded ahead."""
    count = 0
    for op in body:
        if isinstance(op, Mma) and _is_loaded_ahead(op):
            count += math.prod(op.tiles or ())
        elif isinstance(op, Parallel):
            count += _multiplies(op.body)
        elif isinstance(op, For):
            count += (value_of(op.stop) or 1) * _multiplies(op.body)
    return count


def _is_loaded_ahead(op: Mma) -> bool:
    """Whether the operands are in one of several sets of registers."""
    atom = catalogue[op.atom] if op.atom is not None else None
    sets = isinstance(op.a, FragmentRef) and bool(op.a.index)
    return sets and isinstance(atom, MmaAtom) and not atom.asynchronous
