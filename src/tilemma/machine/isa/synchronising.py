"""Which forms of barriers, fences, mbarriers and of some instructions of warps exist: rows for ``opcodes``.

Sources: PTX ISA 9.0, the syntax of each instruction; where ptxas 13 differs, as ptxas takes them.  A key is the
name with the words that tell instructions apart.
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.machine.isa.copying import COPYING
from tilemma.machine.isa.rows import Row

_SHARED = "[shared|shared::cta]"
_PACKED = "b8x16.b6x16_p32|b4x16_p64"
_SPACES = "[shared|shared::cta|shared::cluster]"
_ARRIVALS = (
    Row("b64", f"[release.cta] {_SHARED}", 80), Row("b64", f"noComplete [release.cta] {_SHARED}", 80, operands=3),
    Row("b64", "shared::cluster", 90), Row("b64", f"release|relaxed cta|cluster {_SPACES}", 90),
    Row("b64", f"expect_tx [release.cta|release.cluster|relaxed.cta|relaxed.cluster] {_SPACES}", 90, operands=3),
)  # fmt: skip
_SETUP = (Row("b64", _SHARED, 80),)
_COUNTS = (Row("b64", f"[relaxed.cta|relaxed.cluster] {_SPACES}", 90),)
_ALIGNED = (Row("", "[aligned]"),)
# ptxas does without `.aligned`, which the ISA demands.
_GROUPS = (Row("", "sync [aligned]", 90),)

SYNCHRONISING: dict[str, tuple[Row, ...]] = {
    "bar.sync": (Row(""),), "bar.arrive": (Row("", operands=2),),
    "bar.red": (Row("u32", "popc"), Row("pred", "and|or")),
    "barrier.sync": _ALIGNED, "barrier.arrive": (Row("", "[aligned]", operands=2),),
    "barrier.red": (Row("u32", "popc [aligned]"), Row("pred", "and|or [aligned]")),
    "barrier.cluster.arrive": (Row("", "[release|relaxed] [aligned]", 90),),
    "barrier.cluster.wait": (Row("", "[acquire] [aligned]", 90),),
    "membar": (Row("", "cta|gl|sys"), Row("", "proxy alias|async")),
    "fence": (
        Row("", "[sc|acq_rel] cta|gpu|sys", 70), Row("", "[sc|acq_rel] cluster", 90),
        Row("", "acquire|release cta|cluster|gpu|sys", 90),
        Row("", "acquire sync_restrict::shared::cluster cluster", 90),
        Row("", "release sync_restrict::shared::cta cluster", 90),
    ),
    "fence.proxy": (
        Row("", "alias", 70), Row("", "async [global|shared::cta|shared::cluster]", 90),
        Row("", "async::generic acquire sync_restrict::shared::cluster cluster", 90),
        Row("", "async::generic release sync_restrict::shared::cta cluster", 90),
        Row("", "tensormap::generic acquire cta|cluster|gpu|sys", 90, operands=2),
        Row("", "tensormap::generic release cta|cluster|gpu|sys", 90),
    ),
    "fence.mbarrier_init": (Row("", "release cluster", 90),),
    "mbarrier.init": tuple(replace(row, operands=2) for row in _SETUP),
    "mbarrier.inval": tuple(replace(row, operands=1) for row in _SETUP),
    "mbarrier.arrive": _ARRIVALS, "mbarrier.arrive_drop": _ARRIVALS,
    "mbarrier.expect_tx": _COUNTS, "mbarrier.complete_tx": _COUNTS,
    "mbarrier.test_wait": (
        Row("b64", f"[parity] [acquire.cta] {_SHARED}", 80, operands=3),
        Row("b64", f"[parity] acquire|relaxed cta|cluster {_SHARED}", 90, operands=3),
    ),
    "mbarrier.try_wait": (
        Row("b64", f"[parity] [acquire.cta|acquire.cluster|relaxed.cta|relaxed.cluster] {_SHARED}", 90),
    ),
    "mbarrier.pending_count": (Row("b64", "", 80),),
    **dict.fromkeys(
        ("cp.async.ca", "cp.async.cg"),
        (Row("", "shared|shared::cta global [L2::cache_hint] [L2::64B|L2::128B|L2::256B]", 80),),
    ),
    "createpolicy.cvt": (Row("b64", "L2", 80),),
    "applypriority": (Row("", "[global] L2::evict_normal", 80, operands=2),),
    "prefetch": (
        Row("", "[global|local] L1|L2"), Row("", "[param|const] tensormap", 90),
        Row("", "[global] L2::evict_last|L2::evict_normal", 80),
    ),
    "prefetchu": (Row("", "L1"),),
    "griddepcontrol": (Row("", "launch_dependents|wait", 90),),
    "nanosleep": (Row("u32"),),
    "setmaxnreg": (Row("u32", "inc|dec sync aligned", 90, accelerated=True),),
    "shfl.sync": (Row("b32", "up|down|bfly|idx"),),
    "ldmatrix": (
        Row("b16", f"sync aligned m8n8 x1|x2|x4 [trans] {_SHARED}", 75),
        Row("b8", f"sync aligned m16n16 x1|x2 trans {_SHARED}", 100, accelerated=True),
        Row(_PACKED, f"sync aligned m8n16 x1|x2|x4 {_SHARED}", 100, accelerated=True),
        Row(_PACKED, f"sync aligned m16n16 x1|x2 trans {_SHARED}", 100, accelerated=True),
    ),
    "stmatrix": (
        Row("b16", f"sync aligned m8n8 x1|x2|x4 [trans] {_SHARED}", 90),
        Row("b8", f"sync aligned m16n8 x1|x2|x4 trans {_SHARED}", 100, accelerated=True),
    ),
    "movmatrix": (Row("b16", "sync aligned m8n8 trans"),),
    "wgmma.fence": _GROUPS, "wgmma.commit_group": _GROUPS, "wgmma.wait_group": _GROUPS,
    **COPYING,
}  # fmt: skip


def key_of(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """The key of an opcode, and its other words; None where none of these tables is about it."""
    if parts[0] in ("bar", "barrier"):
        parts = tuple(p for p in parts if p != "cta")
    for n in (5, 3, 2, 1):
        key = ".".join(parts[:n])
        if key in SYNCHRONISING:
            return key, parts[n:]
    return None
