"""Decided kernels as PTX on the machine, strict, against the CPU reference."""

from __future__ import annotations

import numpy as np
import pytest
from pass_kernels import (
    BLOCK,
    GROUP,
    WARPGROUP,
    Builder,
    Contract,
    Space,
    Tile,
    cdiv,
    dtypes,
    listing1,
    listing2,
    listing3,
    one_multiply,
)
from test_insert_sync import LISTINGS, sync_ops, without
from test_meaning import arrays_for

from tests.sampling import pairwise
from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.expr import Dim, add, binary, mod, mul
from tilemma.ir.types import THREAD, Level
from tilemma.targets.cpu import execute
from tilemma.targets.ptx import print_module
from tilemma.targets.ptx.lower import lower

SIZES = {"M": 128, "N": 128, "K": 96, "P": 128, "Q": 128, "R": 128}
ARCHS = ["sm_80", "sm_90a"]


def agrees(kernel, arch, sizes=SIZES):
    compiled = compile_kernel(kernel, arch)
    expected, found = arrays_for(kernel, sizes), arrays_for(kernel, sizes)
    execute(kernel, expected, {}, dims=sizes)
    for launch in compiled.launches:
        arrays = {a.name: found[a.name] for a in launch.arrays}
        machine.run(compiled.ptx, launch, arrays, seed=1, schedule="late", strict=True)
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("make", [listing1, listing2, listing3])
def test_the_listings_on_ragged_sizes(make, arch):
    agrees(make(), arch, {"M": 72, "N": 40, "K": 136})


@pytest.mark.parametrize(("make", "arch"), LISTINGS)
def test_the_machine_misses_whatever_is_left_out(make, arch):
    """Each wait, fence and barrier that was inserted is one without which the machine reports a hazard."""
    decided = compile_kernel(make(), arch).kernel
    sizes = {"M": 40, "N": 40, "K": 136}
    for i, name in enumerate(sync_ops(decided)):
        (unit,) = lower(without(decided, i), arch)
        arrays = arrays_for(decided, sizes)
        verdict = machine.check(print_module([unit.lane]), unit.launch, arrays, schedules=8, strict=True)
        assert verdict.hazards or verdict.letter, f"{name} ({i}) is superfluous"


@pytest.mark.parametrize(
    ("level", "contract", "arch"),
    pairwise([Level("group"), Level("group", 2), WARPGROUP, Level("group", 8)], Contract, ARCHS),
)
def test_contracts_at_every_level(contract, level, arch):
    a = (32, 128) if contract.a_transposed else (128, 32)
    b = (32, 96) if contract.b_transposed else (96, 32)
    agrees(one_multiply(contract, a=a, b=b, level=level, direct=level.warps > 1), arch)


class Scene:
    def __init__(self, out=dtypes.f16):
        self.b = Builder("k")
        self.l = self.b.array_param("lhs", dtypes.f16, ["M", "K"])
        self.r = self.b.array_param("rhs", dtypes.f16, ["N", "K"])
        self.o = self.b.array_param("output", out, ["M", "N"])

    def shared(self, name, shape, dtype=dtypes.f16, **options):
        return Tile.whole(self.b.alloc(name, Space.SHARED, dtype, shape, **options))

    def operands(self):
        l_s, r_s = self.shared("l_s", (64, 32)), self.shared("r_s", (64, 32))
        self.b.copy(self.l.subspan([64, 32], [0, 0]), l_s)
        self.b.copy(self.r.subspan([64, 32], [0, 0]), r_s)
        return l_s, r_s


def accumulator_array(k, b):
    l_s, r_s = k.operands()
    with b.parallel(["p"], [1], WARPGROUP):
        mc = b.fragment("mc", (2,), dtypes.f32)
        with b.foreach("y", 2) as y:
            b.fill(mc[y], 0.0)
        with b.foreach("kk", 2) as kk, b.foreach("y", 2) as y:
            ma = b.load("ma", l_s.subspan([64, 16], [0, kk]))
            b.mma(Contract.ROW_ROW, mc[y], ma, b.load("mb", r_s.subspan([32, 16], [y, kk])))
        with b.foreach("y", 2) as y:
            b.store(mc[y], k.o.subspan([64, 32], [0, y]))


def accumulator_loaded(k, b):
    l_s, r_s = k.operands()
    tile = k.o.subspan([64, 64], [0, 0])
    c_s = k.shared("c_s", (64, 64))
    b.copy(tile, c_s)
    with b.parallel(["p"], [1], WARPGROUP):
        mc = b.load("mc", c_s)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", l_s), b.load("mb", r_s))
        b.store(mc, c_s)
    b.copy(c_s, tile)


def operand_that_changes(k, b):
    l_s, r_s = k.operands()
    mc, ma = b.fill("mc", 0.0, dtypes.f32), b.fragment("ma")
    with b.parallel(["p"], [1], WARPGROUP):
        b.load(ma, l_s)
    with b.parallel(["t"], [64], THREAD) as (t,):
        b.set_element(l_s, [t, 0], 0.0)
    with b.parallel(["p"], [1], WARPGROUP):
        b.mma(Contract.ROW_ROW, mc, ma, b.load("mb", r_s))
        b.store(mc, k.o.subspan([64, 64], [0, 0]))


def elements_of_swizzled_tiles(k, b):
    l_s, r_s = k.operands()
    out = k.shared("out", (64, 64))
    with b.parallel(["t"], [128], THREAD) as (t,), b.foreach("q", 16) as q:
        at = [binary("div", t.value, 2), add(mul(mod(t.value, 2), 16), q.value)]
        b.set_element(l_s, at, binary("mul", b.element(l_s, at), 2.0))
    with b.parallel(["p"], [1], WARPGROUP):
        mc = b.fill("mc", 0.0, dtypes.f32)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", l_s), b.load("mb", r_s))
        b.store(mc, out)
    with b.parallel(["t"], [64], THREAD) as (t,), b.foreach("q", 64) as q:
        b.set_element(k.o, [q, t], b.element(out, [t, q]))


def a_ring_of_two(k, b):
    ring = [b.alloc(n, Space.SHARED, dtypes.f16, (64, 32), copies=2) for n in ("l_s", "r_s")]
    mc = b.fill("mc", 0.0, dtypes.f32)

    def bring(kk):
        for source, buffer in zip((k.l, k.r), ring, strict=True):
            b.copy(source.subspan([64, 32], [0, kk]), Tile.whole(buffer, mod(kk, 2)))

    bring(mul(Dim("M"), 0))
    with b.foreach("kk", cdiv(Dim("K"), 32)) as kk:
        bring(add(kk.value, 1))
        with b.parallel(["p"], [1], WARPGROUP):
            ma, mb = (b.load(n, Tile.whole(x, mod(kk.value, 2))) for n, x in zip(("ma", "mb"), ring, strict=True))
            b.mma(Contract.ROW_ROW, mc, ma, mb)
    b.store(mc, k.o.subspan([64, 64], [0, 0]))


def tile_after_tile(k, b):
    l_s, r_s, out = k.shared("l_s", (64, 32)), k.shared("r_s", (64, 32)), k.shared("out", (64, 64))
    with b.foreach("tile", 2) as tile:
        mc = b.fill("mc", 0.0, dtypes.f32)
        with b.foreach("kk", cdiv(Dim("K"), 32)) as kk:
            b.copy(k.l.subspan([64, 32], [0, kk]), l_s)
            b.copy(k.r.subspan([64, 32], [tile, kk]), r_s)
            with b.parallel(["p"], [1], WARPGROUP), b.foreach("q", 2) as q:
                ma, mb = b.load("ma", l_s.chunkat([None, q])), b.load("mb", r_s.chunkat([None, q]))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        b.store(mc, out)
        b.copy(out, k.o.subspan([64, 64], [0, tile]))


def lanes_below_a_warpgroup(k, b):
    l_s, r_s = k.operands()
    with b.parallel(["w"], [2], WARPGROUP) as (w,), b.parallel(["t"], [128], THREAD):
        mc = b.fill("mc", 0.0, dtypes.f32)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", l_s), b.load("mb", r_s.subspan([32, 32], [w, 0])))
        b.store(mc, k.o.subspan([64, 32], [0, w]))


def warps_hand_over_in_pairs(k, b):
    s = k.shared("s", (8, 64))
    with b.parallel(["w"], [8], GROUP) as (w,):
        b.copy(k.l.subspan([1, 64], [w, 0]), s.subspan([1, 64], [w, 0]))
    with b.parallel(["w"], [4], Level("group", 2)) as (w,):
        b.copy(s.subspan([2, 64], [w, 0]), k.o.subspan([2, 64], [w, 0]))


CONSTRUCTS = [
    accumulator_array, accumulator_loaded, operand_that_changes, elements_of_swizzled_tiles, a_ring_of_two,
    tile_after_tile, lanes_below_a_warpgroup, warps_hand_over_in_pairs,
]  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("write", CONSTRUCTS)
def test_constructs(write, arch):
    k = Scene()
    with k.b.parallel(["i"], [1], BLOCK):
        write(k, k.b)
    agrees(k.b.finish(), arch)
