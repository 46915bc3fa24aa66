"""Lowering of `swap` of futures: it exchanges the shared-memory offsets of their buffers, which are in
registers."""

from __future__ import annotations

from tilemma.ir import tile
from tilemma.ir.lane import Imm
from tilemma.passes.rotations import Rotations
from tilemma.targets.ptx.lower.context import Lowering, lowers


def place_rotating(lo: Lowering, body: tile.Body) -> None:
    """Define a register with the current offset of each buffer that a swap of ``body`` renames."""
    for group in Rotations(body).groups:
        for name in sorted(group):
            offset = lo.allocs[name].offset
            assert offset is not None, f"{name} has no place in shared memory"
            reg = lo.e.reg(f"{name}_place", "s32", mutable=True)
            lo.e.bounded(reg, 0, 2**18)
            lo.e.do("mov.b32", (reg,), (Imm(offset),))
            lo.rotating[name] = reg


@lowers(tile.SwapFutures)
def lower_swap_futures(lo: Lowering, op: tile.SwapFutures) -> None:
    """The first name gets the second's offset, and so on; the last gets the first's."""
    names = Rotations(lo.kernel.body).buffers(op)
    regs = [lo.rotating[n] for n in names]
    first = lo.e.reg("place", "s32", mutable=True)
    lo.e.do("mov.b32", (first,), (regs[0],))
    for to, source in zip(regs, (*regs[1:], first), strict=True):
        lo.e.do("mov.b32", (to,), (source,))
