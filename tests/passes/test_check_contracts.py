from __future__ import annotations

import pytest
from pass_kernels import (
    BLOCK,
    WARPGROUP,
    Builder,
    Contract,
    K,
    Space,
    Tile,
    dtypes,
    find,
    listing1,
    listing2,
    listing3,
    one_multiply,
)

from tilemma.errors import Span
from tilemma.ir.expr import Const, Dim, Select, add, binary, const, sub
from tilemma.ir.tile import Break, DeclareFragment
from tilemma.passes import FRONT_PASSES
from tilemma.passes.check_contracts import (
    AccumulatorShape,
    ContractMismatch,
    CopyExtents,
    CopyTypes,
    FragmentSubscript,
    OperandLoads,
    OperandShape,
    OperandTypes,
    ViewOutside,
)


def checked(kernel):
    for p in FRONT_PASSES:
        kernel = p.run(kernel, [])
    return kernel


SHAPES = {
    Contract.ROW_ROW: ((64, 32), (16, 32)),
    Contract.ROW_COL: ((64, 32), (32, 16)),
    Contract.COL_ROW: ((32, 64), (16, 32)),
    Contract.COL_COL: ((32, 64), (32, 16)),
}


@pytest.mark.parametrize("contract", Contract)
def test_each_contract_takes_its_own_shapes_and_no_others(contract):
    for other, (a, b) in SHAPES.items():
        if other is contract:
            kernel = checked(one_multiply(contract, a=a, b=b))
            assert next(f.shape for f in find(kernel, DeclareFragment) if f.name == "mc") == (64, 16)
            continue
        with pytest.raises((ContractMismatch, AccumulatorShape)) as caught:
            checked(one_multiply(contract, a=a, b=b))
        text = caught.value.render()
        if isinstance(caught.value, ContractMismatch):
            assert str(list(a)) in text and str(list(b)) in text and f"mma.{other}" in caught.value.remedy


@pytest.mark.parametrize("make", [listing1, listing2, listing3])
def test_the_listings_agree_with_themselves(make):
    checked(make())


def test_operand_types():
    with pytest.raises(OperandTypes):
        checked(one_multiply(b_dtype=dtypes.bf16))


class Scene:
    """A block with one shared tile of f16 [64, 64] and parameters around it."""

    def __init__(self):
        self.b = Builder("k", span=Span("k.co", 3, 1, 3, 9))
        self.src = self.b.array_param("src", dtypes.f16, ["M", "K"])
        self.f32 = self.b.array_param("wide", dtypes.f32, ["M", "K"])

    def run(self, write):
        with self.b.parallel(["i"], [4], BLOCK) as (i,):
            s = Tile.whole(self.b.alloc("s", Space.SHARED, dtypes.f16, [64, 64]))
            write(self.b, s, i)
        return checked(self.b.finish())


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda b, s, i, k: b.copy(k.f32.subspan([64, 64], [i, 0]), s), CopyTypes),
        (lambda b, s, i, k: b.copy(k.src.subspan([64, 32], [i, 0]), s), CopyExtents),
        (lambda b, s, i, k: b.copy(k.src.subspan([64, 64], [i, 0]), s.subspan([32, 64], [0, 0])), CopyExtents),
        (lambda b, s, i, k: b.copy(s.subspan([32, 64], [i, 0]), k.src.subspan([32, 64], [i, 0])), ViewOutside),
        (lambda b, s, i, k: b.set_element(s, [0, 64], 0.0), ViewOutside),
        (lambda b, s, i, k: b.declare("x", b.element(s, [i, 64])), ViewOutside),
    ],
)
def test_copies_and_views(write, error):
    k = Scene()
    with pytest.raises(error) as caught:
        k.run(lambda b, s, i: write(b, s, i, k))
    assert caught.value.span is not None


@pytest.mark.parametrize("last", [1, 2])
def test_a_loop_that_starts_later_reaches_as_far_as_it_runs(last):
    k = Scene()

    def write(b, s, i):
        with b.foreach("j", 64, start=0, stop=64 - last) as j:
            b.set_element(s, [0, j.value], b.element(s, [0, j.compose(b_one).value]))

    from tilemma.ir.tiles import Bounded

    b_one = Bounded(const(1), const(1))
    k.run(write)


def test_a_condition_may_guard_a_view():
    k = Scene()

    def write(b, s, i):
        with b.if_(binary("lt", i.value, 2)):
            b.copy(s.subspan([32, 64], [i, 0]), k.src.subspan([32, 64], [i, 0]))

    k.run(write)


def guarded(b, kind, cond):
    """A scope whose body ``cond`` guards."""
    return {"if": b.if_, "inthreads": b.inthreads, "while": b.while_}[kind](cond)


@pytest.mark.parametrize("kind", ["if", "inthreads", "while"])
@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        (lambda i: (sub(i, 1), const(32)), "reaches 80 along dimension 1"),
        (lambda i: (sub(i, 1), const(-1)), "starts at -1 along dimension 1"),
        (lambda i: (const(17), add(i, 1)), "reaches 65 along dimension 0"),
        (lambda i: (sub(i, 1), const(16)), None),
    ],
)
def test_no_condition_helps_a_constant(kind, offsets, says):
    """The other offset is right for the instances that the condition admits."""
    k = Scene()

    def write(b, s, i):
        with guarded(b, kind, binary("lt", const(0), i.value)):
            b.copy(s.window([48, 48], offsets(i.value)), k.src.subspan([48, 48], [i, 0]))

    if says is None:
        k.run(write)
        return
    with pytest.raises(ViewOutside, match=says):
        k.run(write)


def test_views_start_inside():
    k = Scene()
    with pytest.raises(ViewOutside, match="starts at -1 along dimension 0"):
        k.run(lambda b, s, i: b.copy(s.window([8, 8], [sub(i.value, 1), 0]), k.src.subspan([8, 8], [i, 0])))


@pytest.mark.parametrize(("slot", "says"), [(-1, "starts at -1 along dimension of its copies"), (1, "reaches 5")])
def test_slots_of_a_ring(slot, says):
    k = Scene()

    def write(b, s, i):
        ring = b.alloc("ring", Space.SHARED, dtypes.f16, [8, 8], copies=4)
        b.copy(Tile.whole(ring, add(i.value, slot)), k.src.subspan([8, 8], [i, 0]))

    with pytest.raises(ViewOutside, match=says):
        k.run(write)


def test_branches_not_taken_and_operands_not_evaluated_may_name_anything():
    k = Scene()

    def write(b, s, i):
        with b.if_(const(False)):
            b.set_element(s, [64, 0], 0.0)
        below = Select(binary("lt", const(0), i.value), b.element(s, [sub(i.value, 1), 0]), Const(0.0, dtypes.f16))
        b.declare("x", below)
        right = binary("lt", b.element(s, [add(i.value, 61), 0]), 1.0)
        b.declare("y", binary("land", binary("lt", i.value, 3), right))
        with b.foreach("j", 4) as j:
            with b.if_(binary("lt", j.value, i.value)):
                b.emit(Break())
            b.set_element(s, [sub(j.value, i.value), 0], 0.0)

    k.run(write)


def multiply(tile_a, tile_b, more=None):
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK), b.parallel(["p"], [1], WARPGROUP):
        mc = b.fill("mc", 0.0)
        ma, mb = b.load("ma", tile_a(src)), b.load("mb", tile_b(src))
        b.mma(Contract.ROW_ROW, mc, ma, mb)
        if more is not None:
            more(b, src, mc, ma)
    return checked(b.finish())


def array(subscripts, copies=(2,)):
    b = Builder("k")
    with b.parallel(["i"], [4], BLOCK) as (i,), b.parallel(["p"], [1], WARPGROUP) as (p,):
        mc = b.fragment("mc", copies, dtypes.f32)
        with b.foreach("x", 3, stop=2) as x, b.foreach("y", Dim("M")) as y:
            b.fill(mc[subscripts(i.value, p.value, x.value, y.value)], 0.0)
    return checked(b.finish())


def test_subscripts_of_fragment_arrays_are_counted_out():
    array(lambda i, p, x, y: x)
    array(lambda i, p, x, y: sub(1, x))
    array(lambda i, p, x, y: 1)


@pytest.mark.parametrize(
    ("subscripts", "says"),
    [
        (lambda i, p, x, y: i, "`i`"),
        (lambda i, p, x, y: p, "`p`"),
        (lambda i, p, x, y: add(x, y), "`y`"),
        (lambda i, p, x, y: Dim("M"), "`M`"),
        (lambda i, p, x, y: add(x, 1), "reaches 2"),
        (lambda i, p, x, y: sub(x, 1), "reaches -1"),
    ],
)
def test_subscripts_that_registers_do_not_have(subscripts, says):
    with pytest.raises(FragmentSubscript) as caught:
        array(subscripts)
    assert says in caught.value.message


def square(n):
    return lambda src: src.subspan([n, n], [0, 0])


def test_operands_of_unknown_extents():
    with pytest.raises(OperandShape):
        multiply(lambda src: src.subspan([64, K], [0, 0]), square(64))


def test_a_store_of_another_shape():
    with pytest.raises(AccumulatorShape):
        multiply(square(64), square(64), lambda b, src, mc, ma: b.store(mc, src.subspan([64, 32], [0, 0])))
    multiply(
        lambda src: src.subspan([64, 32], [0, 0]),
        lambda src: src.subspan([16, 32], [0, 0]),
        lambda b, src, mc, ma: b.store(mc, src.subspan([16, 64], [0, 0]), transpose=True),
    )


def test_an_operand_loaded_from_tiles_of_two_shapes():
    with pytest.raises(OperandLoads):
        multiply(square(64), square(64), lambda b, src, mc, ma: b.load(ma, src.subspan([32, 64], [0, 0])))
