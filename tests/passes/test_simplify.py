from __future__ import annotations

import pytest
from pass_kernels import BLOCK, GROUP, Builder, Dim, Space, Tile, dtypes, find, listing1, listing2, listing3
from test_meaning import keeps_meaning

from tilemma.ir.expr import (
    FragmentElement,
    Select,
    Unary,
    add,
    binary,
    cdiv,
    const,
    mul,
    substitute,
    value_of,
    walk,
)
from tilemma.ir.tile import (
    Alloc,
    Assign,
    Atomic,
    Declare,
    DeclareFragment,
    Fill,
    For,
    If,
    Load,
    Mma,
    SetElement,
    SetFragmentElement,
)
from tilemma.ir.types import THREAD, Contract
from tilemma.passes.simplify import Simplify


def simplified(write):
    b = Builder("k")
    x = b.array_param("x", dtypes.f32, ["M", "K"])
    with b.parallel(["i"], [Dim("G")], BLOCK), b.parallel(["t"], [32], THREAD) as (t,):
        write(b, x, t)
    return Simplify().run(b.finish(), [])


@pytest.mark.parametrize(("trips", "loops", "sets"), [(0, 0, 0), (1, 0, 1), (2, 1, 1)])
def test_loops_of_no_and_of_one_turn(trips, loops, sets):
    def write(b, x, t):
        with b.foreach("j", 8, start=3, stop=3 + trips) as j:
            b.set_element(x, [j, t], 1.0)

    kernel = simplified(write)
    assert (len(find(kernel, For)), len(find(kernel, SetElement))) == (loops, sets)
    if trips == 1:
        assert value_of(find(kernel, SetElement)[0].view.offsets[0]) == 3


def test_a_loop_that_is_left_early_stays():
    from tilemma.ir.tile import Break

    def write(b, x, t):
        with b.foreach("j", 1):
            b.emit(Break())

    assert len(find(simplified(write), For)) == 1


@pytest.mark.parametrize(("value", "left"), [(True, 1.0), (False, 2.0)])
def test_branches_that_are_decided(value, left):
    def write(b, x, t):
        with b.if_(const(value)):
            b.set_element(x, [0, t], 1.0)
        with b.else_():
            b.set_element(x, [0, t], 2.0)

    kernel = simplified(write)
    assert find(kernel, If) == [] and [op.value.value for op in find(kernel, SetElement)] == [left]


def test_a_run_time_branch_stays():
    def write(b, x, t):
        with b.if_(binary("lt", t.value, Dim("M"))):
            b.set_element(x, [0, t], 1.0)

    assert len(find(simplified(write), If)) == 1


def test_what_a_condition_calls_stays_although_its_body_is_empty():
    def write(b, x, t):
        v = b.declare("v", 0)
        with b.while_(binary("lt", v, 3)):
            b.assign(v, binary("add", v, 1))

    assert len(find(simplified(write), Assign)) == 1


def test_storage_that_nothing_names_goes():
    def write(b, x, t):
        b.alloc("unused", Space.SHARED, dtypes.f32, [32])
        used = Tile.whole(b.alloc("used", Space.SHARED, dtypes.f32, [32]))
        b.set_element(x, [0, t], b.element(used, [t]))

    assert [a.buffer.name for a in find(simplified(write), Alloc)] == ["used"]


@pytest.mark.parametrize("make", [listing1, listing2, listing3])
def test_short_loops_of_multiplies_are_marked(make):
    kernel = Simplify().run(make(), [])
    loops = [f for f in find(kernel, For) if f.unroll]
    assert all(f.unroll == 8 for f in loops) and len(loops) == (0 if make is listing1 else 1)
    assert len(find(kernel, Mma)) == 1
    assert Simplify().run(kernel, []) == kernel


@pytest.mark.parametrize("write", ["fill", "load"])
@pytest.mark.parametrize("read", [True, False])
def test_register_tiles_that_nothing_reads_go(write, read):
    b = Builder("k")
    x, y = (b.array_param(n, dtypes.f32, ["M", "K"]) for n in "xy")
    with b.parallel(["i"], [2], BLOCK) as (i,):
        outside = b.fill("outside", 1.0)
        with b.parallel(["p"], [1], GROUP):
            mc = b.fill("mc", 2.0) if write == "fill" else b.load("mc", x.subspan([16, 8], [i, 0]))
            b.set_element(y, [16, i], 3.0)
            if read:
                b.store(mc, y.subspan([16, 8], [i, 0]))
    source = b.finish()
    kept = Simplify().run(source, [])
    assert {op.name for op in find(kept, DeclareFragment)} == ({"mc"} if read else set())
    assert outside.name not in {op.fragment.name for op in find(kept, (Fill, Load))}
    assert len(find(kept, (Fill, Load))) == read
    for arch in ("sm_80", "sm_90a"):
        keeps_meaning(source, arch, {"M": 32, "K": 8})


def test_a_view_that_only_a_condition_keeps_inside_stays_valid():
    """A loop of one iteration is opened: the offset is the constant -1, where the condition does not hold."""
    b = Builder("k")
    x, y = (b.array_param(n, dtypes.f32, ["M", "K"]) for n in "xy")
    with b.parallel(["i"], [2], BLOCK) as (i,):
        ring = b.alloc("ring", Space.SHARED, dtypes.f32, [16, 8], copies=2)
        b.copy(x.subspan([16, 8], [i, 0]), Tile.whole(ring, const(0)))
        with b.foreach("j", 1) as j, b.if_(binary("lt", Dim("M"), j.value)):
            before = binary("sub", j.value, 1)
            b.copy(Tile.whole(ring, before).window([8, 8], [before, 0]), y.subspan([8, 8], [i, 0]))
    keeps_meaning(b.finish(), "sm_80", {"M": 32, "K": 8})


def test_expressions_that_nothing_changes_stay_themselves():
    m, n = Dim("M"), Dim("N")
    for e in (mul(cdiv(m, 128), n), Unary("neg", m), Select(binary("lt", m, n), add(m, 1), n)):
        assert substitute(e, {"K": m}) is e
        assert n not in walk(substitute(e, {"N": m}))


def test_what_an_expression_is_made_of_is_the_same_asked_twice():
    e = add(mul(Dim("M"), 8), cdiv(Dim("N"), 4))
    assert walk(e) == walk(e) == (e, e.a, e.a.a, e.a.b, e.b, e.b.a, e.b.b)


@pytest.mark.parametrize("read", [True, False])
def test_the_old_value_of_an_atomic_is_kept_where_it_is_read(read):
    def write(b, x, t):
        old = b.atomic("add", b.element(x, [0, t]).view, const(1.0))
        other = b.declare("other", 2.0)
        b.set_element(x, [1, t], old if read else other)

    kernel = simplified(write)
    (found,) = find(kernel, Atomic)
    assert (found.result is not None) == read
    declared = {op.var.name for op in find(kernel, Declare)}
    assert declared == ({"old", "other"} if read else {"other"})


@pytest.mark.parametrize(("turns", "marked"), [(15, True), (16, True), (17, False)])
def test_loops_of_multiplies_up_to_a_length_are_unrolled(turns, marked):
    b = Builder("k")
    x, y = (b.array_param(n, dtypes.f16, ["M", "K"]) for n in "xy")
    with b.parallel(["i"], [2], BLOCK), b.parallel(["p"], [1], GROUP):
        mc = b.fill("mc", 0.0, dtypes.f32)
        with b.foreach("k", turns) as k:
            ma, mb = b.load("ma", x.subspan([16, 16], [0, k])), b.load("mb", y.subspan([8, 16], [0, k]))
            b.mma(Contract.ROW_ROW, mc, ma, mb)
        with b.foreach("j", turns) as j:
            b.set_element(x, [0, j], 1.0)
    first, second = find(Simplify().run(b.finish(), []), For)
    assert (first.unroll == turns) == marked and second.unroll is None


def test_a_register_tile_that_only_another_one_reads_stays():
    b = Builder("k")
    x, y = (b.array_param(n, dtypes.f32, ["M", "K"]) for n in "xy")
    with b.parallel(["i"], [2], BLOCK), b.parallel(["p"], [1], GROUP):
        bias = b.load("bias", x.subspan([16, 8], [0, 0]))
        mc = b.load("mc", x.subspan([16, 8], [1, 0]))
        with b.apply(mc, ["r", "q"], [16, 8]) as (r, q):
            b.emit(SetFragmentElement(mc.ref, FragmentElement("bias", (r, q), dtypes.f32)))
        b.store(mc, y.subspan([16, 8], [0, 0]))
    kept = Simplify().run(b.finish(), [])
    assert {op.name for op in find(kept, DeclareFragment)} == {"mc", bias.name}
