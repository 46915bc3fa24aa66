from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pass_kernels import BLOCK, GROUP, Builder, Space, Tile, dtypes, find, listing1, listing2, listing3

from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.expr import value_of
from tilemma.ir.tile import Alloc, Barrier, Sync
from tilemma.launch import APART
from tilemma.modules import load, load_python
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.passes.allocate_shared import AllocateShared, SharedMemoryLimit
from tilemma.targets.ptx.passes.pipeline_loops import PipelineLoops
from tilemma.targets.ptx.target import Target, targets


def allocated(kernel, arch="sm_80", reuse=True, log=None):
    """``kernel`` with its shared memory allocated; its loops stay as they are written."""
    for p in (p for p in PASSES(arch) if not isinstance(p, PipelineLoops)):
        kernel = (AllocateShared(arch, reuse) if isinstance(p, AllocateShared) else p).run(
            kernel, [] if log is None else log
        )
    return kernel


def places(kernel):
    return {
        a.buffer.name: range(a.offset, a.offset + a.layout.size * max(1, a.buffer.copies))
        for a in find(kernel, Alloc)
    }


def meet(x, y):
    return x.start < y.stop and y.start < x.stop


@pytest.mark.parametrize("make", [listing1, listing2, listing3])
@pytest.mark.parametrize("arch", targets())
@pytest.mark.parametrize("reuse", [True, False])
def test_buffers_are_aligned_and_inside_and_apart(make, arch, reuse):
    kernel = allocated(make(), arch, reuse)
    found = places(kernel)
    for a in find(kernel, Alloc):
        assert a.offset % a.layout.alignment == 0
        assert found[a.buffer.name].stop <= Target.of(arch).shared_limit
    names = sorted(found)
    for i, x in enumerate(names):
        for y in names[:i]:
            staged = "output_s" in (x, y)
            assert not meet(found[x], found[y]) or (reuse and staged), (x, y)


@pytest.mark.parametrize("make", [listing1, listing2, listing3])
@pytest.mark.parametrize("arch", targets())
def test_the_log_says_where_each_buffer_lies(make, arch):
    log = []
    found = places(allocated(make(), arch, log=log))
    said = {d.subject: d.data for d in log if d.pass_name == "shared" and "offset" in d.data}
    assert {name: range(f["offset"], f["offset"] + f["bytes"]) for name, f in said.items()} == found
    for name, facts in said.items():
        assert facts["shares"] == sorted(n for n in found if n != name and meet(found[n], found[name]))


def test_the_staging_buffer_of_listing_3_takes_the_place_of_an_operand():
    found = places(allocated(listing3(), "sm_90a"))
    assert any(meet(found["output_s"], found[n]) for n in ("lhs_load_s", "rhs_load_s"))
    assert max(r.stop for r in found.values()) == 48 * 1024


def test_reuse_adds_no_barrier():
    def barriers(reuse):
        return len(find(allocated(listing3(), "sm_90a", reuse), Barrier))

    assert barriers(True) == barriers(False)


def scratch(order, between=True):
    """Two scratch tiles, used one after the other inside a loop, or by turns."""
    b = Builder("k")
    x = b.array_param("x", dtypes.f32, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        first = Tile.whole(b.alloc("first", Space.SHARED, dtypes.f32, [32, 32]))
        second = Tile.whole(b.alloc("second", Space.SHARED, dtypes.f32, [32, 32]))
        with b.parallel(["w"], [4], GROUP):
            order(b, x, {"first": first, "second": second})
    return places(allocated(b.finish()))


def test_values_that_live_on_are_not_overwritten():
    """`first` is filled before the loop and read in every turn, so `second`, used in the loop, lies elsewhere."""

    def order(b, x, s):
        tile = x.subspan([32, 32], [0, 0])
        b.copy(tile, s["first"])
        with b.foreach("j", 4):
            b.copy(tile, s["second"])
            b.copy(s["second"], tile)
            b.copy(s["first"], tile)

    found = scratch(order)
    assert not meet(found["first"], found["second"])


@pytest.mark.parametrize("barrier", [True, False])
def test_lives_that_follow_one_another_share_where_a_barrier_is(barrier):
    def order(b, x, s):
        tile = x.subspan([32, 32], [0, 0])
        for name in ("first", "second"):
            b.copy(tile, s[name])
            b.copy(s[name], x.subspan([32, 32], [1, 1]))
            if barrier:
                b.emit(Sync("barrier", BLOCK))

    found = scratch(order)
    assert (found["first"] == found["second"]) is barrier


def too_much(arch):
    b = Builder("k")
    x = b.array_param("x", dtypes.f32, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        small = Tile.whole(b.alloc("small", Space.SHARED, dtypes.f32, [64, 64]))
        ring = b.alloc("ring", Space.SHARED, dtypes.f32, [128, 128], copies=4)
        for tile in (small, Tile.whole(ring)):
            shape = [value_of(e) for e in tile.shape]
            b.copy(x.subspan(shape, [0, 0]), tile)
        for tile in (Tile.whole(ring), small):
            shape = [value_of(e) for e in tile.shape]
            b.copy(tile, x.subspan(shape, [1, 1]))
    return allocated(b.finish(), arch)


@pytest.mark.parametrize("arch", targets())
def test_too_much_is_refused_by_buffer(arch):
    with pytest.raises(SharedMemoryLimit) as caught:
        too_much(arch)
    message = caught.value.render()
    assert "`ring` 262144" in message and "`small` 16384" in message
    assert str(Target.of(arch).shared_limit) in message and message.index("`ring`") < message.index("`small`")


def staged_after_a_ring(rows: int):
    """Multiplies that read a ring of buffers, and results that leave through a buffer of their own."""
    path = Path(__file__).resolve().parents[4] / "examples" / "py" / "multistage.py"
    return load_python(path).only().build(TILE_M=rows, TILE_N=rows, TILE_K=32, WARP_M=rows // 2, WARP_N=rows // 2)


def ring_and_staging_meet(kernel):
    found = places(kernel)
    return any(meet(found["output_s"], r) for name, r in found.items() if name != "output_s")


def limit(monkeypatch, total):
    target = replace(Target.of("sm_80"), shared_limit=total)
    monkeypatch.setattr(Target, "of", lambda arch: target)


def test_a_barrier_is_added_only_where_not_all_fits(monkeypatch):
    def barriers(kernel):
        return len(find(kernel, Barrier))

    plenty = allocated(staged_after_a_ring(64))
    assert not ring_and_staging_meet(plenty)
    total = max(r.stop for r in places(plenty).values())
    limit(monkeypatch, total)
    assert barriers(allocated(staged_after_a_ring(64))) == barriers(plenty)
    limit(monkeypatch, total - 1)
    tight = allocated(staged_after_a_ring(64))
    assert ring_and_staging_meet(tight) and barriers(tight) == barriers(plenty) + 1


@pytest.mark.parametrize(("dtype", "stages"), [("f16", 2), ("f32", 3)])
def test_a_barrier_is_added_where_more_blocks_then_fit_on_a_multiprocessor(dtype, stages, tmp_path):
    """128 x 128 sums in four warps: registers suffice for three blocks of f16 sums, and for two of f32."""
    example = Path(__file__).resolve().parents[4] / "examples" / "co" / "matmul_wmma.co"
    path = tmp_path / "sums.co"
    path.write_text(example.read_text().replace("mma.fill 0.0", f"mma.fill.{dtype} 0.0f"))
    defines = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "MMA_M": 64, "MMA_N": 64, "MMA_K": 16}
    compiled = load(path, defines).only().compile("sm_80", variant=(APART,))
    found = places(compiled.kernel)
    assert max(r.stop for r in found.values()) == stages * 2 * 128 * 64 * 2
    assert any(meet(found["output_s"], r) for name, r in found.items() if name != "output_s")
    assert any("reuses memory" in d.text for d in compiled.decisions)


def test_without_the_added_barrier_the_machine_finds_the_race(monkeypatch):
    kernel = staged_after_a_ring(64)
    total = max(r.stop for r in places(allocated(kernel)).values())
    limit(monkeypatch, total - 1)
    compiled = compile_kernel(kernel, "sm_80")
    before, barrier, after = compiled.ptx.rpartition("bar.sync 0;")[0].rpartition("bar.sync 0;")

    def run(ptx):
        rng = np.random.default_rng(0)
        arrays = {n: rng.integers(-3, 4, (64, 64)).astype(np.float16) for n in ("lhs", "rhs", "output")}
        report = machine.run(ptx, compiled.launches[0], arrays, seed=2, strict=True, collect=True)
        return report.hazards

    assert not run(compiled.ptx)
    tail = compiled.ptx[len(before) + len(barrier) + len(after) :]
    assert run(before + after + tail)
