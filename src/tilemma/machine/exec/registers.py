"""setmaxnreg (PTX ISA, "Miscellaneous Instructions")."""

from __future__ import annotations

from typing import Any

from tilemma.machine.catalogue import RegisterPool
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.scheduler import AGAIN
from tilemma.machine.state import Frame
from tilemma.machine.syntax import Entry, Immediate


def at_launch(entry: Entry) -> int:
    """Registers of a thread at launch; 0 where the directives leave it open and ptxas ignores setmaxnreg.

    ptxas gives a kernel the largest count of its `setmaxnreg.inc` where all threads can have that many, and an
    equal share of the 65536 registers where they cannot (`ptxas -v`, CUDA 13.5).
    """
    directives = entry.directives
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    threads = 1
    for n in directives.get("maxntid") or directives.get("reqntid") or (0,):
        threads *= n
    if not threads or "minnctapersm" not in directives:
        return 0
    threads *= directives["minnctapersm"][0]
    counts = [
        ins.operands[0].value
        for ins in entry.instructions
        if ins.opcode.startswith("setmaxnreg.inc") and isinstance(ins.operands[0], Immediate)
    ]
    if counts and max(counts) * threads <= 65536:
        return int(max(counts))
    return min(255, 65536 // threads // 8 * 8)


@instruction("setmaxnreg")
def setmaxnreg(d: Decoder) -> None:
    d.needs(90, accelerated=True)
    grows = d.one_of(("inc", "dec")) == "inc"
    d.only("sync", "aligned", "u32")
    count = d.immediate(d.operands[0])
    if count % 8 or not 24 <= count <= 256:
        d.bad(f"the count {count} is no multiple of 8 from 24 to 256")
    ins, start = d.ins, at_launch(d.program.entry)

    def run(f: Frame, m: Any) -> Any:
        w, cta = f.w, f.w.cta
        aligned.whole_warp(f, ins, m)
        if not start:
            return None
        if cta.register_pool < 0:
            cta.register_pool = 0
            for warp in cta.warps:
                warp.register_count = start
        change = (count - w.register_count) * 32
        if (change < 0) == grows and change:
            w.report(
                RegisterPool,
                ins,
                what=f"`{ins.opcode} {count}` by a warp that has {w.register_count} registers a thread",
            )
            return None
        if change > cta.register_pool:
            cta.pool_waiters.append(f)
            cta.machine.suspend(
                f, f"{change} registers of the CTA's pool, which has {cta.register_pool}", "registers"
            )
            return AGAIN
        cta.register_pool -= change
        w.register_count = count
        if change < 0:
            waiters, cta.pool_waiters = cta.pool_waiters, []
            for waiting in waiters:
                cta.machine.wake(waiting)
        return None

    d.visible(run)
