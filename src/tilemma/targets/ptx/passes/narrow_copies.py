"""Selection of loads and stores for narrow copies that nothing overlaps, in place of cp.async.

A cp.async of a few bytes a lane takes an SM longer than a load and a store.  On an H200, in tiles of 64x64x64,
414 products of 48x296x226 (pieces of four bytes) took 53 us by cp.async three stages ahead, and 42 us by loads one
step ahead; 328 of 88x240x294 took 58 us by cp.async that was not ahead, and 55 us by loads.  With pieces of eight
bytes 472 products of 56x336x84 took 28 and 25 us, and 3090 of 40x64x476 107 us both ways.
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.pipeline import effective
from tilemma.ir.tile import Copy, For, Kernel, Mma, Op
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Site, sites
from tilemma.records import record
from tilemma.targets.ptx.passes.copies_ahead import multiplies_by_warps
from tilemma.targets.ptx.passes.pipeline_loops import is_alone
from tilemma.targets.ptx.target import Target

# Bytes of a piece from which on cp.async is as fast.
NARROW = 16


@record(slots=False)
class NarrowCopies:
    """Moves tiles in narrow pieces through registers, unless cp.async pipelines their loop: where the program asks
    for stages, or for copies ahead without wgmma, or multiplies by mma.sync and says nothing."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        # Older targets were not timed.
        if not Target.of(self.arch).tma:
            return kernel
        changed: dict[int, Op] = {}
        for site in sites(kernel.body):
            op = site.op
            if isinstance(op, Copy) and _is_narrow(op) and not _is_pipelined(site, kernel):
                assert op.plan is not None
                text = f"ldst, {op.plan.vector} bytes at a time: cp.async takes longer for narrow pieces"
                log.append(Decision("copies", f"{op.src.base.name} => {op.dst.base.name}", text, span=op.span))
                changed[id(op)] = replace(op, plan=replace(op.plan, engine="ldst"))
        return replace(kernel, body=rewrite(kernel.body, lambda op: changed.get(id(op), op)))


def _is_narrow(op: Copy) -> bool:
    synchronous = not (op.asynchronous or op.event or op.future)
    return synchronous and op.plan is not None and op.plan.engine == "cp.async" and op.plan.vector < NARROW


def _is_pipelined(site: Site, kernel: Kernel) -> bool:
    """Whether `PipelineLoops` issues the copy ahead by cp.async, if it can."""
    loop = next((p for p in reversed(site.parents) if isinstance(p, For)), None)
    if loop is None:
        return False
    asked = effective(loop.pipeline, kernel.pipeline)
    if asked is None:
        return multiplies_by_warps(loop) or is_alone(loop, site.parents)
    if asked.off or asked.stages is not None:
        return not asked.off and asked.stages != 1
    # Loads an iteration ahead were timed beside wgmma.
    return not any(isinstance(x, Mma) and _is_asynchronous(x.atom) for x in walk((loop,)))


def _is_asynchronous(atom: str | None) -> bool:
    found = None if atom is None else catalogue[atom]
    return isinstance(found, MmaAtom) and found.asynchronous
