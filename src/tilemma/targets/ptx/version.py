"""The lowest PTX ISA version that supports a kernel's target and instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from tilemma.atoms import catalogue
from tilemma.atoms.atom import arch_number
from tilemma.ir import lane

Version = tuple[int, int]

# PTX ISA, "Target ISA notes" of .target: the version that introduced each.
_ARCH: dict[str, Version] = {
    "sm_70": (6, 0), "sm_75": (6, 3), "sm_80": (7, 0), "sm_86": (7, 1), "sm_87": (7, 4), "sm_89": (7, 8),
    "sm_90": (7, 8), "sm_90a": (8, 0), "sm_100": (8, 6), "sm_100a": (8, 6), "sm_103": (8, 8), "sm_103a": (8, 8),
    "sm_120": (8, 7), "sm_120a": (8, 7),
}  # fmt: skip

# PTX ISA notes of the instructions that lowering writes without a record; matched as prefixes.
_MNEMONIC: tuple[tuple[str, Version], ...] = (
    ("wgmma.", (8, 0)),
    ("fence.proxy.async", (8, 0)),
    ("fence.mbarrier_init", (8, 0)),
    ("mbarrier.try_wait", (7, 8)),
    ("mbarrier.arrive.expect_tx", (8, 0)),
    ("mbarrier.expect_tx", (8, 0)),
    ("mbarrier.test_wait.parity", (7, 1)),
    ("mbarrier.", (7, 0)),
    ("cp.async.bulk", (8, 0)),
    ("prefetch.tensormap", (8, 0)),
    ("griddepcontrol", (7, 8)),
    ("createpolicy", (7, 4)),
    ("setmaxnreg", (8, 0)),
    ("elect.sync", (8, 0)),
    ("mapa", (7, 8)),
    ("barrier.cluster", (7, 8)),
    ("cvt.rn.satfinite.e4m3x2.f32", (8, 1)),
    ("cvt.rn.satfinite.e5m2x2.f32", (8, 1)),
    ("cvt.rn.f16x2.e", (8, 1)),
)


_BODIES = {
    lane.LaneFor: ("body",),
    lane.LaneUntil: ("body",),
    lane.LaneIf: ("then", "otherwise"),
    lane.LaneWhile: ("setup", "body"),
}


def operations(body: lane.LaneBody) -> Iterator[lane.LaneOp]:
    """Every operation of ``body``, those inside control included."""
    waiting = list(reversed(body))
    while waiting:
        op = waiting.pop()
        yield op
        if names := _BODIES.get(type(op)):
            for name in reversed(names):
                waiting += reversed(getattr(op, name))


def ptx_version(kernel: lane.LaneKernel, inside: Iterable[lane.LaneOp] | None = None) -> Version:
    """The version that the target, the records and the instructions of ``kernel`` need.

    ``inside``: its `operations`, where they are known."""
    lowest = _ARCH.get(kernel.arch) or max(
        v for a, v in _ARCH.items() if arch_number(a) <= arch_number(kernel.arch)
    )
    if kernel.cluster is not None:
        lowest = max(lowest, (7, 8))
    mnemonics, atoms = set[str](), set[str]()
    for op in operations(kernel.body) if inside is None else inside:
        if isinstance(op, lane.Instr):
            mnemonics.add(op.mnemonic)
        elif isinstance(op, (lane.AtomInstr, lane.CopyInstr)):
            atoms.add(op.atom)
    return max([lowest, *map(_needed, mnemonics), *[catalogue[name].ptx_version for name in atoms]])


@cache
def _needed(mnemonic: str) -> Version:
    return next((version for prefix, version in _MNEMONIC if mnemonic.startswith(prefix)), (1, 0))
