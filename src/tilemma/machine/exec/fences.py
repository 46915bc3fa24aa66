"""Fences (PTX ISA, "membar / fence")."""

from __future__ import annotations

from typing import Any

from tilemma.machine import strong
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.state import Frame

_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


@instruction("membar", "fence")
def fence(d: Decoder) -> None:
    d.has("sc", "acq_rel", "acquire", "release", "sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    d.one_of(_SCOPES)
    d.only()

    def run(f: Frame, m: Any) -> None:
        strong.fence(f, f.w.rows_of(m))

    d.visible(run)


@instruction("fence.proxy")
def proxy(d: Decoder) -> None:
    d.needs(90)
    kind = d.one_of(("alias", "async", "async.global", "tensormap::generic", "async::generic"))
    d.has(
        "global", "shared::cta", "shared::cluster", "release", "acquire", "gpu", "cta", "cluster", "sys", "proxy"
    )
    d.has("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    d.only()
    # Restricted to global memory, the fence does nothing for shared memory.
    counts = kind.startswith("async") and "global" not in d.mods

    def run(f: Frame, m: Any) -> None:
        w = f.w
        if counts:
            w.cta.cluster.clocks.fence_proxy(w.rows_of(m), w.row)
            fence_inits(f)
        elif kind == "async":
            w.global_fenced = True

    d.visible(run)


@instruction("fence.mbarrier_init")
def mbarrier_init(d: Decoder) -> None:
    d.needs(90)
    d.has("release", "cluster")
    d.only("mbarrier_init")
    d.visible(lambda f, m: fence_inits(f))


def fence_inits(f: Frame) -> None:
    """The mbarriers that this warp has initialised are visible to the async proxy (once others are told)."""
    for barrier in f.w.inits:
        barrier.fenced = True
    f.w.inits.clear()
