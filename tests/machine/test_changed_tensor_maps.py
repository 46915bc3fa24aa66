"""Tensor maps as bytes, and maps that a program changes (`tensormap.replace`)."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import machine
from tilemma.machine.isa import tensormap
from tilemma.machine.isa.tensormap import TensorMapImage

pytestmark = pytest.mark.usefixtures("engine")


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_tensor_maps_survive_as_bytes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 5))

    def draw(low: int, high: int, n: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(n))

    image = TensorMapImage(
        data.draw(st.sampled_from(["u8", "f16", "f32", "f64", "bf16", "tf32", "s32"])), draw(1, 1 << 32, rank),
        draw(0, 1 << 36, rank - 1), draw(1, 256, rank), draw(1, 8, rank),
        data.draw(st.sampled_from([0, 32, 64, 128])), 0, data.draw(st.booleans()),
    )  # fmt: skip
    raw = tensormap.encoded(image, 0x1234_5678_9AB0)
    assert len(raw) == 128 and tensormap.decoded(raw) == (image, 0x1234_5678_9AB0)


REPLACED = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 other, .param .u64 made, .param .u64 out) {
  .reg .b64 %d<12>; .reg .b32 %r<12>; .reg .pred %p<4>;
  .shared .align 128 .b8 tile[256]; .shared .align 128 .b8 copy[128]; .shared .align 8 .b8 bar[8];
  ld.param.u64 %d1, [other]; ld.param.u64 %d2, [made]; ld.param.u64 %d3, [out];
  mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r2, copy; mov.u32 %r3, bar; setp.eq.u32 %p0, %r0, 0;
  mov.b64 %d4, map; cvta.param.u64 %d4, %d4; mul.wide.u32 %d5, %r0, 4; add.s64 %d5, %d5, %d4; ld.u32 %r4, [%d5];
  shl.b32 %r5, %r0, 2; add.u32 %r6, %r5, %r2; st.shared.u32 [%r6], %r4; bar.warp.sync 0xffffffff;
  @!%p0 bra COPY;
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %d1;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 0, 12;
  COPY: bar.warp.sync 0xffffffff;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d2], [%r2], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;
  @%p0 mbarrier.init.shared.b64 [%r3], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
  @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 64;
  @%p0 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d2, {0}], [%r3];
  W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0; @!%p1 bra W;
  and.b32 %r7, %r0, 15; shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r1; ld.shared.u32 %r8, [%r7];
  mul.wide.u32 %d6, %r0, 4; add.s64 %d3, %d3, %d6; st.global.u32 [%d3], %r8; ret;
}
"""


def test_a_tensor_map_is_changed_and_used(assembles: Callable[[str, str], None]) -> None:
    assembles(REPLACED, "sm_90a")
    first, other = np.arange(16, dtype=np.uint32), np.arange(100, 116, dtype=np.uint32)
    out = np.zeros(32, np.uint32)

    def check(ptx: str) -> machine.Verdict:
        args = {"map": machine.TensorMap(first, (16,)), "o": other, "made": np.zeros(32, np.uint32), "out": out}
        return machine.check(ptx, {"grid": 1, "block": 32}, args, schedules=3)

    verdict = check(REPLACED)
    assert verdict.ok, verdict.render()
    assert out[:16].tolist() == [*range(100, 112), 0, 0, 0, 0]
    unfenced = check(REPLACED.replace("fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;", ""))
    assert [h.code for h in unfenced.hazards] == ["missing-tensor-map-fence"]


# Codes whose advice is followed here.
FOLLOWED = frozenset({"race-tensor-map-copy"})


def test_a_copy_of_a_map_that_one_lane_has_changed_needs_a_barrier() -> None:
    """The copy waits for all lanes of the warp: a note.  An error under strict, and always for another warp."""
    late = REPLACED.replace("COPY: bar.warp.sync 0xffffffff;", "COPY:")
    # Warp 1 writes a word of the map meanwhile.
    other = "setp.lt.u32 %p2, %r0, 32; @%p2 bra FIRST; st.shared.u32 [%r2+64], %r0; ret; FIRST:"
    two_warps = late.replace("setp.eq.u32 %p0, %r0, 0;", f"setp.eq.u32 %p0, %r0, 0; {other}")

    def found(ptx: str, block: int = 32, strict: bool = False) -> dict[str, str]:
        args = {
            "map": machine.TensorMap(np.arange(16, dtype=np.uint32), (16,)),
            "o": np.zeros(16, np.uint32), "made": np.zeros(32, np.uint32), "out": np.zeros(64, np.uint32),
        }  # fmt: skip
        verdict = machine.check(ptx, {"grid": 1, "block": block}, args, schedules=5, strict=strict)
        return {h.code: h.remedy for h in verdict.hazards}

    assert found(late) == {} and found(REPLACED, strict=True) == {}
    (remedy,) = (found(late, strict=True)[code] for code in FOLLOWED)
    advised = re.fullmatch(r"add `([^`]+)` before PTX line (\d+)", remedy)
    assert advised is not None
    lines = late.split("\n")
    lines.insert(int(advised[2]) - 1, advised[1])
    assert found("\n".join(lines), strict=True) == {}
    assert "race" in found(two_warps, block=64)


@pytest.mark.parametrize("size", [11, 12])
def test_a_changed_tensor_map_stays_inside_its_array(size: int) -> None:
    """The map says 12 elements."""
    args = {"map": machine.TensorMap(np.zeros(16, np.uint32), (16,)), "o": np.zeros(size, np.uint32),
            "made": np.zeros(32, np.uint32), "out": np.zeros(32, np.uint32)}  # fmt: skip
    verdict = machine.check(REPLACED, {"grid": 1, "block": 32}, args, schedules=1)
    assert [h.code for h in verdict.hazards] == ["out-of-bounds"] * (size < 12)
    assert verdict.ok or "which has 44 bytes" in verdict.render()


@pytest.mark.parametrize(("atomicity", "unit"), [(0, 16), (1, 32), (3, 64)])
def test_the_atomicity_of_a_swizzle_is_changed(
    atomicity: int, unit: int, assembles: Callable[[str, str], None]
) -> None:
    """Units of 16, 32 or 64 bytes change places by the low bits of the number of their line of 128 bytes."""
    field = f"tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r2], {atomicity};"
    ptx = (
        REPLACED.replace("sm_90a", "sm_100a")
        .replace("tile[256]", "tile[1024]")
        .replace("[%r3], 64", "[%r3], 1024")
    )
    start, end = (ptx.index("tensormap.replace.tile.global_dim"), ptx.index("COPY: bar.warp"))
    ptx = ptx[:start] + field + "\n  " + ptx[end:]
    ptx = ptx.replace("tensor.1d", "tensor.2d").replace("{0}", "{0, 0}")
    read = ptx.index("and.b32 %r7")
    moved = "ld.shared.v4.u32 {%r4, %r5, %r6, %r8}, [%r7+@]; st.global.v4.u32 [%d3+@], {%r4, %r5, %r6, %r8};"
    ptx = (
        ptx[:read]
        + f"""shl.b32 %r7, %r0, 5; add.u32 %r7, %r7, %r1; mul.wide.u32 %d6, %r0, 32;
      add.s64 %d3, %d3, %d6; {moved.replace("@", "0")} {moved.replace("@", "16")} ret; }}\n"""
    )
    assembles(ptx, "sm_100a")
    rows, out = np.arange(256, dtype=np.uint32).reshape(8, 32), np.zeros((8, 32), np.uint32)
    args = {"map": machine.TensorMap(rows, (32, 8), 128), "o": rows, "made": np.zeros(32, np.uint32), "out": out}
    verdict = machine.check(ptx, {"grid": 1, "block": 32, "read_only": ["o"]}, args, schedules=2)
    assert verdict.ok, verdict.render()
    units = 128 // unit
    for line in range(8):
        moved = out[line].reshape(units, -1)[np.arange(units) ^ line % units]
        assert (moved.reshape(-1) == rows[line]).all()
