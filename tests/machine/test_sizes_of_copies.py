"""Sizes, counts, ranks and masks from registers: those beyond all memory end as a hazard, those of nothing too."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k({map}.param .u64 a, .param .u32 n) {{
  .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .b16 %h<2>; .reg .pred %p<2>;
  .shared .align 128 .b8 s[1024]; .shared .align 8 .b64 bar;
  ld.param.u64 %d0, [a]; ld.param.u32 %r5, [n]; mov.u32 %r7, s; mov.u32 %r6, bar; mov.u16 %h0, 1;
  mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0;
  @%p0 bra END;
  mbarrier.init.shared.b64 [%r6], 1; fence.mbarrier_init.release.cluster; fence.proxy.async;
  st.shared.v4.u32 [%r7], {{%r0, %r0, %r0, %r0}}; fence.proxy.async;
{code}
END: ret;
}}"""
_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_LOCAL = "shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
_STORED = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
COPIES = {
    "load": f"{_LOAD} [%r7], [%d0], %r5, [%r6];",
    "multicast": f"{_LOAD}.multicast::cluster [%r7], [%d0], %r5, [%r6], %h0;",
    "between CTAs": f"cp.async.bulk.{_LOCAL} [%r7+512], [%r7], %r5, [%r6];",
    "store": f"cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r7], %r5; {_STORED}",
    "reduction": f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r7], %r5; {_STORED}",
    "reduction between CTAs": f"cp.reduce.async.bulk.{_LOCAL}.add.u32 [%r7+512], [%r7], %r5, [%r6];",
}


def codes(code: str, n: int, tensor_map: machine.TensorMap | None = None) -> set[str]:
    text = HEAD.format(code=code, map=".param .align 64 .b8 map[128], " if tensor_map is not None else "")
    args = {"a": np.zeros(64, np.uint32), "n": n}
    if tensor_map is not None:
        args = {"map": tensor_map, **args}
    found = machine.run(text, {"grid": 1, "block": 32}, args, collect=True).hazards
    return {h.code for h in found}


@pytest.mark.parametrize("n", [0x7FFFFFF0, 0xFFFFFFF0])
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_any_size_ends_at_the_memory(copy: str, n: int) -> None:
    tracemalloc.start()
    try:
        assert "out-of-bounds" in codes(COPIES[copy], n)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_no_bytes_copies_nothing(copy: str) -> None:
    assert codes(COPIES[copy], 0) == set()


@pytest.mark.parametrize(
    ("code", "n", "code_of_hazard"),
    [
        ("elect.sync %r1|%p1, %r5;", 0, "aligned-under-divergence"),
        ("elect.sync %r1|%p1, %r5;", 6, "aligned-under-divergence"),
        ("mapa.shared::cluster.u32 %r1, %r7, %r5; ld.shared::cluster.u32 %r2, [%r1];", 2**32 - 1, "out-of-bounds"),
        ("mapa.shared::cluster.u32 %r1, %r7, %r5; ld.shared::cluster.u32 %r2, [%r1];", 255, "out-of-bounds"),
        ("barrier.arrive 1, %r5;", 0, "barrier-count"),
        ("barrier.arrive 1, %r5;", 2**32 - 16, "barrier-count"),
        ("barrier.sync 1, %r5;", 2**32 - 32, "deadlock"),
        ("mbarrier.complete_tx.relaxed.cta.shared.b64 [%r6], %r5;", 2**31, "mbarrier-bytes"),
        ("mbarrier.expect_tx.relaxed.cta.shared.b64 [%r6], %r5;", 2**32 - 1, "mbarrier-bytes"),
        ("mbarrier.init.shared.b64 [%r7+64], %r5;", 0, "mbarrier-reinit"),
        ("mbarrier.init.shared.b64 [%r7+64], %r5;", 2**32 - 1, "mbarrier-reinit"),
    ],
)
def test_counts_ranks_and_masks_out_of_range_are_hazards(code: str, n: int, code_of_hazard: str) -> None:
    assert code_of_hazard in codes(code, n)


def test_a_box_beyond_shared_memory_is_refused_before_it_is_made() -> None:
    load = (
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r7], "
        "[map, {%r0, %r0, %r0, %r0, %r0}], [%r6];"
    )
    tensor = machine.TensorMap(np.zeros((1, 1, 1, 2, 256), np.uint32), box=(256,) * 5)
    assert codes(load, 0, tensor) == {"tensor-map-inadmissible"}


def test_a_variable_beyond_this_computer_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("tilemma.machine.scheduler.Machine.run", full)
    with pytest.raises(machine.problems.MachineLimit):
        codes("", 0)
