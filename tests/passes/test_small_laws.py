"""Laws of small functions of the passes, over all of their arguments that matter."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tilemma import dtypes
from tilemma.atoms import catalogue
from tilemma.errors import CompileError
from tilemma.ir.expr import Expr, Index, const, value_of
from tilemma.ir.lane import Instr, Vec
from tilemma.ir.tile import FragmentRef
from tilemma.ir.tiles import Tile
from tilemma.ir.types import GROUP, Buffer, Space
from tilemma.passes.advice import for_multiply
from tilemma.passes.check_scales import _is, _may_be
from tilemma.passes.contraction import matrix
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.passes.load_plans import widens
from tilemma.targets.ptx.tensor_copies import _split

SUBSCRIPTS: tuple[Expr, ...] = (const(0), const(1), Index("i", const(2)), Index("j", const(2)))


@pytest.mark.parametrize("extents", [*product((1, 2, 16), repeat=3), (1, 1, 1, 1), (1, 4, 1, 8), (4, 1, 8, 1)])
def test_the_matrix_of_a_view_has_two_axes_in_order(extents: tuple[int, ...]) -> None:
    """Those that are not 1, then the last ones; more than two long axes stay."""
    view = Tile.whole(Buffer("x", dtypes.f16, tuple(map(const, extents)), Space.SHARED)).view
    found = [a.dim for a in matrix(view).axes]
    long = [i for i, n in enumerate(extents) if n != 1]
    assert found == sorted(found) or len(long) < 2
    assert set(long) <= set(found) and len(found) == max(2, len(long))
    assert [value_of(e) for e in matrix(view).shape if value_of(e) != 1] == [extents[i] for i in long]


@pytest.mark.parametrize(("i", "j"), list(product(SUBSCRIPTS, repeat=2)))
def test_tiles_of_an_array_are_one_or_may_be(i: Expr, j: Expr) -> None:
    """Constants decide; an index may have any value."""
    x, y = FragmentRef("x", (i,)), FragmentRef("x", (j,))
    a, b = value_of(i), value_of(j)
    known = a is not None and b is not None
    assert _may_be(x, y) is (a == b if known else True)
    assert _is(x, y) is (known and a == b)
    assert not _may_be(x, FragmentRef("y", (j,)))


# Types that pairs of f16 or bf16 are made of without conversions of single elements.
PAIRS = {"f16": {"s4", "u4", "s8", "u8"}, "bf16": {"s4", "u4", "s8"}}


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_89", "sm_90a"])
def test_the_types_that_widen_in_pairs(arch: str) -> None:
    number = int(arch[3:5])
    for have, want in product(dtypes.BY_NAME.values(), repeat=2):
        first = {"f16": 75, "bf16": 80}.get(want.name, 10**6)
        fine = have.is_float and have.bits == 8 and bool(have.cvt) and number >= have.cvt
        assert widens(have, want, arch) == (number >= first and (have.name in PAIRS[want.name] or fine)), (
            have,
            want,
        )


def test_the_box_of_many_rows() -> None:
    """It divides them, has whole units of 128 bytes and, where there is one, is a multiple of 8 rows."""

    def refuse(*_: object) -> CompileError:
        raise LookupError

    for n, row_bytes in product(
        (*range(1, 12), *range(250, 1100, 7), 256, 257, 512, 514, 520), (16, 32, 48, 64, 128, 384)
    ):
        fits = [b for b in range(1, 257) if n % b == 0 and b * row_bytes % 128 == 0]
        if n <= 256:
            assert _split(n, row_bytes, refuse) == n
        elif not fits:
            with pytest.raises(LookupError):
                _split(n, row_bytes, refuse)
        else:
            eights = [b for b in fits if b % 8 == 0]
            assert _split(n, row_bytes, refuse) == max(eights or fits)


def test_advice_names_an_instruction_of_the_operands_types() -> None:
    """Of those that a program has to name, where no other multiplies the types."""
    for arch in ("sm_75", "sm_80", "sm_90a"):
        runs = [x for x in catalogue.mma("mma.sync") if x.runs_on(arch)]
        plain = {(x.a.dtype, x.b.dtype) for x in runs if x.rank >= 0}
        for types in {(x.a.dtype, x.b.dtype) for x in runs}:
            names = {x.name for x in runs if (x.a.dtype, x.b.dtype) == types}
            text = for_multiply(arch, GROUP, (16, 8, 8), (*types, dtypes.f64), None)
            assert types in plain or any(f"name {n}," in text for n in names), text


@pytest.mark.parametrize("form", ["registers", "vector"])
def test_an_assigned_register_is_read_again(form: str) -> None:
    """However the instruction names it."""
    e = Emitter()
    low, high = e.regs("half", "b16", 2, mutable=True)

    def read() -> Any:
        return e.pure("cvt.u32.u16", "s32", low), e.pure("cvt.u32.u16", "s32", high)

    before = read()
    assert read() == before
    source = e.pure("mov.b32", "b32", hint="word")
    dst = {"registers": (low, high), "vector": (Vec((low, high)),)}[form]
    e.do("mov.b32", dst, (source,))
    after = read()
    assert not {r.name for r in before} & {r.name for r in after}
    assert sum(isinstance(x, Instr) and x.mnemonic.startswith("cvt") for x in e.regions[0].ops) == 4
