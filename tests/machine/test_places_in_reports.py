"""Reports name the access, the warp, the lanes and the bytes that collide, and no others."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernels import header

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

WIDTHS = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "v4.b32": 16}
VALUES = {"b8": "%r4", "b16": "%h0", "b32": "%r4", "b64": "%d4", "v4.b32": "{%r4, %r5, %r6, %r7}"}
# Each thread has one place in a buffer of zeros: warp 0 of a CTA writes it, warp 1 reads it.
ACCESSES = """
.visible .entry k(.param .u64 x, .param .u64 y) {{
  .shared .align 128 .b8 smem[4096]; .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .b16 %h<2>; .reg .pred %p<4>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; shl.b32 %r2, %r1, 6; add.u32 %r2, %r2, %r0;
  ld.param.u64 %d0, [x]; mad.wide.u32 %d0, %r2, 4, %d0; ld.global.nc.b32 %r3, [%d0];
  mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0; mov.b64 %d4, 0; mov.b16 %h0, 0;
  shl.b32 %r2, %r0, 6; mov.u32 %r1, smem; add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, %r3;
  {zeros}
  ld.param.u64 %d1, [y]; cvt.u64.u32 %d2, %r3; add.s64 %d1, %d1, %d2;
  bar.sync 0; setp.lt.u32 %p0, %r0, 32;
  @!%p0 bra READ;
  st.{space}.{kind} [{at}], {value};
  bra END;
READ:
  ld.{space}.{kind} {value}, [{at}];
END:
  ret;
}}"""
# The first bytes of shared memory are the system's.
FIRST_SHARED = 1024
ZEROS = " ".join(f"st.shared.v4.b32 [%r2+{16 * i}], {{%r4, %r5, %r6, %r7}};" for i in range(4))


def accesses(space: str, kind: str, places: np.ndarray[Any, Any]) -> machine.Verdict:
    """``places``: the byte of each thread, in three CTAs."""
    at = "%r1" if space == "shared" else "%d1"
    ptx = header("8.0", "sm_90a") + ACCESSES.format(
        space=space, kind=kind, at=at, value=VALUES[kind], zeros=ZEROS if space == "shared" else ""
    )
    args = {"x": places.astype(np.uint32), "y": np.zeros(12_288, np.uint8)}
    return machine.check(ptx, {"grid": 3, "block": 64, "read_only": ["x"]}, args, schedules=3)


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_race_names_its_lanes_and_bytes(space: str, kind: str) -> None:
    draw, width = random.Random(f"{space} {kind}"), WIDTHS[kind]
    # Without a collision: different words, in one CTA in another order.
    words = np.arange(3 * 64).reshape(3, 64) if space == "global" else np.tile(np.arange(64), (3, 1))
    places = width * np.array([draw.sample(row.tolist(), 64) for row in words])
    assert accesses(space, kind, places).ok
    for count in (1, 3):
        cta, writer = draw.randrange(3), draw.randrange(32)
        readers = sorted(draw.sample(range(32), count))
        colliding = places.copy()
        colliding[cta, [32 + lane for lane in readers]] = places[cta, writer]
        (hazard,) = accesses(space, kind, colliding).hazards
        facts = hazard.to_json()
        writes = facts["instruction"].startswith("st.")
        byte = int(places[cta, writer]) + (FIRST_SHARED if space == "shared" else 0)
        assert facts["code"] == "race"
        assert facts["warp"] == (0 if writes else 1) and tuple(facts["cta"]) == (cta, 0, 0)
        assert list(facts["lanes"]) == ([writer] if writes else readers)
        assert sorted(set(facts["bytes"])) == list(range(byte, byte + width))
        assert {facts["ptx_line"], facts["other_line"]} == {
            n
            for n, line in enumerate(ACCESSES.split("\n"), 4)
            if line.strip().startswith(("st.{space", "ld.{space"))
        }


AROUND = """
.visible .entry k(.param .u64 x) {{
  .shared .align 128 .b8 smem[256]; .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .b16 %h<2>; .reg .pred %p<4>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mov.b32 %r4, 0; mov.b16 %h0, 0; mov.b64 %d4, 0; setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared.b64 [%r1+128], 1; bar.sync 0;
  ld.param.u64 %d0, [x]; mad.wide.u32 %d0, %r0, 4, %d0; ld.global.b32 %r3, [%d0]; add.u32 %r3, %r3, %r1;
  st.shared.{kind} [%r3], {value}; st.shared.{kind} [%r3], {value};
  ret;
}}"""


@pytest.mark.parametrize("kind", ["b8", "b16", "b32", "b64"])
def test_a_store_beside_a_barrier_leaves_it_alone(kind: str) -> None:
    """The barrier has eight bytes; the other lanes store on both sides of it."""
    width = WIDTHS[kind]
    text = header("8.0", "sm_90a") + AROUND.format(kind=kind, value=VALUES[kind].replace("%d4", "%d3"))
    text = text.replace("mov.b64 %d4", "mov.b64 %d3")
    beside = np.array([128 - width * (i + 1) for i in range(16)] + [136 + width * i for i in range(15)])
    for byte in range(128 - width, 137, width):
        places = np.array([byte, *np.maximum(beside, 0)]).astype(np.uint32)
        verdict = machine.check(text, {"grid": 1, "block": 32}, {"x": places}, schedules=1)
        codes = {h.code for h in verdict.hazards}
        assert ("mbarrier-reinit" in codes) == (128 <= byte < 136), (byte, codes)


SEVERAL = """
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 at) {{
  .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .b16 %h<2>; .reg .pred %p<4>;
  mov.u32 %r0, %tid.x; ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0;
  ld.param.u64 %d2, [at]; mad.wide.u32 %d2, %r0, 4, %d2; ld.global.b32 %r2, [%d2]; cvt.u64.u32 %d3, %r2;
  selp.b64 %d1, %d0, %d1, %p0; add.s64 %d1, %d1, %d3;
  ld.global.{kind} {value}, [%d1]; {more} st.global.{kind} [%d1], {value};
  ret;
}}"""


@pytest.mark.parametrize("kind", ["b8", "b16", "b32"])
def test_lanes_access_several_arrays_to_their_last_elements(kind: str) -> None:
    """Even lanes in one array, odd ones in another: each adds one to an element of its own, or goes beyond."""
    element = np.dtype(f"u{WIDTHS[kind]}")
    value = VALUES[kind]
    more = f"add.u{8 * max(2, element.itemsize)} {value}, {value}, 1;".replace("u16 %r", "u32 %r")
    text = header("8.0", "sm_90a") + SEVERAL.format(kind=kind, value=value, more=more)
    order = np.random.default_rng(1).permutation(16)
    for beyond in (None, 3, 8):
        first, second = np.arange(16, dtype=element), np.arange(100, 116, dtype=element)
        at = np.repeat(order * element.itemsize, 2).astype(np.uint32)
        if beyond is not None:
            at[beyond] = 16 * element.itemsize
        verdict = machine.check(text, {"grid": 1, "block": 32}, {"a": first, "b": second, "at": at}, schedules=1)
        if beyond is None:
            assert verdict.ok, verdict.render()
            assert first.tolist() == list(range(1, 17)) and second.tolist() == list(range(101, 117))
        else:
            (hazard,) = verdict.hazards
            assert hazard.code == "out-of-bounds" and hazard.facts["lanes"] == (beyond,)
